"""progress.json says where a run is; the time left comes from the rounds that were."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import small_job

from fedshift.federation.server.coordinator import Coordinator
from fedshift.reporting.progress import EVALUATION, ProgressFile, read_progress
from fedshift.schema.messages import Scores
from fedshift.schema.results import RoundRecord


def test_the_course_of_a_run(tmp_path: Path) -> None:
    now = [100.0]
    file = ProgressFile(tmp_path, clock=lambda: now[0])
    coordinator = Coordinator(small_job("fedavg", "schedule.rounds=4"), tmp_path, on_progress=file.update)
    assert read_progress(tmp_path) is None
    coordinator.open(0)
    start = read_progress(tmp_path)
    assert start is not None
    assert (start.state, start.round, start.rounds, start.seconds_left) == ("running", 0, 4, None)

    coordinator.results.rounds += [RoundRecord(round=1, seconds=8.0), RoundRecord(round=2, seconds=12.0)]
    coordinator.open(3)
    now[0] += 4
    coordinator.add_scores(Scores("HK", 2, {"val": {"dice": 0.5}}))
    middle = read_progress(tmp_path)
    assert middle is not None
    assert middle.sites_in == ["HK"]
    assert middle.seconds_per_round == 10
    assert middle.seconds_left == pytest.approx(10 * (2 + EVALUATION) - 4), "rounds 3 and 4, of which 4 s are over"
    assert middle.score is None, "the scores of round 2 are still coming in"

    coordinator.open(4)
    later = read_progress(tmp_path)
    assert later is not None
    assert (later.score_round, later.score) == (2, 0.5)

    file.fail("the disk is full")
    end = read_progress(tmp_path)
    assert end is not None
    assert (end.state, end.reason, end.round) == ("failed", "the disk is full", 4)


def test_a_run_that_fails_before_it_begins_says_why(tmp_path: Path) -> None:
    ProgressFile(tmp_path).fail("no data")
    progress = read_progress(tmp_path)
    assert progress is not None
    assert (progress.state, progress.reason) == ("failed", "no data")
