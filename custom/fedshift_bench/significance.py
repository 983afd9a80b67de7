"""Tests between rows: paired tests of two, and mean ranks of many.

Pairs (`Comparison.pairs`): as in Tables 7 and 8 of FedRDN a pair is a seed, with the averages over sites of both rows'
models. With ``sites_and_seeds`` each site of each seed is a pair; those of one seed are scores of one model and not
independent, so p tends to be too small. In a cross-validation, where every case is tested once, a pair of
``sites_and_folds`` is a site's test part of a fold, averaged over seeds: other patients in each, but few, and
differences far from normal, so the test is Wilcoxon's. Pairs of a fold share a model and folds share training cases, so
p tends to be too small; beside it is a t-test over folds, each the average over sites. Where both rows have scores of
single cases, Wilcoxon's test over cases stands beside either: seeds say what another training would give, patients what
other patients would.

The smallest detectable difference is the true one that a paired t-test finds at the 5 % level with a power of 80 %, by
the noncentral t distribution with the standard deviation that was seen.

Ranks: Demšar, "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 7, 2006, sections 3.1.3 and 3.2.2:
with N blocks and k methods, r_ij is the rank of method j in block i, 1 being the best, and ties share their mean rank::

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
from statistics import fmean
from typing import Any

import numpy as np

from fedshift_bench.columns import Block, blocks, main_scores, p_value, summary
from fedshift_bench.record import CellRecord, Comparison

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
    """The largest groups of two methods or more whose mean ranks differ by less than ``difference``, the best first."""
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


CONFIDENCE = 0.95
"""Of the interval of a mean difference."""
POWER = 0.8
"""Of the smallest detectable difference."""
PairScores = dict[tuple[Any, ...], float]
"""A row's scores by what its pairs are: fold, site, place in the site's manifest, seed."""


@dataclass(frozen=True)
class TTest:
    """A two-sided paired t-test, the 95 % interval of the mean difference and the smallest detectable difference."""

    t: float
    p: float
    interval: tuple[float, float]
    smallest: float


@dataclass(frozen=True)
class OverCases:
    """Wilcoxon's signed-rank test whose pairs are cases, each the mean over seeds; None if too few differ."""

    n: int
    p: float | None


@dataclass(frozen=True)
class Paired:
    """A two-sided paired test of ``n`` pairs: over pairs, or a signed-rank test of folds with a t-test beside it.

    ``p`` is None with fewer than `FEWEST` pairs (that differ), and of a t-test with constant differences.
    """

    row: str
    against: str
    block: str
    n: int
    difference: float
    p: float | None
    over_pairs: TTest | None = None
    folds: tuple[int, ...] = ()
    over_folds: TTest | None = None
    over_cases: OverCases | None = None

    @property
    def largest_p(self) -> float | None:
        """The most cautious p-value; None without a test of pairs, as cases say nothing of other trainings."""
        others = [test.p or 0.0 for test in (self.over_folds, self.over_cases) if test is not None]
        return None if self.p is None else max(self.p, *others, 0.0)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean difference."""
        return None if self.interval_test is None else self.interval_test.interval

    @property
    def smallest(self) -> float | None:
        """The smallest detectable difference."""
        return None if self.interval_test is None else self.interval_test.smallest

    @property
    def interval_test(self) -> TTest | None:
        """The t-test over pairs or folds; None where folds lack sites, as their mean is not that of all pairs."""
        test = self.over_pairs or self.over_folds
        if test is None or not math.isclose(sum(test.interval) / 2, self.difference, abs_tol=1e-9):
            return None
        return test


def paired_tests(comparison: Comparison) -> list[Paired]:
    """All tests of a comparison in every block; tests without pairs are omitted."""
    tests = [paired_test(comparison, block, *pair) for block in blocks(comparison) for pair in comparison.tests]
    return [test for test in tests if test is not None]


def paired_test(comparison: Comparison, block: Block, row: str, against: str) -> Paired | None:
    """The test of one row against another in a block; None without pairs."""
    labels = [{comparison.row_axis: label, **block.labels} for label in (row, against)]
    if comparison.pairs == "sites_and_folds":
        ours, theirs = _fold_scores(comparison, [comparison.fold_cells(each) for each in labels])
    else:
        collect = _averages if comparison.pairs == "seeds" else _single_scores
        ours, theirs = (collect(comparison, comparison.cells_with(each)) for each in labels)
    pairs = [pair for pair in ours if pair in theirs]
    if not pairs:
        return None
    a, b = [ours[pair] for pair in pairs], [theirs[pair] for pair in pairs]
    difference = sum(x - y for x, y in zip(a, b, strict=True)) / len(pairs)
    shared = (row, against, block.key, len(pairs), difference)
    over_cases = _over_cases(comparison, labels)
    if comparison.pairs == "sites_and_folds":
        folds = tuple(sorted({fold for fold, _ in pairs}))
        over_folds = t_test(
            *([fmean(row[pair] for pair in pairs if pair[0] == fold) for fold in folds] for row in (ours, theirs))
        )
        return Paired(*shared, signed_rank(a, b), folds=folds, over_folds=over_folds, over_cases=over_cases)
    test = t_test(a, b)
    return Paired(*shared, None if test is None else test.p, over_pairs=test, over_cases=over_cases)


def _over_cases(comparison: Comparison, labels: Sequence[Mapping[str, str]]) -> OverCases | None:
    """The test over cases; None where a cell of either row has no scores of them."""
    ours, theirs = (_case_scores(comparison, comparison.fold_cells(each)) for each in labels)
    if not ours or not theirs or ours.keys() != theirs.keys():
        return None
    a, b = _mean_by_start(ours, 3), _mean_by_start(theirs, 3)
    return OverCases(len(a), signed_rank(list(a.values()), [b[place] for place in a]))


def _case_scores(comparison: Comparison, cells: Sequence[CellRecord]) -> PairScores:
    """Scores by fold, site, place in the site's manifest, and seed; empty where a finished cell lacks a site's."""
    scores: PairScores = {}
    for cell in (cell for cell in cells if cell.is_done):
        for part, sites in cell.main_sites.items():
            by_site = cell.case_scores(comparison.model, part)
            for site in sites:
                if site not in by_site:
                    return {}
                scores |= {(cell.fold or 0, site, place, cell.seed): v for place, v in enumerate(by_site[site])}
    return scores


def _fold_scores(comparison: Comparison, rows: Sequence[Sequence[CellRecord]]) -> list[PairScores]:
    """Scores by fold and site, each the mean over the seeds with which both rows have it."""
    ours, theirs = (
        {(cell.fold or 0, site, cell.seed): v for cell in cells for site, v in main_scores(comparison, cell).items()}
        for cells in rows
    )
    return [_mean_by_start({key: row[key] for key in ours if key in theirs}, 2) for row in (ours, theirs)]


def _mean_by_start(scores: PairScores, n: int) -> PairScores:
    groups: dict[tuple[Any, ...], list[float]] = {}
    for key, value in scores.items():
        groups.setdefault(key[:n], []).append(value)
    return {key: fmean(values) for key, values in groups.items()}


def _averages(comparison: Comparison, cells: Sequence[CellRecord]) -> PairScores:
    """The average over sites of each seed in which no site's score is missing."""
    averages = {(cell.seed, ""): summary(comparison, cell, "average") for cell in cells}
    return {pair: value for pair, value in averages.items() if value is not None}


def _single_scores(comparison: Comparison, cells: Sequence[CellRecord]) -> PairScores:
    return {(cell.seed, site): v for cell in cells for site, v in main_scores(comparison, cell).items()}


def printed_p(test: Paired, comparison: Comparison) -> str:
    """The published p-value as printed, given at either of the two rows; empty if there is none."""
    prefix = f"{test.block}/" if test.block else ""
    keys = {(test.row, prefix + p_value(test.against)), (test.against, prefix + p_value(test.row))}
    return next((value.value for value in comparison.published if (value.row, value.column) in keys), "")


def t_test(a: Sequence[float], b: Sequence[float]) -> TTest | None:
    """The t-test of paired values; None with fewer than `FEWEST` pairs, or if all differences are equal."""
    if len(a) < FEWEST:
        return None
    differences = [x - y for x, y in zip(a, b, strict=True)]
    if max(differences) - min(differences) <= 1e-12 * max(map(abs, (*a, *b))):
        return None  # the differences are constant: t is undefined or infinite
    from scipy.stats import ttest_rel

    test = ttest_rel(a, b)
    interval = test.confidence_interval(CONFIDENCE)
    t, p, low, high = map(float, (test.statistic, test.pvalue, interval.low, interval.high))
    if not all(map(math.isfinite, (t, p, low, high))):
        return None
    return TTest(t, p, (low, high), smallest=(high - low) / 2 * _detectable(len(a)))


def _detectable(n: int) -> float:
    """The smallest detectable difference of n pairs in halves of the interval; power in the wrong direction is none."""
    from scipy.optimize import brentq
    from scipy.stats import nct
    from scipy.stats import t as student

    limit = float(student.ppf((1 + CONFIDENCE) / 2, n - 1))
    return float(brentq(lambda shift: POWER - float(nct.sf(limit, n - 1, shift)), 0, 2 * limit)) / limit
