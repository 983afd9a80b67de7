"""Scores that no site could have measured are refused."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import small_image_job, small_job

from fedshift.federation.server.score_check import check_scores
from fedshift.federation.server.update_check import Rejected
from fedshift.schema.evaluation import ClassScores, Evaluation, OneSided
from fedshift.schema.messages import Scores
from fedshift.schema.paired import LocalComparison
from fedshift.tasks.kinds import build_task

COMPARISON = LocalComparison(score="dice", n=3, federated=0.5, local=0.25, round=2, verdict="open", interval=(0.1, 0.4))


def rejected_key(scores: Scores, *options: str, pictures: bool = False, **more: Any) -> str | None:
    """The key that is at fault; None if the scores are taken."""
    job = small_image_job("fedavg", *options) if pictures else small_job("fedavg", *options)
    try:
        check_scores(scores, job=job, task=build_task(job), round_=3, counts={"test": 3}, **more)
    except Rejected as fault:
        return fault.key
    return None


@pytest.mark.parametrize(
    ("round_", "values", "key"),
    [
        (3, {"val": {"dice": 0.5}, "test": {"dice": 1.0}}, None),
        (3, {}, None),
        (2, {"val": {"dice": 0.5}}, "round"),
        (3, {"train": {"dice": 0.5}}, "scores.train"),
        (3, {"val": {"dice": 1.5}}, "metrics.dice"),
        (3, {"val": {"dice": float("nan")}}, "metrics.dice"),
        (3, {"val": {"Case07": 0.5}}, "metrics.Case07"),
    ],
)
def test_scores_have_the_tasks_names_and_ranges(
    round_: int, values: dict[str, dict[str, float]], key: str | None
) -> None:
    assert rejected_key(Scores("HK", round_, values)) == key


@pytest.mark.parametrize(
    ("one_sided", "key"),
    [
        ({"prostate": OneSided(missed=1, invented=2)}, None),
        ({"prostate": OneSided(missed=2, invented=2)}, "evaluations.test.one_sided"),
        ({"one": OneSided(missed=1), "two": OneSided(missed=1)}, "evaluations.test.one_sided"),
    ],
)
def test_cases_with_one_empty_mask_are_no_more_than_there_are(one_sided: dict[str, OneSided], key: str | None) -> None:
    evaluation = Evaluation(scores={"dice": 1.0}, one_sided=one_sided)
    assert rejected_key(Scores("HK", 3, {"test": {"dice": 1.0}}, evaluations={"test": evaluation})) == key


def test_personal_scores_need_a_method_that_fine_tunes() -> None:
    personal = Scores("HK", 3, {}, personal={"test": {"dice": 1.0}})
    assert rejected_key(personal, fine_tunes=True) is None
    assert rejected_key(personal) == "scores.personal"


@pytest.mark.parametrize(
    ("changes", "option", "key"),
    [
        ({}, "true", None),
        ({}, "false", "against_local"),
        ({"score": "hd95"}, "true", "against_local.score"),
        ({"federated": 0.75}, "true", "against_local.federated"),
        ({"local": 1.5}, "true", "against_local"),
        ({"n": 4}, "true", "against_local"),
        ({"interval": (-2.0, 0.4)}, "true", "against_local"),
        ({"cases": [(0.5, 0.5), (0.5, -0.75), (0.5, 1.0)]}, "true", "against_local"),
    ],
)
def test_a_comparison_with_local_models_must_fit_the_scores_beside_it(
    changes: dict[str, Any], option: str, key: str | None
) -> None:
    scores = Scores("HK", 3, {"test": {"dice": 0.5}}, against_local=COMPARISON.model_copy(update=changes))
    assert rejected_key(scores, f"evaluation.local={option}") == key


DISC = ClassScores(positives=1, negatives=2, scores={"auroc": 0.5})


@pytest.mark.parametrize(
    ("told", "key"),
    [
        ({"classes": {"disc": DISC}}, None),
        ({"classes": {"disk": DISC}}, "evaluations.test.classes"),
        ({"classes": {"disc": DISC.model_copy(update={"negatives": 3})}}, "evaluations.test.classes.disc"),
        ({"classes": {"disc": DISC.model_copy(update={"scores": {"dice": 0.5}})}}, "evaluations.test.classes.disc"),
        ({"classes": {"disc": DISC.model_copy(update={"intervals": {"f1": (0, 1)}})}}, "evaluations.test.classes.disc"),
        ({"intervals": {"accuracy": (0.0, 1.0)}}, None),
        ({"intervals": {"accuracy": (0.0, 1.5)}}, "evaluations.test.intervals.accuracy"),
        ({"intervals": {"auroc": (0.0, 1.0)}}, "evaluations.test.intervals.auroc"),
    ],
)
def test_scores_of_classes_are_of_the_jobs_classes_and_of_no_more_cases(told: dict[str, Any], key: str | None) -> None:
    evaluation = Evaluation(scores={"accuracy": 1.0}, **told)
    scores = Scores("A", 3, {"test": {"accuracy": 1.0}}, evaluations={"test": evaluation})
    assert rejected_key(scores, "data.multi_label=true", pictures=True) == key
    scans = Scores("HK", 3, {"test": {"dice": 1.0}}, evaluations={"test": Evaluation(scores={"dice": 1.0}, **told)})
    assert ("classes" not in told) or rejected_key(scans) == "evaluations.test.classes"
