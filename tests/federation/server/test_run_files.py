"""A server that dies at the worst moments and goes on from its files, and one whose disk is full."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from conftest import small_image_job
from errors import raises

from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.server import coordinator as coordinator_module
from fedshift.federation.server import run_files
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.server.run_files import FORMER_STATE_FILE, NEXT_BEST, STATE_FILE, FreeDisk
from fedshift.federation.server.spool import SpooledUpdate
from fedshift.federation.server.update_check import Change
from fedshift.reporting.progress import RESERVE, ProgressFile, read_progress
from fedshift.schema.files import write_text
from fedshift.schema.messages import Scores, SiteInfo, Update
from fedshift.schema.results import BEST, LAST, read_results
from fedshift.tasks.kinds import build_task

T = TypeVar("T")
ROUNDS = 4
SCORES = {1: (0.6, 0.6, 0.6), 2: (0.5, 0.5, 0.95), 3: (0.4, 0.4, 0.4)}
"""Of the sites A, B and C; over A and B the first round is better than the second, over all three the second."""


class Died(BaseException):
    """In place of a SIGKILL."""


def coordinator(folder: Path) -> Coordinator:
    return Coordinator(small_image_job("fedavg", f"schedule.rounds={ROUNDS}", "federation.min_sites=1"), folder)


def run_round(server: Coordinator, round_: int, sites: Iterable[str] = "ABC") -> None:
    """Sites that move all weights by a thousandth."""
    received = server.open(round_).weights
    metrics = build_task(server.job).metrics
    for number, site in enumerate(sites):
        if round_ == 0:
            server.register(SiteInfo(site, "images", 8, 2, 2, "0" * 64, "by hand"))
            assert server.accept(Update(site=site, round=0, n_samples=8, n_steps=0))
            continue
        weights = {k: v + np.float32(1e-3) if v.dtype.kind == "f" else v for k, v in received.items()}
        scores = dict.fromkeys(metrics, SCORES[round_ - 1][number]) if round_ > 1 else {}
        update = Update(site, round_, 8, 1, weights, {"train_loss": 1.0, **scores})
        assert server.accept(update)
    server.close()


def evaluate(server: Coordinator) -> None:
    metrics = build_task(server.job).metrics

    def answer(round_: int) -> None:
        for site in "ABC":
            values = dict.fromkeys(metrics, 0.3)
            assert server.add_scores(Scores(site, round_, {"val": values, "test": values}))

    server.open(ROUNDS + 1)
    answer(ROUNDS)
    server.close_last()
    best = server.open_best()
    if best is not None:
        answer(best.round - 1)
    server.finish()


def test_a_candidate_of_a_round_that_was_not_closed_is_not_taken_for_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = coordinator(tmp_path)
    for round_ in (0, 1, 2):
        run_round(server, round_)

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(run_files, "write_tensors", die)
        with pytest.raises(Died):
            run_round(server, 3)
    assert read_model_file(tmp_path / NEXT_BEST)["round"] == 2

    server = coordinator(tmp_path)
    assert server.resume() == 2
    run_round(server, 3, "AB")
    run_round(server, 4)
    evaluate(server)
    assert server.results.selected is not None
    assert read_model_file(tmp_path / BEST)["round"] == server.results.selected.round == 1


@pytest.mark.parametrize("left", [0, 100, 1000])
def test_a_damaged_state_gives_way_to_the_one_before(
    left: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = coordinator(tmp_path)
    for round_ in (0, 1, 2):
        run_round(server, round_)
    path = tmp_path / STATE_FILE
    path.write_bytes(path.read_bytes()[:left])
    server = coordinator(tmp_path)
    assert server.resume() == 1
    assert f"{STATE_FILE} cannot be read" in caplog.text


def test_a_state_that_was_being_written_gives_way_to_the_one_before(tmp_path: Path) -> None:
    server = coordinator(tmp_path)
    for round_ in (0, 1, 2):
        run_round(server, round_)
    (tmp_path / STATE_FILE).unlink()
    assert (tmp_path / FORMER_STATE_FILE).is_file()
    assert coordinator(tmp_path).resume() == 1


def test_a_lost_best_model_costs_the_best_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = coordinator(tmp_path)
    for round_ in (0, 1, 2):
        run_round(server, round_)
    (tmp_path / BEST).write_bytes(b"")
    server = coordinator(tmp_path)
    assert server.resume() == 2
    assert "model of round 1" in caplog.text
    run_round(server, 3)
    run_round(server, 4)
    evaluate(server)
    assert server.results.selected is not None and server.results.selected.round > 1
    assert read_model_file(tmp_path / LAST)["round"] == ROUNDS


def test_a_best_model_that_is_lost_at_the_end_gives_way_to_the_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = coordinator(tmp_path)
    for round_ in range(ROUNDS + 1):
        run_round(server, round_)
    assert 1 <= server.best_round < ROUNDS
    (tmp_path / BEST).unlink()
    evaluate(server)
    assert f"round {ROUNDS} is taken" in caplog.text and BEST in caplog.text
    assert server.results.selected is not None and server.results.selected.round == ROUNDS
    assert read_model_file(tmp_path / BEST)["round"] == ROUNDS
    assert server.results.final is not None and server.results.final.best == server.results.final.last


def test_a_run_that_was_finished_is_known_to_be(tmp_path: Path) -> None:
    server = coordinator(tmp_path)
    for round_ in range(ROUNDS + 1):
        run_round(server, round_)
    evaluate(server)
    again = coordinator(tmp_path)
    again.resume()
    assert again.results.final == server.results.final


def test_no_answer_of_a_single_site_is_left_once_it_is_discarded(tmp_path: Path) -> None:
    server = coordinator(tmp_path)
    run_round(server, 0)
    weights = server.open(1).weights
    assert server.accept(Update("A", 1, 8, 1, weights, {"train_loss": 1.0}))
    assert list(tmp_path.rglob("*.arrays"))
    server.discard_waiting()
    assert not list(tmp_path.rglob("*.arrays"))


# --- a full disk -------------------------------------------------------------------------------------


class Disk:
    """A disk that is full for some calls, and the time that passes."""

    def __init__(self, full_for: int, number: int = errno.ENOSPC) -> None:
        self.left, self.number, self.now = full_for, number, 0.0

    def write(self) -> str:
        if self.left:
            self.left -= 1
            raise OSError(self.number, os.strerror(self.number))
        return "written"

    def free(self, folder: Path, *, patience: float = 60, stopped: Callable[[], bool] = lambda: False) -> FreeDisk:
        def sleep(seconds: float) -> None:
            self.now += seconds

        return FreeDisk(folder, patience=patience, stopped=stopped, clock=lambda: self.now, sleep=sleep)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_the_run_waits_says_so_and_goes_on(number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(3, number)
    free_disk = disk.free(tmp_path)
    assert free_disk.write("the state", disk.write) == "written" and free_disk.waited == 6
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 2 and "the state" in logged[0] and all(str(tmp_path) in line for line in logged)


def test_a_disk_that_stays_full_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    disk = Disk(1000)
    with raises("disk-full", naming="the state"):
        disk.free(tmp_path, patience=9).write("the state", disk.write)
    assert disk.now == 10
    with raises("disk-full"):
        Disk(1000).free(tmp_path, stopped=lambda: True).write("the state", disk.write)


def test_another_fault_of_the_disk_is_not_waited_for(tmp_path: Path) -> None:
    disk = Disk(1, errno.EIO)
    with pytest.raises(OSError) as raised:
        disk.free(tmp_path).write("the state", disk.write)
    assert raised.value.errno == errno.EIO and disk.now == 0


def test_a_run_goes_on_to_the_same_weights(
    three_image_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full once for every file of the run: updates, state, models and results."""
    job = small_image_job("fedavg", "schedule.rounds=2")
    expected = run_in_process(job, three_image_sites, tmp_path / "expected")
    calls: dict[str, int] = {}

    class FullAtFirst(FreeDisk):
        def write(self, what: str, write: Callable[[], T]) -> T:
            self._sleep = lambda seconds: None
            full = [True]

            def attempt() -> T:
                calls[what] = calls.get(what, 0) + 1
                if full.pop() if full else False:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return write()

            return super().write(what, attempt)

    monkeypatch.setattr(coordinator_module, "FreeDisk", FullAtFirst)
    run = run_in_process(job, three_image_sites, tmp_path / "run")
    assert all(run.model.weights[k].tobytes() == v.tobytes() for k, v in expected.model.weights.items())
    assert calls["the state"] == 10 and all(number % 2 == 0 for number in calls.values())
    assert read_results(tmp_path / "run").final == expected.results.final


def test_what_could_not_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *args: object, **options: object) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError) as raised:
            write_text(tmp_path / "results.json", "x")
    assert raised.value.errno == errno.ENOSPC

    class Full:
        def __array__(self, *_: object, **options: object) -> None:
            Disk(1).write()

    weights: dict[str, Any] = {"w": np.zeros(3, np.float32), "x": Full()}
    update = Update("A", 1, 1, 1, weights)
    with pytest.raises(OSError) as raised:
        SpooledUpdate(update, tmp_path / "A.arrays", Change())
    assert raised.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_the_last_moment_of_a_run_has_room_in_reserve(tmp_path: Path) -> None:
    coordinator = Coordinator(small_image_job("fedavg"), tmp_path)
    progress = ProgressFile(tmp_path)
    progress.update(coordinator)
    assert (tmp_path / RESERVE).stat().st_size > 10_000
    progress.fail("full")
    assert not (tmp_path / RESERVE).exists()
    progress_file = read_progress(tmp_path)
    assert progress_file is not None and (progress_file.state, progress_file.reason) == ("failed", "full")
