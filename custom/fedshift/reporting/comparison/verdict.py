"""Whether the order of rows that a paper claims is confirmed, refuted or undecided, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Literal

from fedshift.reporting.comparison.columns import Block, blocks, summary
from fedshift.reporting.comparison.measures import measure
from fedshift.reporting.comparison.record import Comparison
from fedshift.reporting.comparison.significance import FEWEST, paired_test
from fedshift.reporting.p_values import exact_p

ALPHA = 0.05
NO_DIFFERENCE = "no difference found"
TOO_FEW = f"a test needs {FEWEST} seeds"
NO_RUNS = "without runs of both"
Outcome = Literal["confirmed", "refuted", "undecided"]


@dataclass(frozen=True)
class Judged:
    """A claim that ``higher`` is above ``lower``; ``told`` are the figures, ``why`` is for an undecided one."""

    higher: str
    lower: str
    block: str
    outcome: Outcome
    told: str = ""
    why: str = ""
    has_test: bool = False

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

    Of a cross-validation, the p over folds has to be below it too.
    """
    return list(_judge(comparison))


def _judge(comparison: Comparison) -> Iterator[Judged]:
    shown = measure(comparison.metric)
    for block, higher, lower in claims_of(comparison):
        test = paired_test(comparison, block, higher, lower)
        if test is None:
            yield Judged(higher, lower, block.key, "undecided", why=NO_RUNS)
            continue
        told = shown.difference(test.difference)
        p = test.largest_p
        if p is None:
            why = TOO_FEW if test.n < FEWEST else "differences that allow no test"
            yield Judged(higher, lower, block.key, "undecided", told, why)
            continue
        told = f"{told}, p = {exact_p(p)}{'' if p == test.p else f' over {len(test.folds)} folds'}"
        if p >= ALPHA:
            yield Judged(higher, lower, block.key, "undecided", told, NO_DIFFERENCE, has_test=True)
        else:
            outcome: Outcome = "confirmed" if test.difference > 0 else "refuted"
            yield Judged(higher, lower, block.key, outcome, told, has_test=True)


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
    tests = sum(one.has_test for one in found)
    corrected = f", which is not corrected for {tests} tests" if tests > 1 else ""
    return f"What the paper claims, at p < {ALPHA}{corrected}: {'; '.join(parts)}."
