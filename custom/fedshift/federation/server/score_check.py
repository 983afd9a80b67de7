"""Check the scores that a site reports for a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isclose

from fedshift.federation.server.update_check import MOST_SAMPLES, Rejected, check_metrics
from fedshift.federation.site.scoring import SCORED, SCORED_IF_HELD_OUT
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.guarantee import RiskCurves
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Scores
from fedshift.schema.paired import LocalComparison
from fedshift.tasks.base import Task


def check_scores(
    scores: Scores, job: JobSpec, task: Task, *, round_: int, counts: Mapping[str, int], fine_tunes: bool = False
) -> None:
    """Check a site's scores of the aggregate of ``round_``; raises `Rejected` with the first fault.

    ``counts``: the samples that the site has registered for each split. ``fine_tunes``: whether sites that train
    fine-tune the model and score it again.
    """
    held_out = scores.site in job.task.held_out
    metrics, parts = task.metrics, SCORED_IF_HELD_OUT if held_out else SCORED
    if scores.personal and (held_out or not fine_tunes):
        raise Rejected("scores.personal", "is not expected: no method of the job fine-tunes")
    if scores.round != round_:
        raise Rejected("round", f"scores of round {scores.round} came instead of those of round {round_}")
    if scores.reference is not None:
        scans = scores.reference.fingerprint
        if held_out or not job.evaluation.reference:
            raise Rejected("reference", "is not expected: the job does not ask the site for it")
        if (scans.site, scans.dataset) != (scores.site, job.task.dataset):
            raise Rejected("reference", f"is of site {scans.site} of data set {scans.dataset}")
    if scores.risks is not None:
        if job.evaluation.guarantee is None:
            raise Rejected("risks", "are not expected: the job does not ask for them")
        _check_risks(scores.risks, job, task, held_out=held_out, counts=counts)
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
        if evaluation.gradient_norm is not None and not job.evaluation.gradient_norm:
            raise Rejected(f"{key}.gradient_norm", "is not expected: the job does not ask for it")
        if part == "val" and evaluation != Evaluation(scores=evaluation.scores, gradient_norm=evaluation.gradient_norm):
            raise Rejected(key, "has details of validation cases, which are not asked for")
        most = counts.get(part, MOST_SAMPLES)
        _check_evaluation(key, evaluation, task, most=most, n_classes=len(job.task.classes))
        _check_classes(key, evaluation, task, most=most, names=job.task.classes)
    if scores.against_local is not None:
        if held_out or not job.evaluation.local:
            raise Rejected("against_local", "is not expected: the job does not ask this site for it")
        used = (scores.personal or scores.values).get("test", {})
        _check_comparison(scores.against_local, used, task, most=counts.get("test", MOST_SAMPLES))
        other = set(scores.against_local.classes) - set(job.task.classes if not task.dense else ())
        if other:
            raise Rejected("against_local.classes", f"names {min(other)}, which is no class that this task scores")


def _check_risks(risks: RiskCurves, job: JobSpec, task: Task, *, held_out: bool, counts: Mapping[str, int]) -> None:
    """Check that risk curves are of the job's structures or classes, and of no more cases than there are."""
    if held_out and risks.calibration:
        raise Rejected("risks.calibration", "is not expected of a site that is held out")
    names = job.task.structures if task.dense else job.task.classes
    parts = {"calibration": (risks.calibration, "val"), "tested": (risks.tested, "all" if held_out else "test")}
    for part, (curves, split) in parts.items():
        most = counts.get(split, MOST_SAMPLES)
        for name, curve in curves.items():
            if name not in names:
                raise Rejected(f"risks.{part}", f"names {name}, which is nothing that this task predicts")
            if (curve.false is not None) != task.dense:
                raise Rejected(f"risks.{part}.{name}", "has other curves than tasks of this kind")
            if curve.n > most:
                raise Rejected(f"risks.{part}.{name}", f"has {curve.n} subjects, the part has {most} samples")


def _check_comparison(comparison: LocalComparison, used: Mapping[str, float], task: Task, *, most: int) -> None:
    """Check a comparison with a site's own model; ``used`` are the federated model's scores in the same answer."""
    score = next(iter(task.per_case), "")
    if comparison.score != score:
        raise Rejected("against_local.score", f"is not {score}, by which models are compared")
    low, high = task.metrics[score]
    pairs = [value for pair in comparison.cases or () for value in pair]
    for value in (comparison.federated, comparison.local, *pairs):
        if not low <= value <= high:
            raise Rejected("against_local", f"holds {value:g}, allowed is {low:g} to {high:g}")
    for value in (*(comparison.quantiles or ()), *(comparison.interval or ())):
        if abs(value) > high - low:
            raise Rejected("against_local", f"holds a difference of {value:g}, allowed is at most {high - low:g}")
    if comparison.n > most:
        raise Rejected("against_local", f"has {comparison.n} cases, the part has {most} samples")
    if used.get(score) != comparison.federated:
        raise Rejected("against_local.federated", "differs from the score in the same answer")


def _check_classes(key: str, evaluation: Evaluation, task: Task, *, most: int, names: Collection[str]) -> None:
    """Check the scores of single classes, and the intervals of averages over them."""
    for name, ends in evaluation.intervals.items():
        low, high = task.metrics.get(name, (0, 0))
        if name not in evaluation.scores or not low <= ends[0] <= ends[1] <= high:
            raise Rejected(f"{key}.intervals.{name}", "is of no score that was sent, or beyond its range")
    for name, class_scores in (evaluation.classes or {}).items():
        if task.dense or name not in names:
            raise Rejected(f"{key}.classes", f"names {name}, which is no class that this task scores")
        if class_scores.positives + class_scores.negatives > most:
            raise Rejected(
                f"{key}.classes.{name}",
                f"has {class_scores.positives + class_scores.negatives} cases, the part has {most} samples",
            )
        if (
            not class_scores.scores.keys() <= task.metrics.keys()
            or not class_scores.intervals.keys() <= class_scores.scores.keys()
        ):
            raise Rejected(f"{key}.classes.{name}", "has a score that is not expected")


def _check_evaluation(key: str, evaluation: Evaluation, task: Task, *, most: int, n_classes: int) -> None:
    """Check ranges, that there are no more cases than samples, and that a score is the mean of its cases."""
    metrics, per_case = task.metrics, task.per_case
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
    for name, one_sided in (evaluation.one_sided or {}).items():
        if n_classes > 2 and f"dice {name}" not in per_case:
            raise Rejected(f"{key}.one_sided", f"names {name}, which is no class of the job's")
        if one_sided.cases > most:
            raise Rejected(f"{key}.one_sided", f"has {one_sided.cases} cases of {name}, the part has {most} samples")
    if len(evaluation.one_sided or {}) >= max(n_classes, 1):
        raise Rejected(f"{key}.one_sided", f"has {len(evaluation.one_sided or {})} classes")
    if evaluation.confusion is not None:
        total = sum(map(sum, evaluation.confusion))
        if len(evaluation.confusion) != n_classes or total > most:
            raise Rejected(f"{key}.confusion", f"has {len(evaluation.confusion)} classes and {total} samples")
        right = sum(row[number] for number, row in enumerate(evaluation.confusion))
        if not isclose(right, evaluation.scores.get("accuracy", 0.0) * total, abs_tol=1e-6 * (1 + total)):
            raise Rejected(f"{key}.confusion", "has another accuracy than the score")
