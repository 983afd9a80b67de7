"""progress.json says where a run is; the time left comes from the rounds that were."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from conftest import small_job
from errors import raises

from fedshift.federation.in_process import run_in_process
from fedshift.federation.server.coordinator import Coordinator
from fedshift.reporting.progress import (
    EVALUATION_FRACTION,
    INTERVAL,
    MANY_SITES,
    MOST_POINTS,
    MOST_REFUSED,
    STOPPED,
    ProgressFile,
    mark_stopped,
    read_progress,
)
from fedshift.reporting.recent_log import MOST_LINES, RecentLog
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Scores
from fedshift.schema.results import Rejection, RoundRecord


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
    assert middle.seconds_left == pytest.approx(10 * (2 + EVALUATION_FRACTION) - 4), "4 s of round 3 are over"
    assert middle.score is None, "the scores of round 2 are still coming in"

    coordinator.open(4)
    later = read_progress(tmp_path)
    assert later is not None
    assert (later.score_round, later.score) == (2, 0.5)

    file.fail("no space")
    end = read_progress(tmp_path)
    assert end is not None
    assert (end.state, end.reason, end.round) == ("failed", "no space", 4)


def test_answers_of_many_sites_are_shown_together(tmp_path: Path) -> None:
    now = [100.0]
    file = ProgressFile(tmp_path, clock=lambda: now[0])
    raw = small_job("fedavg").dump()
    raw["task"]["sites"] = [f"S{number}" for number in range(MANY_SITES + 1)]
    coordinator = Coordinator(JobSpec.parse(raw, where="many"), tmp_path, on_progress=file.update)
    shown = []
    for second, site in ((0.0, "S0"), (0.5, "S1"), (INTERVAL, "S2"), (INTERVAL + 0.5, "S3")):
        if not second:
            coordinator.open(1)
        now[0] = 100 + second
        coordinator.reject(site, "weights", "has NaN")
        file.catch_up()
        shown.append(read_progress(tmp_path))
    now[0] += INTERVAL
    file.catch_up()
    shown.append(read_progress(tmp_path))
    assert [len(progress.rejected) for progress in shown if progress] == [0, 0, 3, 3, 4]


def test_what_is_told_of_the_rounds_is_bounded_and_is_there_again_after_a_restart(tmp_path: Path) -> None:
    logger = logging.getLogger("fedshift")
    logger.setLevel(logging.INFO)
    recent = RecentLog(logger)
    try:
        file = ProgressFile(tmp_path, recent=recent)
        coordinator = Coordinator(small_job("fedavg", "schedule.rounds=400"), tmp_path, on_progress=file.update)
        results = coordinator.results
        results.statistics = RoundRecord(round=0, rejected=[Rejection(site="UCL", key="info", reason="odd")])
        for number in range(1, 300):
            faults = [Rejection(site="HK", key="norm", reason=f"of round {number}")] if number % 2 else []
            results.rounds.append(RoundRecord(round=number, rejected=faults, absent=["HK", "UCL"] if faults else []))
            coordinator.record.selection.note(Scores("UCL", number, {"val": {"dice": number / 1000}}))
            logger.info("line %d of\ntwo", number)
            if number < 50 or number > 297:  # as it goes on, and again when a run is resumed
                coordinator.open(number + 1)
    finally:
        recent.close()
        logger.setLevel(logging.NOTSET)
    coordinator.reject("BIDMC", "weights", "has NaN")
    told, resumed = read_progress(tmp_path), ProgressFile(tmp_path)
    assert told is not None
    assert told.job == coordinator.job.name and told.absent == ["UCL"]
    assert told.site_scores == {"UCL": 0.298} and told.best_site_scores == {}
    assert len(told.history) == MOST_POINTS and told.history[0] == (1, 0.001) and told.history[-1] == (298, 0.298)
    assert told.n_refused == 1 + 150 + 1 and len(told.refused) == MOST_REFUSED
    assert [one.round for one in told.refused[-2:]] == [299, 300] and told.refused[-1].reason == "weights: has NaN"
    assert len(told.log) == MOST_LINES and told.log[-1].text == "line 299 of two"
    assert recent not in logger.handlers
    resumed.update(coordinator)
    again = read_progress(tmp_path)
    assert again is not None and (again.history, again.refused) == (told.history, told.refused)


def test_a_file_of_another_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text('{"schema": 2}', encoding="utf-8")
    with raises("other-version", naming=("progress.json", "schema: ")):
        read_progress(tmp_path)


def test_a_run_that_fails_before_it_begins_says_why(tmp_path: Path) -> None:
    ProgressFile(tmp_path).fail("no data")
    progress = read_progress(tmp_path)
    assert progress is not None
    assert (progress.state, progress.reason) == ("failed", "no data")


def test_a_run_that_ends_is_at_its_last_round(tmp_path: Path, three_sites: dict[str, Path]) -> None:
    seen: list[tuple[str, int]] = []
    shares: list[float] = []
    file = ProgressFile(tmp_path)

    def note(coordinator: Coordinator) -> None:
        file.update(coordinator)
        progress = read_progress(tmp_path)
        assert progress is not None
        seen.append((progress.step, progress.round))
        shares.append(progress.share)

    run_in_process(small_job("fedavg"), three_sites, tmp_path, on_progress=note)
    assert list(dict.fromkeys(seen)) == [("statistics", 0), ("training", 1), ("training", 2), ("evaluation", 2)]
    assert shares[-1] == 1 and all(0 <= share <= 1 for share in shares)
    end = read_progress(tmp_path)
    assert end is not None and (end.state, end.round, end.rounds) == ("finished", 2, 2)
    mark_stopped(tmp_path)
    assert read_progress(tmp_path) == end, "a run that has finished cannot be stopped"


def test_a_run_that_a_person_stops_says_so(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path)
    coordinator = Coordinator(small_job("fedavg"), tmp_path, on_progress=file.update)
    coordinator.open(0)
    file.stop()
    stopped = read_progress(tmp_path)
    assert stopped is not None and (stopped.state, stopped.reason) == ("stopped", STOPPED)
    file.update(coordinator)
    mark_stopped(tmp_path)
    assert read_progress(tmp_path) == stopped
    mark_stopped(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
