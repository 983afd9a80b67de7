"""Check the scores that a site reports for a model."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose

from fedshift.federation.server.update_check import MOST_SAMPLES, Ranges, Rejected, check_metrics
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.messages import Scores
from fedshift.schema.paired import LocalComparison


def check_scores(
    scores: Scores,
    *,
    round_: int,
    metrics: Ranges,
    parts: tuple[str, ...] = ("val", "test"),
    personal: bool = False,
    counts: Mapping[str, int] | None = None,
    gradient_norm: bool = False,
    n_classes: int = 0,
    per_case: tuple[str, ...] = (),
    local: bool = False,
    reference_of: str | None = None,
) -> None:
    """Check a site's scores of an aggregate.

    Args:
        scores: a site's answer.
        round_: the round whose aggregate is being scored.
        metrics: the task's scores and their ranges.
        parts: the splits on which a site scores the model.
        personal: whether sites fine-tune the model and score it again.
        counts: the number of samples that the site has registered for each split.
        gradient_norm: whether the job asks for the gradient norm.
        n_classes: number of the task's classes.
        per_case: names of the scores that every case has.
        local: whether the site compares the model with one that it trains alone.
        reference_of: the data set of which the site may tell sums over its scans; None if the job does not ask it to.

    Raises:
        Rejected: the first fault found.
    """
    if scores.personal and not personal:
        raise Rejected("scores.personal", "is not expected: no method of the job fine-tunes")
    if scores.round != round_:
        raise Rejected("round", f"scores of round {scores.round} came instead of those of round {round_}")
    if scores.reference is not None:
        told = scores.reference.fingerprint
        if reference_of is None:
            raise Rejected("reference", "is not expected: the job does not ask the site for it")
        if (told.site, told.dataset) != (scores.site, reference_of):
            raise Rejected("reference", f"is of site {told.site} of data set {told.dataset}")
    for splits in (scores.values, scores.personal):
        for split, values in splits.items():
            if split not in parts:
                raise Rejected(f"scores.{split}", "is not a split that sites score")
            check_metrics(values, metrics)
    reported = {
        f"evaluations.{part}": (evaluation, part, scores.values) for part, evaluation in scores.evaluations.items()
    }
    if scores.personal_evaluation is not None:
        reported["personal_evaluation"] = (scores.personal_evaluation, "test", scores.personal)
    for key, (evaluation, part, values_by_part) in reported.items():
        if part not in parts:
            raise Rejected(key, "is not a split that sites score")
        if evaluation.scores != values_by_part.get(part):
            raise Rejected(f"{key}.scores", "differ from the scores in the same answer")
        most = (counts or {}).get(part, MOST_SAMPLES)
        if evaluation.gradient_norm is not None and not gradient_norm:
            raise Rejected(f"{key}.gradient_norm", "is not expected: the job does not ask for it")
        if part == "val" and evaluation != Evaluation(scores=evaluation.scores, gradient_norm=evaluation.gradient_norm):
            raise Rejected(key, "has details of validation cases, which are not asked for")
        _check_evaluation(key, evaluation, metrics, most=most, n_classes=n_classes, per_case=per_case)
    if scores.against_local is not None:
        if not local:
            raise Rejected("against_local", "is not expected: the job does not ask this site for it")
        most = (counts or {}).get("test", MOST_SAMPLES)
        used = (scores.personal or scores.values).get("test", {})
        _check_comparison(scores.against_local, used, metrics, most=most, score=next(iter(per_case), ""))


def _check_comparison(
    told: LocalComparison, used: Mapping[str, float], metrics: Ranges, *, most: int, score: str
) -> None:
    """Check a comparison with a site's own model; ``used`` are the federated model's scores in the same answer."""
    if told.score != score:
        raise Rejected("against_local.score", f"is not {score}, by which models are compared")
    low, high = metrics[score]
    pairs = [value for pair in told.cases or () for value in pair]
    for value in (told.federated, told.local, *pairs):
        if not low <= value <= high:
            raise Rejected("against_local", f"holds {value:g}, allowed is {low:g} to {high:g}")
    for value in (*(told.quantiles or ()), *(told.interval or ())):
        if abs(value) > high - low:
            raise Rejected("against_local", f"holds a difference of {value:g}, allowed is at most {high - low:g}")
    if told.n > most:
        raise Rejected("against_local", f"has {told.n} cases, the part has {most} samples")
    if used.get(score) != told.federated:
        raise Rejected("against_local.federated", "differs from the score in the same answer")


def _check_evaluation(
    key: str, evaluation: Evaluation, metrics: Ranges, *, most: int, n_classes: int, per_case: tuple[str, ...]
) -> None:
    """Check ranges, that there are no more cases than samples, and that a score is the mean of its cases."""
    for name, spread in evaluation.distributions.items():
        if name not in per_case:
            raise Rejected(f"{key}.distributions.{name}", "is not expected")
        low, high = metrics[name]
        for value in (spread.mean, *(spread.quantiles or ()), *(spread.interval or ()), *(spread.cases or ())):
            if not low <= value <= high:
                raise Rejected(f"{key}.distributions.{name}", f"holds {value:g}, allowed is {low:g} to {high:g}")
        if spread.n > most:
            raise Rejected(f"{key}.distributions.{name}", f"has {spread.n} cases, the part has {most} samples")
        if evaluation.scores.get(name) != spread.mean:
            raise Rejected(f"{key}.distributions.{name}", "has another mean than the score")
    if evaluation.empty is not None and evaluation.empty > most:
        raise Rejected(f"{key}.empty", f"is {evaluation.empty}, the part has {most} samples")
    for name, told in (evaluation.one_sided or {}).items():
        if n_classes > 2 and f"hd95 {name}" not in per_case:
            raise Rejected(f"{key}.one_sided", f"names {name}, which is no class of the job's")
        if told.cases > most:
            raise Rejected(f"{key}.one_sided", f"has {told.cases} cases of {name}, the part has {most} samples")
    if len(evaluation.one_sided or {}) >= max(n_classes, 1):
        raise Rejected(f"{key}.one_sided", f"has {len(evaluation.one_sided or {})} classes")
    if evaluation.confusion is not None:
        total = sum(map(sum, evaluation.confusion))
        if len(evaluation.confusion) != n_classes or total > most:
            raise Rejected(f"{key}.confusion", f"has {len(evaluation.confusion)} classes and {total} samples")
        right = sum(row[number] for number, row in enumerate(evaluation.confusion))
        if not isclose(right, evaluation.scores.get("accuracy", 0.0) * total, abs_tol=1e-6 * (1 + total)):
            raise Rejected(f"{key}.confusion", "has another accuracy than the score")
