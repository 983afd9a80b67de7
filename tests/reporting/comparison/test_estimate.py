"""Estimates of cells: measured once, and better after some have ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import make_image_site, small_image_job

from fedshift.reporting.comparison import estimate
from fedshift.reporting.comparison.cells import Cell, make_cells
from fedshift.reporting.comparison.estimate import FILE_NAME, Estimator
from fedshift.reporting.comparison.runner import Job, Moment
from fedshift.reporting.comparison.spec import Samples, read_spec

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
    original = estimate.measure
    monkeypatch.setattr(estimate, "measure", lambda job, device: (measured.append(1), original(job, device))[1])
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


def test_activations_are_those_that_the_backward_pass_keeps() -> None:
    small = estimate.measure(small_image_job("fedavg"), "cpu")
    large = estimate.measure(small_image_job("fedavg", "network.options.width=8"), "cpu")
    assert large.activations > 1.5 * small.activations and large.network > small.network


def test_sites_whose_data_are_lacking_are_taken_to_be_as_the_spec_says(
    cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "none"))
    spec, _ = read_spec(tmp_path / "small.yaml")
    (cell, *_) = make_cells(spec, folder=tmp_path)
    one, ten = (Estimator(tmp_path / "cells", device="cpu", samples=Samples(train=n))(cell) for n in (10_000, 100_000))
    assert one.is_assumed and 9 < (ten.seconds - estimate.START) / (one.seconds - estimate.START) < 11


def test_the_time_left_follows_how_fast_it_goes(cells: list[Cell]) -> None:
    jobs = [Job([cell], estimate.Estimate(100.0, 1)) for cell in cells]
    moment = Moment(jobs, 0.0, 2, clock=lambda: 0.0)
    assert moment.seconds_left == 200
    jobs[0].state, jobs[0].share = "done", 1.0
    moment.clock = lambda: 50.0
    assert moment.seconds_left == 150 and moment.share == 0.25
    jobs[1].was_done, jobs[1].state = True, "done"
    assert moment.seconds_left == 100
