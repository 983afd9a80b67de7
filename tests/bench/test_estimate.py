"""Estimates of cells: measured once, and better after some have ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import make_image_site

from fedshift.federation.run_time import Trial
from fedshift.schema.errors import QuorumError
from fedshift_bench import estimate
from fedshift_bench.cells import Cell, make_cells
from fedshift_bench.estimate import FILE_NAME, Estimator, measure_start
from fedshift_bench.runner import GridProgress, QueueEntry, total_seconds
from fedshift_bench.spec import Samples, read_spec

from .conftest import START
from .made import write_spec


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """FedAvg and FedProx, of 2 and of 20 rounds."""
    for site in "ABC":
        make_image_site(tmp_path / "fedshift" / "phantom", site)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    axes = {
        "method": {"FedAvg": {"methods": "fedavg"}, "FedProx": {"methods": "fedprox"}},
        "rounds": {n: {"options": {"schedule.rounds": int(n)}} for n in ("2", "20")},
    }
    spec, _ = read_spec(write_spec(tmp_path, axes=axes))
    return make_cells(spec, folder=tmp_path)


def test_a_network_is_measured_once_on_a_machine(
    cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    original = estimate.measure_step
    monkeypatch.setattr(estimate, "measure_step", lambda job, device: (measured.append(1), original(job, device))[1])
    first = [Estimator(tmp_path / "cells", device="cpu")(cell) for cell in cells]
    assert len(measured) == 1 and (tmp_path / "cells" / FILE_NAME).is_file()
    few, many = first[0], first[1]
    assert many.seconds > few.seconds > 0 and many.peak_bytes == few.peak_bytes > estimate.PROCESS
    assert not few.is_learned and not few.is_assumed
    (tmp_path / "cells" / FILE_NAME).write_text("{", encoding="utf-8")
    Estimator(tmp_path / "cells", device="cpu")(cells[0])
    assert len(measured) == 2


def test_what_a_cell_took_is_learned_for_any_number_of_rounds(cells: list[Cell], tmp_path: Path) -> None:
    estimator = Estimator(tmp_path / "cells", device="cpu")
    estimator.learn(cells[0], seconds=50.0, in_rounds=40.0, peak_bytes=7)
    again = Estimator(tmp_path / "cells", device="cpu")
    few, many, other = again(cells[0]), again(cells[1]), again(cells[2])
    assert few.seconds == pytest.approx(50) and few.is_learned and few.peak_bytes == 7
    assert many.seconds == pytest.approx(10 + 40 * 20 / 2)
    assert other.seconds == pytest.approx(50) and not other.is_learned  # the nearest that is known


def test_sites_whose_data_are_lacking_are_taken_to_be_as_the_spec_says(
    cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "none"))
    spec, _ = read_spec(tmp_path / "small.yaml")
    (cell, *_) = make_cells(spec, folder=tmp_path)
    one, ten = (Estimator(tmp_path / "cells", device="cpu", samples=Samples(train=n))(cell) for n in (10_000, 100_000))
    assert one.is_assumed and 9 < (ten.seconds - START) / (one.seconds - START) < 11


def test_the_time_left_follows_how_fast_it_goes(cells: list[Cell]) -> None:
    jobs = [QueueEntry([cell], estimate.Estimate(100.0, 1)) for cell in cells]
    progress = GridProgress(jobs, 0.0, 2, clock=lambda: 0.0)
    assert progress.seconds_left == 200
    jobs[0].state, jobs[0].share = "done", 1.0
    progress.clock = lambda: 50.0
    assert progress.seconds_left == 150 and progress.share == 0.25
    jobs[1].was_done, jobs[1].state = True, "done"
    assert progress.seconds_left == 100
    jobs[2].state, jobs[2].share, jobs[2].share_before = "running", 0.75, 0.75
    assert progress.seconds_left == 62.5, "what an earlier command has done took no time of this one"


def test_an_estimate_has_the_start_of_a_process_and_all_that_is_done_outside_of_steps(
    cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    trial = Trial(round=3.0, rest=5.0)
    monkeypatch.setattr(estimate, "run_trial", lambda job, data, **options: (tried.append(job), trial)[1])
    few, many, *_ = [Estimator(tmp_path / "cells", device="cpu")(cell) for cell in cells]
    assert len(tried) == 1, "once for the network on its data"
    schedule = tried[0].task.schedule
    assert (schedule.rounds, schedule.local_steps) == (1, 1)
    per_round = (many.seconds - few.seconds) / 18
    assert per_round >= 3.0 and few.seconds == pytest.approx(START + 5.0 + 2 * per_round)


def test_a_cell_that_diverges_is_estimated_from_its_steps(
    cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverges(*_: object, **__: object) -> None:
        raise QuorumError("no-quorum", "the training loss is nan")

    monkeypatch.setattr(estimate, "run_trial", diverges)
    assert Estimator(tmp_path / "cells", device="cpu")(cells[0]).seconds > START


@pytest.mark.slow
def test_the_start_of_a_process_is_measured() -> None:
    assert 0.2 < measure_start() < 200


def test_time_is_told_as_a_range_which_narrows_with_what_was_learned(cells: list[Cell]) -> None:
    unknown = QueueEntry([cells[0]], estimate.Estimate(100.0, 1))
    known = QueueEntry([cells[1]], estimate.Estimate(100.0, 1, is_learned=True))
    (low, high), (lower, higher) = total_seconds([unknown], 1), total_seconds([known], 1)
    assert low < 100 < high and lower < 100 < higher and higher - lower < high - low
    assert total_seconds([unknown, known], 1) == (low + lower, high + higher)
