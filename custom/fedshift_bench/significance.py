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

from fedshift_bench.cell_record import CellRecord
from fedshift_bench.columns import Block, blocks, main_sites, p_value, site_score, summary
from fedshift_bench.ranks import signed_rank
from fedshift_bench.record import Comparison

FEWEST = 3
"""Pairs needed for a test: with two there is one degree of freedom, and p says next to nothing."""
CONFIDENCE = 0.95
"""Of the interval of a mean difference."""
POWER = 0.8
"""Of the smallest detectable difference."""


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
    over_cases: OverCases | None = None
    """Where both rows have scores of single cases."""

    @property
    def largest_p(self) -> float | None:
        """The most cautious p-value; None without a test of pairs, as cases say nothing of other trainings."""
        others = (self.over_folds, self.over_cases)
        return None if self.p is None else max(self.p, *(one.p or 0.0 for one in others if one is not None), 0.0)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean difference, by the t-test over pairs or over folds; None without one.

        Where folds lack sites that others have, the mean of their averages is not that of all pairs, and there is none.
        """
        found = self._t_test
        return None if found is None else found.interval

    @property
    def smallest(self) -> float | None:
        """The smallest detectable difference (`TTest.smallest`), by the same t-test."""
        found = self._t_test
        return None if found is None else found.smallest

    @property
    def _t_test(self) -> TTest | None:
        found = self.over_pairs or self.over_folds
        if found is None or not math.isclose(sum(found.interval) / 2, self.difference, abs_tol=1e-9):
            return None
        return found


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
    over_cases = _over_cases(comparison, labels)
    if by_fold:
        folds = tuple(sorted({fold for fold, _ in pairs}))
        averages = [[fmean(values[pair] for pair in pairs if pair[0] == fold) for fold in folds] for values in scores]
        over_folds = t_test(*averages)
        return Paired(*shared, signed_rank(a, b), folds=folds, over_folds=over_folds, over_cases=over_cases)
    found = t_test(a, b)
    return Paired(*shared, None if found is None else found.p, over_pairs=found, over_cases=over_cases)


def _over_cases(comparison: Comparison, labels: Sequence[Mapping[str, str]]) -> OverCases | None:
    """The test over cases; None where a cell of either row has no scores of them."""
    rows = [_of_cases(comparison, comparison.of_folds(one)) for one in labels]
    if any(not row for row in rows) or rows[0].keys() != rows[1].keys():
        return None
    means = [{place: fmean(row[key] for key in keys) for place, keys in _by_place(row).items()} for row in rows]
    a, b = ([scores[place] for place in means[0]] for scores in means)
    return OverCases(len(a), signed_rank(a, b))


def _of_cases(comparison: Comparison, cells: Sequence[CellRecord]) -> dict[tuple[int, str, int, int], float]:
    """Scores by fold, site, place in the site's manifest, and seed; empty where a finished cell lacks a site's."""
    found: dict[tuple[int, str, int, int], float] = {}
    for cell in cells:
        for part, sites in main_sites(cell).items() if cell.state == "done" else ():
            by_site = cell.case_scores(comparison.model, part)
            for site in sites:
                if site not in by_site:
                    return {}
                found |= {(cell.fold or 0, site, place, cell.seed): value for place, value in enumerate(by_site[site])}
    return found


def _by_place(
    scores: Mapping[tuple[int, str, int, int], float],
) -> dict[tuple[int, str, int], list[tuple[int, str, int, int]]]:
    found: dict[tuple[int, str, int], list[tuple[int, str, int, int]]] = {}
    for key in scores:
        found.setdefault(key[:3], []).append(key)
    return found


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
    if not all(map(math.isfinite, (t, p, low, high))):
        return None
    return TTest(t, p, (low, high), smallest=(high - low) / 2 * _detectable(len(a)))


def _detectable(n: int) -> float:
    """The smallest detectable difference of n pairs as a multiple of half of the interval, from the noncentral t."""
    from scipy.optimize import brentq
    from scipy.stats import nct
    from scipy.stats import t as student

    limit = float(student.ppf((1 + CONFIDENCE) / 2, n - 1))

    def lacking(shift: float) -> float:
        """Of the power, in the true direction: the other one adds nothing there."""
        return POWER - float(nct.sf(limit, n - 1, shift))

    return float(brentq(lacking, 0, 2 * limit)) / limit
