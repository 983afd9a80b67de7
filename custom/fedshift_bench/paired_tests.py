"""Paired tests between rows: t-tests as in Tables 7 and 8 of FedRDN, and for cross-validations Wilcoxon's.

The paper compares "each method and our method" by a paired t-test over three trials, beside the means and standard
deviations of the trials' averages over clients. So a pair is a seed here: the averages over sites of both rows' models
that were trained with it (`Comparison.pairs`). With ``sites_and_seeds`` each site of each seed is a pair, which gives
many more pairs; but those of one seed are scores of one model and are not independent, so p tends to be too small.

In a cross-validation every case is tested once. With ``sites_and_folds`` a pair is a site's test part of a fold: other
patients in each, so that pairs share no test case; scores are first averaged over seeds. Differences are of few cases
each and far from normal, so the test is Wilcoxon's signed-rank test. Pairs of one fold are scores of one model, and the
models of two folds share training cases, so that p tends to be too small. Beside it is therefore the p of a paired
t-test over folds, each the average over sites: few pairs, without the first of these two faults.

Where both rows have scores of single cases (scans of patients), Wilcoxon's signed-rank test over cases stands beside
either: a pair is a case, each row's score the mean over seeds, so that a patient counts once. Seeds say what another
training would give, patients what other patients would.

The smallest detectable difference is the true one that a paired t-test finds at the 5 % level with a power of 80 %, by
the noncentral t distribution, where differences of pairs have the standard deviation of those that were seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedshift_bench.cell_record import CellRecord
from fedshift_bench.columns import Block, blocks, main_scores, p_value, summary
from fedshift_bench.ranks import FEWEST, signed_rank
from fedshift_bench.record import Comparison

CONFIDENCE = 0.95
"""Of the interval of a mean difference."""
POWER = 0.8
"""Of the smallest detectable difference."""
PairScores = dict[tuple[Any, ...], float]
"""A row's scores by what its pairs are: fold, site, place in the site's manifest, seed."""


@dataclass(frozen=True)
class TTest:
    """A two-sided paired t-test: its statistic, its p, and the 95 % interval of the mean difference.

    ``smallest`` is the smallest true difference that such a test finds (p < 0.05) in four of five repetitions.
    """

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
    """A two-sided paired test, of ``n`` pairs whose mean difference is ``difference``.

    With pairs of folds it is a signed-rank test, ``folds`` are those that have pairs, and ``over_folds`` is the t-test
    of their averages; otherwise it is ``over_pairs``. ``p`` is None with fewer than `FEWEST` pairs (that differ), and
    of a t-test with constant differences. ``over_cases`` is there if both rows have scores of single cases.
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
        """The 95 % interval of the mean difference, by the t-test over pairs or over folds; None without one.

        Where folds lack sites that others have, the mean of their averages is not that of all pairs, and there is none.
        """
        return None if self._t_test is None else self._t_test.interval

    @property
    def smallest(self) -> float | None:
        """The smallest detectable difference (`TTest.smallest`), by the same t-test."""
        return None if self._t_test is None else self._t_test.smallest

    @property
    def _t_test(self) -> TTest | None:
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
    """The mean of all scores whose keys begin with the same ``n`` values."""
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
    """The smallest detectable difference of n pairs as a multiple of half of the interval, from the noncentral t.

    Of the power only the part in the true direction counts: the other one adds nothing there.
    """
    from scipy.optimize import brentq
    from scipy.stats import nct
    from scipy.stats import t as student

    limit = float(student.ppf((1 + CONFIDENCE) / 2, n - 1))
    return float(brentq(lambda shift: POWER - float(nct.sf(limit, n - 1, shift)), 0, 2 * limit)) / limit
