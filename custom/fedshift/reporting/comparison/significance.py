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
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fedshift.reporting.comparison.columns import Block, blocks, main_sites, p_value, site_score, summary
from fedshift.reporting.comparison.ranks import signed_rank
from fedshift.reporting.comparison.record import CellRecord, Comparison

FEWEST = 3
"""Pairs needed for a test: with two there is one degree of freedom, and p says next to nothing."""
CONFIDENCE = 0.95
"""Of the interval of a mean difference."""


@dataclass(frozen=True)
class TTest:
    """A two-sided paired t-test: its statistic, its p, and the 95 % interval of the mean difference."""

    t: float
    p: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Paired:
    """A two-sided paired test, of ``n`` pairs whose mean difference is ``difference``.

    With pairs of folds it is a signed-rank test, ``folds`` are those that have pairs, and ``over_folds`` is the t-test
    of their averages; otherwise it is ``over_pairs``. ``p`` is None with fewer than `FEWEST` pairs (that differ), and
    of a t-test with constant differences.
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

    @property
    def largest_p(self) -> float | None:
        """The more cautious p-value; None without a test."""
        return None if self.p is None else max(self.p, self.over_folds.p if self.over_folds else 0.0)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean difference, by the t-test over pairs or over folds; None without one.

        Where folds lack sites that others have, the mean of their averages is not that of all pairs, and there is none.
        """
        found = self.over_pairs or self.over_folds
        if found is None or not math.isclose(sum(found.interval) / 2, self.difference, abs_tol=1e-9):
            return None
        return found.interval


def paired_tests(comparison: Comparison) -> list[Paired]:
    """All tests of a comparison in every block; tests without pairs are omitted."""
    return [
        found
        for block in blocks(comparison)
        for row, against in comparison.tests
        if (found := paired_test(comparison, block, row, against)) is not None
    ]


def paired_test(comparison: Comparison, block: Block, row: str, against: str) -> Paired | None:
    """The test of one row against another in a block; None without pairs."""
    first = next(iter(comparison.axes))
    labels = [{first: label, **block.labels} for label in (row, against)]
    by_fold = comparison.pairs == "sites_and_folds"
    if by_fold:
        scores = _of_folds(comparison, [comparison.of_folds(one) for one in labels])
    else:
        collect = _averages if comparison.pairs == "seeds" else _single_scores
        scores = [collect(comparison, comparison.of(one)) for one in labels]
    pairs = [pair for pair in scores[0] if pair in scores[1]]
    if not pairs:
        return None
    a, b = ([values[pair] for pair in pairs] for values in scores)
    difference = sum(x - y for x, y in zip(a, b, strict=True)) / len(pairs)
    shared = (row, against, block.key, len(pairs), difference)
    if by_fold:
        folds = tuple(sorted({fold for fold, _ in pairs}))
        averages = [[fmean(values[pair] for pair in pairs if pair[0] == fold) for fold in folds] for values in scores]
        return Paired(*shared, signed_rank(a, b), folds=folds, over_folds=t_test(*averages))
    found = t_test(a, b)
    return Paired(*shared, None if found is None else found.p, over_pairs=found)


def _of_folds(comparison: Comparison, rows: Sequence[Sequence[CellRecord]]) -> list[dict[tuple[int, str], float]]:
    """Scores by fold and site, each the mean over the seeds with which both rows have it."""
    found: list[dict[tuple[int, str, int], float]] = [
        {
            (cell.fold or 0, site, cell.seed): value
            for cell in cells
            for sites in main_sites(cell).values()
            for site in sites
            if (value := site_score(comparison, cell, site)) is not None
        }
        for cells in rows
    ]
    both = set.intersection(*(set(scores) for scores in found))
    pairs = list(dict.fromkeys((fold, site) for fold, site, _ in found[0] if (fold, site, _) in both))
    return [
        {pair: fmean(value for key, value in scores.items() if key[:2] == pair and key in both) for pair in pairs}
        for scores in found
    ]


def _averages(comparison: Comparison, cells: Sequence[CellRecord]) -> dict[tuple[int, str], float]:
    """The average over sites of each seed in which no site's score is missing."""
    averages = {(cell.seed, ""): summary(comparison, cell, "average") for cell in cells}
    return {pair: value for pair, value in averages.items() if value is not None}


def _single_scores(comparison: Comparison, cells: Sequence[CellRecord]) -> dict[tuple[int, str], float]:
    return {
        (cell.seed, site): value
        for cell in cells
        for sites in main_sites(cell).values()
        for site in sites
        if (value := site_score(comparison, cell, site)) is not None
    }


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
    spread = max(differences) - min(differences)
    if spread <= 1e-12 * max(map(abs, (*a, *b))):
        return None  # the differences are constant: t is undefined or infinite
    from scipy.stats import ttest_rel

    found = ttest_rel(a, b)
    interval = found.confidence_interval(CONFIDENCE)
    t, p, low, high = map(float, (found.statistic, found.pvalue, interval.low, interval.high))
    return TTest(t, p, (low, high)) if all(map(math.isfinite, (t, p, low, high))) else None
