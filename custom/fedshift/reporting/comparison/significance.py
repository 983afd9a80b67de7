"""Paired t-tests between rows, as in Tables 7 and 8 of FedRDN.

The paper tests each method against its own with a paired t-test over three trials and does not state what the pairs
are. Here a pair is a site and a seed: both rows' models, trained with that seed, are evaluated at that site. Pairs of
one seed share a model and are not independent, so p tends to be too small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedshift.reporting.comparison.columns import Block, blocks, main_sites, p_value, site_score
from fedshift.reporting.comparison.record import Comparison


@dataclass(frozen=True)
class Paired:
    """A two-sided paired t-test. ``t`` and ``p`` are None with fewer than two pairs or constant differences."""

    row: str
    against: str
    block: str
    n: int
    difference: float
    t: float | None
    p: float | None


def paired_tests(comparison: Comparison) -> list[Paired]:
    """All tests of a comparison in every block; tests without pairs are omitted."""
    return [
        found
        for block in blocks(comparison)
        for row, against in comparison.tests
        if (found := _test(comparison, block, row, against)) is not None
    ]


def _test(comparison: Comparison, block: Block, row: str, against: str) -> Paired | None:
    first = next(iter(comparison.axes))
    scores: list[dict[tuple[int, str], float]] = []
    for label in (row, against):
        cells = comparison.of({first: label, **block.labels})
        scores.append(
            {
                (cell.seed, site): value
                for cell in cells
                for sites in main_sites(cell).values()
                for site in sites
                if (value := site_score(comparison, cell, site)) is not None
            }
        )
    pairs = [pair for pair in scores[0] if pair in scores[1]]
    if not pairs:
        return None
    a, b = ([values[pair] for pair in pairs] for values in scores)
    t, p = t_test(a, b)
    difference = sum(x - y for x, y in zip(a, b, strict=True)) / len(pairs)
    return Paired(row, against, block.key, len(pairs), difference, t, p)


def printed_p(test: Paired, comparison: Comparison) -> str:
    """The published p-value as printed, given at either of the two rows; empty if there is none."""
    prefix = f"{test.block}/" if test.block else ""
    keys = {(test.row, prefix + p_value(test.against)), (test.against, prefix + p_value(test.row))}
    return next((value.value for value in comparison.published if (value.row, value.column) in keys), "")


def t_test(a: Sequence[float], b: Sequence[float]) -> tuple[float | None, float | None]:
    """The t statistic and two-sided p of paired values; None if they are undefined."""
    if len(a) < 2:
        return None, None
    differences = [x - y for x, y in zip(a, b, strict=True)]
    spread = max(differences) - min(differences)
    if spread <= 1e-12 * max(map(abs, (*a, *b))):
        return None, None  # the differences are constant: t is undefined or infinite
    from scipy.stats import ttest_rel

    found = ttest_rel(a, b)
    t, p = float(found.statistic), float(found.pvalue)
    return (t, p) if math.isfinite(t) and math.isfinite(p) else (None, None)
