"""Scores of a classifier for each class: how it ranks cases that have it above those that have not, and decides.

**Scores** of a class: area under the ROC curve (``auroc``), average precision (``auprc``); of the decisions at a
threshold ``f1`` and ``balanced_accuracy``; ``sensitivity`` at a second threshold, that of a given specificity. They are
scikit-learn's. A class that lacks cases with it or cases without it has none of them. The average over classes is over
those that have both; so it depends on which classes a site has, and is to be read beside how many cases each has.

**Thresholds** are chosen on other cases (validation), of `GRID`: they are the same numbers at every site, and not the
probability of any case. Of the thresholds with the highest balanced accuracy the middle one is taken; for a specificity
the lowest that has it.

**Intervals** are 95 % percentile-bootstrap intervals. Subjects are drawn, each with all its cases. Draws without cases
of both kinds are left out. There is no interval where all draws agree, as of a perfect ranking: they are no
evidence that other cases would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedshift.schema.evaluation import CONFIDENCE, ClassScores
from fedshift.tasks.evaluation.calibration import Calibration
from fedshift.tasks.evaluation.spread import ENOUGH, FEWEST, RESAMPLES

OF_RANKS = ("auroc", "auprc")
SCORES = (*OF_RANKS, "f1", "balanced_accuracy", "sensitivity")
GRID = 1 / (1 + np.exp(-np.arange(-100, 101) / 10))
"""Thresholds that can be chosen: even steps of the log-odds, since rare findings have small probabilities."""
PLAIN = 0.5
"""The threshold where validation cannot choose one."""
MOST_POINTS = 200
"""Of a ROC curve that is sent."""
Intervals = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Threshold:
    """From which probability on a class is said to be there.

    ``chosen``: whether validation chose ``decision``. ``specific``: the one of the wanted specificity, None if
    validation has no case without the class.
    """

    decision: float = PLAIN
    chosen: bool = False
    specific: float | None = None


def choose(truth: np.ndarray, probability: np.ndarray, *, specificity: float) -> Threshold:
    """Thresholds of a class by cases (n,): whether they have it (1, 0, NaN if unknown) and its probability."""
    known = ~np.isnan(truth)
    has, value = truth[known] == 1, probability[known]
    above = value[None] >= GRID[:, None]
    specific = None
    if (~has).any():
        rates = (~above[:, ~has]).mean(1)
        enough = np.flatnonzero(rates >= specificity)
        specific = float(GRID[enough[0]]) if len(enough) else 1.0
    if not has.any() or has.all():
        return Threshold(specific=specific)
    balanced = above[:, has].mean(1) + (~above[:, ~has]).mean(1)
    best = np.flatnonzero(balanced == balanced.max())
    return Threshold(float(GRID[best[len(best) // 2]]), True, specific)


def rank_scores(truth: np.ndarray, probability: np.ndarray) -> dict[str, float]:
    """``auroc`` and ``auprc`` of a class over cases (n,); none if it lacks cases of either kind."""
    from sklearn import metrics  # takes about a second

    known = ~np.isnan(truth)
    has, value = truth[known] == 1, probability[known]
    if not has.any() or has.all():
        return {}
    # Sums of shares, which rounding may take beyond 1.
    return {
        "auroc": min(float(metrics.roc_auc_score(has, value)), 1.0),
        "auprc": min(float(metrics.average_precision_score(has, value)), 1.0),
    }


def scores_of(
    truth: np.ndarray, probability: np.ndarray, decided: np.ndarray, specific: np.ndarray | None
) -> dict[str, float]:
    """`SCORES` of a class over cases (n,): ``decided`` and, more carefully, ``specific`` are said to have it."""
    from sklearn import metrics

    scores = rank_scores(truth, probability)
    if not scores:
        return {}
    known = ~np.isnan(truth)
    has = truth[known] == 1
    scores["f1"] = float(metrics.f1_score(has, decided[known]))
    scores["balanced_accuracy"] = float(metrics.balanced_accuracy_score(has, decided[known]))
    if specific is not None:
        scores["sensitivity"] = float(metrics.recall_score(has, specific[known]))
    return scores


def average(of_classes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each score over the classes that have it."""
    known = {name: [scores[name] for scores in of_classes if name in scores] for name in SCORES}
    return {name: float(np.mean(values)) for name, values in known.items() if values}


# --- intervals ----------------------------------------------------------------------------------------------------


def weighted(
    truth: np.ndarray,
    probability: np.ndarray,
    decided: np.ndarray,
    specific: np.ndarray | None,
    weights: np.ndarray,
) -> dict[str, np.ndarray]:
    """`scores_of` for each of several weightings of the cases, (R, n); NaN where one leaves a kind of case out."""
    has, lacks = truth == 1, truth == 0
    order = np.argsort(-probability, kind="stable")
    ranked = probability[order]
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # cases of one probability are one step
    hits, misses = ((weights * kind)[:, order].cumsum(1)[:, ends] for kind in (has, lacks))
    positives, negatives = hits[:, -1], misses[:, -1]
    more_hits, more_misses = (np.diff(steps, axis=1, prepend=0) for steps in (hits, misses))
    with np.errstate(invalid="ignore", divide="ignore"):
        both = np.where((positives > 0) & (negatives > 0), 1.0, np.nan)
        area = (more_misses * (hits - more_hits / 2)).sum(1)
        precision = np.where(hits + misses > 0, hits / (hits + misses), 0)
        right, wrong, clear = (weights @ (a & b) for a, b in ((has, decided), (lacks, decided), (lacks, ~decided)))
        result = {
            "auroc": both * area / (positives * negatives),
            "auprc": np.minimum(both * (more_hits * precision).sum(1) / positives, 1),
            "f1": both * 2 * right / (positives + right + wrong),
            "balanced_accuracy": both * (right / positives + clear / negatives) / 2,
        }
        if specific is not None:
            result["sensitivity"] = both * (weights @ (has & specific)) / positives
    return result


def intervals(
    truth: np.ndarray,
    probability: np.ndarray,
    decided: np.ndarray,
    specific: Sequence[np.ndarray | None],
    *,
    subjects: Sequence[object] | np.ndarray,
    seed: int,
) -> tuple[list[Intervals], Intervals]:
    """95 % intervals of the scores of each class, and of their averages over classes.

    Args:
        truth: (n, K), 1, 0 or NaN.
        probability: (n, K).
        decided: (n, K) bool.
        specific: (n,) bool of each class, or None.
        subjects: whose each case is.
        seed: of the draws.
    """
    n, n_classes = truth.shape
    _, whose = np.unique(np.array(subjects), return_inverse=True)
    count = int(whose.max()) + 1
    if count < ENOUGH:
        return [{} for _ in range(n_classes)], {}
    rng = np.random.default_rng(seed)
    rows = max(1, 2_000_000 // n)
    drawn: dict[str, list[np.ndarray]] = {name: [] for name in SCORES}
    for start in range(0, RESAMPLES, rows):
        size = min(rows, RESAMPLES - start)
        weights = rng.multinomial(count, np.full(count, 1 / count), size=size)[:, whose].astype(np.float64)
        each = [weighted(truth[:, k], probability[:, k], decided[:, k], specific[k], weights) for k in range(n_classes)]
        lacking = np.full(size, np.nan)
        for name in SCORES:
            drawn[name].append(np.stack([scores.get(name, lacking) for scores in each], 1))
    values = {name: np.concatenate(parts) for name, parts in drawn.items()}
    of_class = [_between({name: values[name][:, k] for name in SCORES}) for k in range(n_classes)]
    return of_class, _between({name: _mean_known(values[name]) for name in SCORES})


def _mean_known(values: np.ndarray) -> np.ndarray:
    """The mean over the last axis of what is not NaN."""
    known = ~np.isnan(values)
    total = np.where(known, values, 0).sum(1)
    return np.where(known.any(1), total / np.maximum(known.sum(1), 1), np.nan)


def _between(values: Mapping[str, np.ndarray]) -> Intervals:
    tail = (1 - CONFIDENCE) / 2
    kept = {name: drawn[~np.isnan(drawn)] for name, drawn in values.items()}
    ends = {name: np.quantile(drawn, (tail, 1 - tail)) for name, drawn in kept.items() if len(drawn) >= RESAMPLES / 2}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items() if low < high}


# --- what a site tells --------------------------------------------------------------------------------------------


def records(
    names: Sequence[str],
    truth: np.ndarray,
    probability: np.ndarray,
    decided: np.ndarray,
    thresholds: Sequence[Threshold],
    *,
    by_threshold: bool,
    subjects: Sequence[object] | np.ndarray,
    seed: int,
    share_cases: bool,
) -> tuple[dict[str, ClassScores], dict[str, float], Intervals]:
    """What a site tells of each class, the averages over classes, and their intervals.

    Args:
        names: of the classes, (K,).
        truth: (n, K), 1, 0 or NaN.
        probability: (n, K).
        decided: (n, K) bool.
        thresholds: of each class.
        by_threshold: whether ``decided`` is by them, and not by the most likely class.
        subjects: whose each case is.
        seed: of the bootstrap.
        share_cases: whether scores of single cases may leave. If not, ROC curves do not, and intervals and
            calibration of a class only if `FEWEST` cases have it and as many have not.
    """
    specific = [
        None if threshold.specific is None else probability[:, k] >= threshold.specific
        for k, threshold in enumerate(thresholds)
    ]
    of_class, of_average = intervals(truth, probability, decided, specific, subjects=subjects, seed=seed)
    class_scores: dict[str, ClassScores] = {}
    for k, name in enumerate(names):
        known = ~np.isnan(truth[:, k])
        has, detected = truth[known, k] == 1, decided[known, k]
        scores = scores_of(truth[:, k], probability[:, k], decided[:, k], specific[k])
        hides = not share_cases and min(has.sum(), (~has).sum()) < FEWEST
        reliability = Calibration()
        reliability.add(probability[known, k].astype(np.float64), has)
        class_scores[name] = ClassScores(
            positives=int(has.sum()),
            negatives=int((~has).sum()),
            scores=scores,
            intervals={} if hides else {key: ends for key, ends in of_class[k].items() if key in scores},
            threshold=thresholds[k].decision if by_threshold else None,
            chosen=by_threshold and thresholds[k].chosen,
            specific=thresholds[k].specific,
            detected=int((has & detected).sum()),
            invented=int((~has & detected).sum()),
            roc=_curve(has, probability[known, k]) if share_cases and scores else None,
            calibration=None if hides else reliability.record(fewest=1 if share_cases else FEWEST),
        )
    means = average([each.scores for each in class_scores.values()])
    n_few = not share_cases and len(truth) < FEWEST
    return class_scores, means, {} if n_few else {name: ends for name, ends in of_average.items() if name in means}


def _curve(has: np.ndarray, probability: np.ndarray) -> list[tuple[float, float]]:
    """The ROC curve's points (1 - specificity, sensitivity)."""
    from sklearn import metrics

    wrong, right, _ = metrics.roc_curve(has, probability)
    kept = np.unique(np.linspace(0, len(wrong) - 1, min(len(wrong), MOST_POINTS)).round().astype(int))
    return [(float(wrong[i]), float(right[i])) for i in kept]
