"""Scores that no site could have measured are refused."""

from __future__ import annotations

import pytest

from fedshift.federation.server.score_check import check_scores
from fedshift.federation.server.update_check import Rejected
from fedshift.schema.evaluation import Evaluation, OneSided
from fedshift.schema.messages import Scores
from fedshift.schema.paired import LocalComparison


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


def test_classes_in_one_mask_only_are_the_jobs_and_no_more_than_its_cases() -> None:
    def check(apart: dict[str, OneSided], *, classes: int = 3) -> None:
        told = Evaluation(scores={"hd95": 1.0}, one_sided=apart)
        per_case = ("hd95", "hd95 left", "hd95 right") if classes > 2 else ("hd95",)
        scores = Scores("A", 3, {"test": {"hd95": 1.0}}, evaluations={"test": told})
        ranges = dict.fromkeys(per_case, (0.0, 9.0))
        check_scores(scores, round_=3, metrics=ranges, counts={"test": 3}, n_classes=classes, per_case=per_case)

    check({"left": OneSided(missed=1, invented=2), "right": OneSided(missed=3)})
    check({"prostate": OneSided(missed=3)}, classes=2)
    for apart, classes, reason in (
        ({"left": OneSided(missed=2, invented=2)}, 3, "4 cases of left, the part has 3"),
        ({"liver": OneSided(missed=1)}, 3, "names liver"),
        ({"one": OneSided(missed=1), "two": OneSided(missed=1)}, 2, "has 2 classes"),
    ):
        with pytest.raises(Rejected, match=reason):
            check(apart, classes=classes)


def test_personal_scores_need_a_method_that_fine_tunes() -> None:
    own = Scores("A", 3, {}, personal={"test": {"dice": 1.0}})
    check_scores(own, round_=3, metrics={"dice": (0, 1)}, personal=True)
    with pytest.raises(Rejected) as caught:
        check_scores(own, round_=3, metrics={"dice": (0, 1)})
    assert caught.value.key == "scores.personal"


def test_a_comparison_with_local_models_must_fit_the_scores_beside_it() -> None:
    good = LocalComparison(score="dice", n=3, federated=0.5, local=0.25, round=2, verdict="open", interval=(0.1, 0.4))

    def check(told: LocalComparison, *, local: bool = True) -> None:
        scores = Scores("A", 3, {"test": {"dice": 0.5}}, against_local=told)
        ranges = {"dice": (0.0, 1.0), "hd95": (0.0, 9.0)}
        check_scores(scores, round_=3, metrics=ranges, counts={"test": 3}, per_case=("dice", "hd95"), local=local)

    check(good)
    for changes, local, reason in (
        ({}, False, "is not expected"),
        ({"score": "hd95"}, True, "is not dice"),
        ({"federated": 0.75}, True, "differs from the score"),
        ({"local": 1.5}, True, "0 to 1"),
        ({"n": 4}, True, "4 cases"),
        ({"interval": (-2.0, 0.4)}, True, "a difference of -2"),
        ({"cases": [(0.5, 0.5), (0.5, -0.75), (0.5, 1.0)]}, True, "holds -0.75"),
    ):
        with pytest.raises(Rejected, match=reason):
            check(good.model_copy(update=changes), local=local)
