"""A comparison's columns, in one block for each combination of the further axes: sites, summaries, and their scores.

A block may have an image-free guess: a row of its own, and the least that rows must be above to be ranked.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from statistics import fmean, stdev

from fedshift.reporting import differences
from fedshift.reporting.known_scores import Better, Unit, known_score
from fedshift_bench.record import IMAGE_FREE, CellRecord, Comparison
from fedshift_bench.spec import PAIR_SEPARATOR, Summary

MAX_SITES = 20
"""With more sites, only the summaries are shown."""
SUMMARY_HEADINGS: dict[Summary, str] = {
    "average": "average",
    "held_out": "held out, average",
    "everywhere": "all sites",
    "spread": "std over sites",
}


@dataclass(frozen=True)
class Measure:
    """Unit and format of a score. With ``better`` None no value is printed in bold."""

    unit: Unit = "%"
    better: Better | None = "higher"

    @property
    def decimals(self) -> int:
        """Printed digits after the point."""
        return {"%": 1, "": 3}.get(self.unit, 2)

    @property
    def unit_text(self) -> str:
        """The unit as text for a heading."""
        if self.unit == "%":
            return "in percent"
        return f"in {self.unit}, lower is better" if self.unit else ""

    def scaled(self, value: float) -> float:
        """The value in the unit of the tables."""
        return 100 * value if self.unit == "%" else value

    def text(self, value: float) -> str:
        """The value as printed in tables, without unit."""
        return f"{self.scaled(value):.{self.decimals}f}"

    def points(self, value: float) -> str:
        """A difference of two values without a plus (`fedshift.reporting.differences`)."""
        return differences.points(self.scaled(value), decimals=self.decimals)

    def difference(self, value: float) -> str:
        """As `points`, with a sign."""
        return differences.signed(self.scaled(value), decimals=self.decimals).replace("-", "−")


def measure(name: str) -> Measure:
    """The format of a score, which may be one class's. An unknown one is a fraction of 1, and higher is better."""
    known = known_score(name)
    return Measure() if known is None else Measure(known.unit, known.better)


@dataclass(frozen=True)
class Block:
    """One value of each axis except the first, and the sites of its rows in order."""

    labels: dict[str, str]
    main: list[str]
    held_out: list[str]

    @property
    def key(self) -> str:
        """``0.17``, or ``0.17/bf16`` with several further axes; empty if there is only one axis."""
        return "/".join(self.labels.values())

    @property
    def sites(self) -> list[str]:
        """All sites, held-out sites last."""
        return [*self.main, *self.held_out]

    def name(self, column: str) -> str:
        """A column's key in the whole comparison, such as ``0.17/average``."""
        return f"{self.key}/{column}" if self.key else column


def blocks(comparison: Comparison) -> list[Block]:
    """All blocks of a comparison in the order of its axes."""
    _, *further = comparison.axes
    all_blocks = []
    for chosen in product(*(comparison.axes[axis] for axis in further)):
        labels = dict(zip(further, chosen, strict=True))
        cells = comparison.cells_with(labels)
        main = dict.fromkeys(site for cell in cells for sites in cell.main_sites.values() for site in sites)
        held_out = dict.fromkeys(site for cell in cells for site in cell.extra_sites)
        all_blocks.append(Block(labels, list(main), list(held_out)))
    return all_blocks


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


def site_scores(comparison: Comparison, cell: CellRecord) -> dict[str, float]:
    """A cell's scores by site, over all its scored parts."""
    return {
        site: value
        for part in cell.shown
        for site, value in cell.site_scores(comparison.model, part, comparison.metric).items()
        if site in cell.shown[part]
    }


def main_scores(comparison: Comparison, cell: CellRecord) -> dict[str, float]:
    """As `site_scores`, of the sites that ``average`` covers."""
    scores = site_scores(comparison, cell)
    return {site: scores[site] for sites in cell.main_sites.values() for site in sites if site in scores}


def summary(comparison: Comparison, cell: CellRecord, what: Summary) -> float | None:
    """A summary of a cell over its sites; None if a site's score is missing."""
    main, held_out = [site for sites in cell.main_sites.values() for site in sites], cell.extra_sites
    if what == "held_out":
        sites = held_out or (main if "held_out" in cell.shown else [])
    else:
        sites = main if what == "average" else [*main, *held_out]
    scores = site_scores(comparison, cell)
    values = [scores[site] for site in sites if site in scores]
    if not values or len(values) < len(sites):
        return None
    if what == "spread":
        return stdev(values) if len(values) > 1 else None
    return fmean(values, weights=[_samples(cell, site) for site in sites] if comparison.average == "samples" else None)


def averages(comparison: Comparison, row: str, block: Block) -> list[float]:
    """The average over sites of each finished cell of a row that has one."""
    cells = [cell for cell in comparison.row_cells(row, block.labels) if cell.is_done]
    return [value for cell in cells if (value := summary(comparison, cell, "average")) is not None]


def _samples(cell: CellRecord, site: str) -> int:
    """Number of samples that a site's score is of; of ``A > B`` those of B."""
    counts = cell.data[site.rpartition(PAIR_SEPARATOR)[2]].n
    parts = [part for part, sites in cell.shown.items() if site in sites]
    return sum(counts.values()) if parts == ["held_out"] else counts.get(parts[0], 0)


def guess_cell(comparison: Comparison, block: Block) -> CellRecord | None:
    """The guess as a cell of the block, with its scores as those of the model that is shown; None without one."""
    for cell in comparison.cells_with(block.labels):
        guess = cell.scores.get(IMAGE_FREE, {})
        if any(comparison.metric in metrics for sites in guess.values() for metrics in sites.values()):
            return cell.model_copy(update={"scores": {comparison.model: guess}})
    return None


def below_guess(comparison: Comparison, block: Block) -> str:
    """Why the rows of a block are not ranked: half of them or more end no better than the guess. Empty if they are."""
    cell, shown = guess_cell(comparison, block), measure(comparison.metric)
    guess = None if cell is None else summary(comparison, cell, "average")
    if guess is None or shown.better is None:
        return ""
    means = [fmean(values) for row in comparison.rows if (values := averages(comparison, row, block))]
    sign = 1 if shown.better == "higher" else -1
    n_below = sum(sign * (mean - guess) <= 0 for mean in means)
    if not means or 2 * n_below < len(means):
        return ""
    return (
        f"Rows are not ranked{f' at {block.key}' if block.key else ''}: {n_below} of {len(means)} end no better than "
        f"the image-free guess ({shown.text(guess)}), which looks at no image."
    )
