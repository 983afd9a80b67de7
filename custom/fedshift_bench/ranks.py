"""Mean ranks of many methods, and which of them are not told apart (Demšar 2006).

Demšar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 7, 2006, sections 3.1.3 and 3.2.2: with N
blocks and k methods, r_ij is the rank of method j in block i, 1 being the best, and ties share their mean rank::

    R_j = 1/N Σ_i r_ij
    Friedman:   χ² of k - 1 degrees of freedom (with the correction for ties)
    Nemenyi:    CD = q_α √(k (k + 1) / 6N)      q_α: studentized range of k groups and ∞ degrees of freedom, by √2

Two methods whose mean ranks differ by less than CD are not told apart at the level α.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

FEWEST = 3
"""Blocks or pairs that a test needs: with fewer p says next to nothing."""
ALPHA = 0.05


@dataclass(frozen=True)
class Friedman:
    """Whether any method differs from another."""

    statistic: float
    p: float


def block_ranks(scores: np.ndarray, *, higher_is_better: bool) -> np.ndarray:
    """Rank methods in each block: (N, k) finite scores to (N, k) ranks, 1 for the best, the mean rank for ties."""
    from scipy.stats import rankdata

    ranks: np.ndarray = rankdata(-scores if higher_is_better else scores, axis=1)
    return ranks


def friedman(scores: np.ndarray) -> Friedman | None:
    """Friedman's test of (N, k) scores; None with fewer than three methods or blocks, or if all scores are equal."""
    blocks, methods = scores.shape
    if methods < 3 or blocks < FEWEST:
        return None
    from scipy.stats import friedmanchisquare

    with np.errstate(invalid="ignore", divide="ignore"):
        test = friedmanchisquare(*scores.T)
    statistic, p = float(test.statistic), float(test.pvalue)
    return Friedman(statistic, p) if math.isfinite(p) else None


def critical_difference(methods: int, blocks: int, *, alpha: float = ALPHA) -> float | None:
    """Nemenyi's critical difference of two mean ranks; None with fewer than two methods or three blocks."""
    if methods < 2 or blocks < FEWEST:
        return None
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - alpha, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * blocks))


def indistinct(means: Mapping[str, float], difference: float) -> list[tuple[str, ...]]:
    """The largest groups of two methods or more whose mean ranks all differ by less than ``difference``.

    The best come first, equal ranks by name.
    """
    names = sorted(means, key=lambda name: (means[name], name))
    groups: list[tuple[str, ...]] = []
    reached = 0
    for start, name in enumerate(names):
        end = start + sum(means[other] - means[name] < difference for other in names[start:])
        if end > max(reached, start + 1):
            groups.append(tuple(names[start:end]))
        reached = max(reached, end)
    return groups


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values for their number; None, a test that could not be made, does not count.

    Holm, "A Simple Sequentially Rejective Multiple Test Procedure", 1979: of m ordered p-values the i-th is multiplied
    by m - i + 1, and none is smaller than one before it.
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    steps = [min(p * (len(known) - number), 1.0) for number, (p, _) in enumerate(known)]
    adjusted = dict(zip((place for _, place in known), accumulate(steps, max), strict=True))
    return [adjusted.get(place) for place in range(len(p_values))]


def signed_rank(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Two-sided p of Wilcoxon's signed-rank test, zero differences split; None with fewer than three pairs that differ.

    Demšar's choice for two methods over several data sets, whose differences are not of one size.
    """
    differences = [x - y for x, y in zip(a, b, strict=True)]
    if sum(difference != 0 for difference in differences) < FEWEST:
        return None
    from scipy.stats import wilcoxon

    return float(wilcoxon(differences, zero_method="zsplit").pvalue)
