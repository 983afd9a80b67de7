"""Scores that no site could have measured are refused."""

from __future__ import annotations

import pytest

from fedshift.federation.server.score_check import check_scores
from fedshift.federation.server.update_check import Rejected
from fedshift.schema.messages import Scores


def test_scores_have_the_tasks_names_and_ranges() -> None:
    ranges = {"dice": (0.0, 1.0)}
    check_scores(Scores("A", 3, {"val": {"dice": 0.5}, "test": {"dice": 1.0}}), round_=3, metrics=ranges)
    check_scores(Scores("A", 3, {}), round_=3, metrics=ranges)
    for bad in (
        Scores("A", 2, {"val": {"dice": 0.5}}),
        Scores("A", 3, {"train": {"dice": 0.5}}),
        Scores("A", 3, {"val": {"dice": 1.5}}),
        Scores("A", 3, {"val": {"dice": float("nan")}}),
        Scores("A", 3, {"val": {"Case07": 0.5}}),
    ):
        with pytest.raises(Rejected):
            check_scores(bad, round_=3, metrics=ranges)


def test_personal_scores_need_a_method_that_fine_tunes() -> None:
    own = Scores("A", 3, {}, personal={"test": {"dice": 1.0}})
    check_scores(own, round_=3, metrics={"dice": (0, 1)}, personal=True)
    with pytest.raises(Rejected, match="no method of the job fine-tunes"):
        check_scores(own, round_=3, metrics={"dice": (0, 1)})
