"""A comparison's columns: sites and summaries, in one block for each combination of the further axes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from statistics import fmean, stdev

from fedshift_bench.cell_record import CellRecord
from fedshift_bench.record import Comparison
from fedshift_bench.spec import PAIR_SEPARATOR, ScoredPart, Summary

MAX_SITES = 20
"""With more sites, only the summaries are shown."""
SUMMARY_HEADINGS: dict[Summary, str] = {
    "average": "average",
    "held_out": "held out, average",
    "everywhere": "all sites",
    "spread": "std over sites",
}


@dataclass(frozen=True)
class Block:
    """One value of each axis except the first, and the sites of its rows in order."""

    labels: dict[str, str]
    own: list[str]
    held_out: list[str]

    @property
    def key(self) -> str:
        """``0.17``, or ``0.17/bf16`` with several further axes; empty if there is only one axis."""
        return "/".join(self.labels.values())

    @property
    def sites(self) -> list[str]:
        """All sites, held-out sites last."""
        return [*self.own, *self.held_out]

    def name(self, column: str) -> str:
        """A column's key in the whole comparison, such as ``0.17/average``."""
        return f"{self.key}/{column}" if self.key else column


def blocks(comparison: Comparison) -> list[Block]:
    """All blocks of a comparison in the order of its axes."""
    _, *further = comparison.axes
    made = []
    for chosen in product(*(comparison.axes[axis] for axis in further)):
        labels = dict(zip(further, chosen, strict=True))
        own: dict[str, None] = {}
        held_out: dict[str, None] = {}
        for cell in comparison.of(labels):
            own |= dict.fromkeys(site for part, sites in main_sites(cell).items() for site in sites)
            held_out |= dict.fromkeys(extra_sites(cell))
        made.append(Block(labels, list(own), list(held_out)))
    return made


def main_sites(cell: CellRecord) -> dict[ScoredPart, list[str]]:
    """The sites that ``average`` covers: those of the test or validation part, or the held-out sites if alone."""
    own: dict[ScoredPart, list[str]] = {part: sites for part, sites in cell.shown.items() if part != "held_out"}
    return own or dict(cell.shown)


def extra_sites(cell: CellRecord) -> list[str]:
    """The held-out sites, if the cell has other sites too."""
    return cell.shown.get("held_out", []) if len(cell.shown) > 1 else []


def p_value(against: str) -> str:
    """The name of a p-value's column, in CSV files and for published values."""
    return f"p-value against {against}"


def column_keys(comparison: Comparison) -> list[str]:
    """The keys of all columns, which published values refer to."""
    keys = []
    for block in blocks(comparison):
        keys += [block.name(column) for column in (*block.sites, *SUMMARY_HEADINGS)]
        keys += [block.key] if block.key else []
        keys += [block.name(p_value(label)) for pair in comparison.tests for label in pair]
    return list(dict.fromkeys(keys))


def site_score(comparison: Comparison, cell: CellRecord, site: str) -> float | None:
    """A cell's score at a site, if it has one."""
    return _scores(comparison, cell).get(site)


def summary(comparison: Comparison, cell: CellRecord, what: Summary) -> float | None:
    """A summary of a cell over its sites; None if a site's score is missing."""
    own = [site for sites in main_sites(cell).values() for site in sites]
    held_out = extra_sites(cell)
    if what == "average":
        sites = own
    elif what == "held_out":
        sites = held_out or (own if "held_out" in cell.shown else [])
    else:
        sites = [*own, *held_out]
    scores = _scores(comparison, cell)
    values = [scores[site] for site in sites if site in scores]
    if not values or len(values) < len(sites):
        return None
    if what == "spread":
        return stdev(values) if len(values) > 1 else None
    return fmean(values, weights=[_samples(cell, site) for site in sites] if comparison.average == "samples" else None)


def _samples(cell: CellRecord, site: str) -> int:
    """Number of samples that a site's score is of; of ``A > B`` those of B."""
    counts = cell.data[site.rpartition(PAIR_SEPARATOR)[2]].n
    parts = [part for part, sites in cell.shown.items() if site in sites]
    return sum(counts.values()) if parts == ["held_out"] else counts.get(parts[0], 0)


def _scores(comparison: Comparison, cell: CellRecord) -> dict[str, float]:
    """A cell's scores by site, over all its scored parts."""
    return {
        site: value
        for part in cell.shown
        for site, value in cell.site_scores(comparison.model, part, comparison.metric).items()
        if site in cell.shown[part]
    }
