"""Which sites a round asks, how many of them may fail, and which round is best, also when not every site has scored."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from conftest import SHAPES
from errors import raises

from fedshift.federation.resolve import resolve
from fedshift.federation.server.quorum import Quorum
from fedshift.federation.server.run_record import Selection
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Scores

ROUNDS = 20
EVALUATION = ROUNDS + 1


def job(*options: str, seed: int = 0, held_out: Sequence[str] = ()) -> JobSpec:
    return resolve(str(SHAPES), "fedavg", held_out=held_out, options=[f"schedule.rounds={ROUNDS}", *options], seed=seed)


def drawn(job: JobSpec) -> list[tuple[str, ...]]:
    return [Quorum(job).invited(round_) for round_ in range(1, ROUNDS + 1)]


def test_sites_are_drawn_for_training_rounds_only() -> None:
    quorum = Quorum(job("federation.sites_per_round=2"))
    assert quorum.samples_sites
    assert quorum.invited(0) == quorum.invited(EVALUATION) == ("A", "B", "C")
    assert {*drawn(job("federation.sites_per_round=2"))} == {("A", "B"), ("A", "C"), ("B", "C")}


def test_the_draw_depends_on_the_jobs_seed_and_the_round_alone() -> None:
    option = "federation.sites_per_round=2"
    assert drawn(job(option)) == drawn(job(option))
    assert drawn(job(option)) != drawn(job(option, seed=1))


def test_a_draw_of_all_sites_is_none() -> None:
    quorum = Quorum(job("federation.sites_per_round=3"))
    assert not quorum.samples_sites and quorum.invited(1) == ("A", "B", "C")


def test_as_many_sites_may_fail_where_all_are_asked_as_in_a_drawn_round() -> None:
    quorum = Quorum(job("federation.sites_per_round=2", "federation.min_sites=1"))
    assert [quorum.needed(round_) for round_ in (0, 1, EVALUATION)] == [2, 1, 2]


def test_held_out_sites_are_asked_in_the_evaluation_and_do_not_count() -> None:
    quorum = Quorum(job("federation.min_sites=2", held_out=["C"]))
    assert quorum.invited(1) == ("A", "B") and quorum.invited(EVALUATION) == ("A", "B", "C")
    assert quorum.needed(EVALUATION) == 2 and quorum.usable(["A", "C"]) == 1
    error = quorum.shortage(EVALUATION, 1, answered=["A", "C"], rejected={}, what="the evaluation")
    assert error.code == "too-few-answers" and "without B (no answer yet)" in str(error)


def test_a_site_that_answered_after_a_rejected_try_is_not_lost() -> None:
    quorum = Quorum(job("federation.min_sites=3"))
    assert quorum.is_out_of_reach(1, answered=[], rejected=["A"])
    assert not quorum.is_out_of_reach(1, answered=["A"], rejected=["A"])


def selection(*rounds: dict[str, float], by: Literal["mean", "worst"] | int = "mean") -> Selection:
    chosen = Selection(("A", "B", "C"), "dice", by=by)
    for number, scores in enumerate(rounds, start=1):
        for site, value in scores.items():
            chosen.note(Scores(site, number, {"val": {"dice": value}}))
        chosen.consider(number)
    return chosen


def test_the_highest_mean_wins_and_the_earlier_of_equals() -> None:
    assert selection({"A": 0.5, "B": 0.5}, {"A": 0.7, "B": 0.4}, {"A": 0.4, "B": 0.7}).best == 2


def test_a_round_that_a_difficult_site_did_not_score_does_not_win_by_that() -> None:
    hard = {"A": 0.9, "B": 0.9, "C": 0.3}
    assert selection(hard, {"A": 0.85, "B": 0.85}).best == 1
    assert selection(hard, {"A": 0.85, "B": 0.85}, {"A": 0.84, "B": 0.84, "C": 0.6}).best == 3
    assert selection(hard, {"A": 0.95, "B": 0.95}).best == 2


def test_the_worst_site_may_select_instead_of_the_mean() -> None:
    rounds = [{"A": 0.6, "B": 0.5}, {"A": 0.9, "B": 0.4}, {"A": 0.55, "B": 0.55}, {"A": 0.55, "B": 0.9}]
    assert selection(*rounds[:3]).best == 2 and selection(*rounds[:3], by="worst").best == 3
    assert selection(*rounds, by="worst").best == 3, "of equals the earlier one"
    assert "score of the worst site" in selection(by="worst").rule and "mean over sites" in selection().rule


def test_a_round_that_the_worst_site_did_not_score_does_not_win_by_that() -> None:
    assert selection({"A": 0.8, "C": 0.3}, {"A": 0.7}, by="worst").best == 1


def test_the_worst_site_of_sites_that_are_drawn_is_refused() -> None:
    with raises("invalid-value", naming="evaluation.select: worst"):
        job("evaluation.select=worst", "federation.sites_per_round=2")


def test_a_round_that_the_job_names_is_one_of_the_run_and_needs_no_scores() -> None:
    assert selection({"A": 0.9}, {"A": 0.1}, by=2).best == 2 and "round 2" in selection(by=2).rule
    refused = ("evaluation.select=21",), ("evaluation.select=0",), ("evaluation.select=2", "schedule.patience=1")
    for options in refused:
        with raises("invalid-value", naming="select"):
            job(*options)


def test_nothing_in_common_changes_nothing() -> None:
    assert selection({"A": 0.1}, {"B": 0.9}).best == 1
    assert selection({"A": 0.9, "B": 0.9}, {"C": 0.95}).best == 1
    assert selection({}, {"B": 0.9}).best == 2
    assert selection({}, {}).best == 0


def test_a_round_that_more_sites_scored_replaces_one_that_none_of_them_did() -> None:
    """Or the first round would stay the best for ever if the only site that scored it left the run."""
    assert selection({"A": 0.9}, {"B": 0.5, "C": 0.5}).best == 2
    assert selection({"A": 0.9}, {"B": 0.5, "C": 0.5}, {"B": 0.6, "C": 0.6}).best == 3


def test_the_mean_does_not_depend_on_who_answers_first() -> None:
    scores = [("A", 0.1), ("B", 0.2), ("C", 0.3)]
    assert len({selection(dict(order)).mean(1) for order in itertools.permutations(scores)}) == 1
