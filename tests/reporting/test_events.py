"""Curves have every point once, whenever a score comes."""

from __future__ import annotations

from pathlib import Path

from conftest import small_job
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedshift.reporting.events import FOLDER, Events
from fedshift.schema.results import Final, FinalScores, Results, RoundRecord, SiteRound, new_results


def points(folder: Path, tag: str) -> list[tuple[int, float]]:
    read = EventAccumulator(str(folder / FOLDER))
    read.Reload()
    return [(event.step, round(event.value, 3)) for event in read.Scalars(tag)]


def finished(results: Results) -> None:
    scores = FinalScores(round=1, sites={})
    results.final = Final(best=scores, last=scores, personal={})


def test_scores_come_a_round_later_and_some_with_the_last_evaluation(tmp_path: Path) -> None:
    results, events = new_results(small_job("fedavg"), metric="dice"), Events(tmp_path)
    for number in range(1, 6):
        if results.rounds:
            results.rounds[-1].sites["HK"].val = {"dice": number / 10}
        results.rounds.append(RoundRecord(round=number, sites={"HK": SiteRound(train_loss=1 / number)}))
        events.update(results)
    results.rounds[0].sites["UCL"] = SiteRound(val={"dice": 0.9})
    finished(results)
    events.update(results)
    events.close()
    assert points(tmp_path, "train_loss/HK") == [(n, round(1 / n, 3)) for n in range(1, 6)]
    assert points(tmp_path, "val/dice/HK") == [(1, 0.2), (2, 0.3), (3, 0.4), (4, 0.5)]
    assert points(tmp_path, "val/dice/UCL") == [(1, 0.9)]


def test_of_a_run_that_had_finished_the_curves_are_made_again(tmp_path: Path) -> None:
    results = new_results(small_job("fedavg"), metric="dice")
    results.rounds.append(RoundRecord(round=1, sites={"HK": SiteRound(train_loss=0.5)}))
    finished(results)
    for _ in range(2):
        events = Events(tmp_path)
        events.update(results)
        events.close()
        assert points(tmp_path, "train_loss/HK") == [(1, 0.5)]
