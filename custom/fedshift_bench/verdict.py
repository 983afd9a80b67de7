"""Whether the order of rows that a paper claims is confirmed, refuted or undecided, in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Literal

from fedshift.reporting.p_values import exact_p
from fedshift_bench.columns import Block, blocks, summary
from fedshift_bench.guess import below_guess
from fedshift_bench.measures import measure
from fedshift_bench.ranks import holm
from fedshift_bench.record import Comparison
from fedshift_bench.significance import FEWEST, Paired, paired_test

ALPHA = 0.05
NO_DIFFERENCE = "no difference found"
TOO_FEW = f"a test needs {FEWEST} seeds"
NO_RUNS = "without runs of both"
NO_BETTER = "rows end no better than the image-free guess"
Outcome = Literal["confirmed", "refuted", "undecided"]


@dataclass(frozen=True)
class Judged:
    """A claim that ``higher`` is above ``lower``; ``told`` are the figures, ``why`` is for an undecided one.

    ``p`` is that of its test and ``p_holm`` is corrected for all claims of the comparison; None without a test.
    """

    higher: str
    lower: str
    block: str
    outcome: Outcome
    told: str = ""
    why: str = ""
    p: float | None = None
    p_holm: float | None = None

    def __str__(self) -> str:
        block = f" at {self.block}" if self.block else ""
        return f"{self.higher} above {self.lower}{block}{f' ({self.told})' if self.told else ''}"


def claims_of(comparison: Comparison) -> list[tuple[Block, str, str]]:
    """The claimed orders, (block, higher, lower): the spec's, or of the tested rows as their published averages are."""
    if comparison.claims:
        return [(block, higher, lower) for block in blocks(comparison) for higher, lower in comparison.claims]
    return [
        (block, *((row, against) if printed[row] > printed[against] else (against, row)))
        for block in blocks(comparison)
        for printed in (_printed(comparison, block),)
        for row, against in comparison.tests
        if row in printed and against in printed and printed[row] != printed[against]
    ]


def _printed(comparison: Comparison, block: Block) -> dict[str, float]:
    """The published average over sites of each row: as printed, or of the block's sites if all of them are."""
    values = {(one.row, one.column): float(one.value) for one in comparison.published if one.value}
    sites = [block.name(site) for site in block.own or block.held_out]
    found = {}
    for row in comparison.axes[next(iter(comparison.axes))]:
        for columns in ([block.name("average")], [block.key], sites):
            if all((row, column) in values for column in columns):
                found[row] = fmean(values[row, column] for column in columns)
                break
    return found


def judged(comparison: Comparison) -> list[Judged]:
    """Each claimed order by its paired test: p below `ALPHA` in the claimed direction confirms it.

    The p that decides is corrected for the number of claims (Holm), of which those without a test count as p = 1: a run
    that failed was tried too. Of a cross-validation, the p over folds has to be below `ALPHA` too, and where there are
    scores of single cases, that over cases. Rows that are no better than the image-free guess decide nothing.
    """
    claims = claims_of(comparison)
    tests = [paired_test(comparison, *claim) for claim in claims]
    found = [None if test is None else test.largest_p for test in tests]
    corrected = holm([1.0 if p is None else p for p in found])
    return [
        _judge(comparison, claim, test, None if p is None else adjusted)
        for claim, test, p, adjusted in zip(claims, tests, found, corrected, strict=True)
    ]


def _judge(comparison: Comparison, claim: tuple[Block, str, str], test: Paired | None, p_holm: float | None) -> Judged:
    shown, (block, higher, lower) = measure(comparison.metric), claim
    if test is None:
        return Judged(higher, lower, block.key, "undecided", why=NO_RUNS)
    told, p = shown.difference(test.difference), test.largest_p
    if p is None or p_holm is None:
        why = TOO_FEW if test.n < FEWEST else "differences that allow no test"
        return Judged(higher, lower, block.key, "undecided", told, why)
    told = f"{told}, p = {exact_p(p)}{_tested_over(test)}, Holm {exact_p(p_holm)}"
    outcome: Outcome = "undecided"
    why = NO_BETTER if below_guess(comparison, block) else NO_DIFFERENCE if p_holm >= ALPHA else ""
    if not why:
        outcome = "confirmed" if test.difference > 0 else "refuted"
    return Judged(higher, lower, block.key, outcome, told, why, p, p_holm)


def _tested_over(test: Paired) -> str:
    """What the pairs of the largest p are, where it is not that of the test itself."""
    p = test.largest_p
    if p == test.p:
        return ""
    if test.over_folds is not None and p == test.over_folds.p:
        return f" over {len(test.folds)} folds"
    assert test.over_cases is not None
    return f" over {test.over_cases.n} cases"


def same_way(comparison: Comparison) -> tuple[int, int]:
    """How many pairs of rows are ordered as their published averages are, and how many pairs there are."""
    same = pairs = 0
    first = next(iter(comparison.axes))
    for block in blocks(comparison):
        both = []
        for row, printed in _printed(comparison, block).items():
            cells = comparison.of({first: row, **block.labels})
            values = [value for cell in cells if (value := summary(comparison, cell, "average")) is not None]
            if values:
                both.append((printed, fmean(values)))
        for (one, ours), (other, theirs) in combinations(both, 2):
            if one != other:
                pairs += 1
                same += (one > other) == (ours > theirs) and ours != theirs
    return same, pairs


def verdict(comparison: Comparison) -> str:
    """One sentence on every claimed order, or on that of all published averages; empty if the paper claims none."""
    found = judged(comparison)
    if not found:
        same, pairs = same_way(comparison)
        why = TOO_FEW if len(comparison.seeds) < FEWEST else "no test was asked for"
        order = f"of {pairs} pairs of rows, {same} have averages in the paper's order"
        return f"Whether the paper's order holds is undecided ({why}): {order}." if pairs else ""
    parts = []
    for outcome in ("confirmed", "refuted", "undecided"):
        of_it = [one for one in found if one.outcome == outcome]
        for why in dict.fromkeys(one.why for one in of_it):
            listed = ", ".join(str(one) for one in of_it if one.why == why)
            parts.append(f"{outcome}{f' ({why})' if why else ''}: {listed}")
    corrected = f" after Holm's correction for {len(found)} claims" if len(found) > 1 else ""
    return f"What the paper claims, at p < {ALPHA}{corrected}: {'; '.join(parts)}."
