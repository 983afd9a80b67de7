"""Which round is best, also when not every site has told."""

from __future__ import annotations

import itertools

from fedshift.federation.server.selection import Selection
from fedshift.schema.messages import Scores


def selection(*rounds: dict[str, float]) -> Selection:
    chosen = Selection(("A", "B", "C"), "dice")
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
    told = [("A", 0.1), ("B", 0.2), ("C", 0.3)]
    assert len({selection(dict(order)).mean(1) for order in itertools.permutations(told)}) == 1
