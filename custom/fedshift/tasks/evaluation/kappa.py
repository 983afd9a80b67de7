"""Quadratic weighted kappa: how well two readers agree on grades in order, 1 for always, 0 for as by chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedshift.schema.evaluation import CONFIDENCE
from fedshift.tasks.evaluation.spread import ENOUGH, RESAMPLES


def kappa(truth: np.ndarray, predicted: np.ndarray) -> float | None:
    """Of grades (n,), from 0; None if all cases have one grade and the model says no other."""
    from sklearn import metrics  # takes about a second

    if len(np.union1d(truth, predicted)) < 2:
        return None
    return float(metrics.cohen_kappa_score(truth, predicted, weights="quadratic"))


def kappa_interval(
    truth: np.ndarray, predicted: np.ndarray, *, subjects: Sequence[object] | np.ndarray, seed: int
) -> tuple[float, float] | None:
    """95 % percentile-bootstrap interval over subjects, each drawn with all its cases; None for fewer than `ENOUGH`.

    With weights (i - j)², 1 - kappa is the mean squared difference of the grades over the one of independent grades:
    the sum of both variances and of the squared difference of the means.
    """
    _, whose = np.unique(np.array(subjects), return_inverse=True)
    count = int(whose.max()) + 1
    if count < ENOUGH:
        return None
    a, b = truth.astype(np.float64), predicted.astype(np.float64)
    terms = np.stack([np.ones(len(a)), a, b, a * a, b * b, (a - b) ** 2])
    of_subject = np.stack([np.bincount(whose, term, count) for term in terms], 1)
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    n, *sums = (draws @ of_subject).T
    mean_a, mean_b, square_a, square_b, apart = (total / n for total in sums)
    by_chance = square_a + square_b - 2 * mean_a * mean_b
    known = by_chance > 0
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(1 - apart[known] / by_chance[known], (tail, 1 - tail))
    return float(low), float(high)
