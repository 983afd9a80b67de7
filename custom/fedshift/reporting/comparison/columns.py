"""A comparison's columns: sites, and what sums them up, in a block for each choice of the further axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean, stdev

from fedshift.reporting.comparison.record import CellRecord, Comparison
from fedshift.reporting.comparison.spec import Part, Summary

MAX_SITES = 20
"""More are summed up only."""
SUMMED: dict[Summary, str] = {
    "average": "average",
    "held_out": "held out, average",
    "everywhere": "all sites",
    "spread": "std over sites",
}


@dataclass(frozen=True)
class Block:
    """One value of each axis but the first, and the sites that its rows have, in order."""

    labels: dict[str, str]
    own: list[str]
    held_out: list[str]

    @property
    def key(self) -> str:
        """``0.17``, or with several further axes ``0.17/bf16``; empty if there is only one axis."""
        return "/".join(self.labels.values())

    @property
    def sites(self) -> list[str]:
        """All, those that are held out last."""
        return [*self.own, *self.held_out]

    def name(self, column: str) -> str:
        """A column's key among all: ``FedFA/average``; of a block's average also the block's alone."""
        return f"{self.key}/{column}" if self.key else column


def blocks(comparison: Comparison) -> list[Block]:
    """All blocks of a comparison, in the order of its axes."""
    _, *further = comparison.axes
    found = []
    for chosen in product(*(comparison.axes[axis] for axis in further)):
        labels = dict(zip(further, chosen, strict=True))
        own: dict[str, None] = {}
        held_out: dict[str, None] = {}
        for cell in comparison.of(labels):
            own |= dict.fromkeys(site for part, sites in main(cell).items() for site in sites)
            held_out |= dict.fromkeys(extra(cell))
        found.append(Block(labels, list(own), list(held_out)))
    return found


def main(cell: CellRecord) -> dict[Part, list[str]]:
    """The sites that ``average`` is over: of the test or validation part, or those held out if there is no other."""
    own: dict[Part, list[str]] = {part: sites for part, sites in cell.shown.items() if part != "held_out"}
    return own or dict(cell.shown)


def extra(cell: CellRecord) -> list[str]:
    """The sites that are held out, beside others."""
    return cell.shown.get("held_out", []) if len(cell.shown) > 1 else []


def p_value(against: str) -> str:
    """The column of a paired test's p-value, in CSV and for published figures."""
    return f"p-value against {against}"


def column_keys(comparison: Comparison) -> list[str]:
    """Every column's key, by which published figures find it."""
    keys = []
    for block in blocks(comparison):
        keys += [block.name(column) for column in (*block.sites, *SUMMED)]
        keys += [block.key] if block.key else []
        keys += [block.name(p_value(label)) for pair in comparison.tests for label in pair]
    return list(dict.fromkeys(keys))


def site_score(comparison: Comparison, cell: CellRecord, site: str) -> float | None:
    """A cell's score at a site, or None."""
    return _found(comparison, cell).get(site)


def summary(comparison: Comparison, cell: CellRecord, what: Summary) -> float | None:
    """A cell's summary over its sites; None if a site is missing."""
    own = [site for sites in main(cell).values() for site in sites]
    sites: Sequence[str] = {"average": own, "held_out": extra(cell) or (own if "held_out" in cell.shown else [])}.get(
        what, [*own, *extra(cell)]
    )
    found = _found(comparison, cell)
    values = [found[site] for site in sites if site in found]
    if not values or len(values) < len(sites):
        return None
    if what == "spread":
        return stdev(values) if len(values) > 1 else None
    return fmean(values)


def _found(comparison: Comparison, cell: CellRecord) -> dict[str, float]:
    return {
        site: value
        for part in cell.shown
        for site, value in cell.found(comparison.model, part, comparison.metric).items()
        if site in cell.shown[part]
    }
