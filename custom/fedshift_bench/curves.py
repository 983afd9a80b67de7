"""A comparison's scores over rounds: a CSV file, and a figure with one line per row of the table.

The figure is of test samples if the jobs have test scores of rounds (``evaluation.every``), otherwise of validation.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from fedshift.schema.files import csv_text
from fedshift_bench.columns import Block, blocks, measure
from fedshift_bench.notes import notes
from fedshift_bench.record import CellRecord, Comparison
from fedshift_bench.tables import title_with_scale
from fedshift_bench.templates import write_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

CSV_FILE, SVG_FILE = "curves.csv", "curves.svg"
MIN_ROUNDS = 2
"""Rounds needed for a line."""
_FIRST_ROUNDS = 0.2
"""Share of the rounds whose scores the figure's axis may leave out, so that the lines can be told apart afterwards."""
_MIN_STRETCH = 2.0
"""They are left out if the other rounds are drawn at least this many times as large."""
_SIDE_BY_SIDE = 3
_WIDTH, _HEIGHT, _LEGEND_LINE = 400, 300, 17
"""Size of a panel and height of a legend line, in pixels."""


@dataclass(frozen=True)
class Line:
    """A row's mean over the finished seeds, in the unit of the tables; ``stds`` (n - 1) are None with one seed."""

    rounds: list[int]
    means: list[float]
    stds: list[float] | None

    @property
    def band(self) -> tuple[list[float], list[float]]:
        """The means less and more a standard deviation."""
        stds = self.stds or [0.0] * len(self.means)
        both = list(zip(self.means, stds, strict=True))
        return [mean - std for mean, std in both], [mean + std for mean, std in both]


def curves_csv(comparison: Comparison) -> str:
    """CSV text with one line per round, part and cell; rounds without a score are skipped."""
    rows: list[list[object]] = []
    for cell in comparison.cells_with({}):
        shown = measure(cell.metric)
        for part, scores in (("val", cell.curve), ("test", cell.test_curve)):
            for number, value in enumerate(scores, 1):
                if value is not None:
                    values = [cell.seed, number, f"{shown.scaled(value):.6g}", shown.unit, cell.metric, part]
                    rows.append([*cell.labels.values(), *values])
    return csv_text([*comparison.axes, "seed", "round", "score", "unit", "metric", "part"], rows)


def shows_test(comparison: Comparison) -> bool:
    """Whether all cells with scores of rounds have them on test samples, so that the figure shows these."""
    scored = [cell for cell in comparison.cells if cell.curve]
    return bool(scored) and all(cell.test_curve for cell in scored)


def line(cells: Sequence[CellRecord], *, test: bool = False) -> Line | None:
    """The line of cells that differ only in their seed, over the rounds in which all finished cells have a score.

    None if these are fewer than `MIN_ROUNDS`. With ``test`` scores are of test samples.
    """
    curves = [(measure(cell.metric), cell.test_curve if test else cell.curve) for cell in cells]
    curves = [(shown, values) for shown, values in curves if any(value is not None for value in values)]
    rounds, means, stds = [], [], []
    for number, scores in enumerate(zip(*(values for _, values in curves), strict=False), 1):
        values = [shown.scaled(v) for (shown, _), v in zip(curves, scores, strict=True) if v is not None]
        if len(values) == len(curves):
            rounds.append(number)
            means.append(fmean(values))
            stds.append(stdev(values) if len(values) > 1 else 0.0)
    return Line(rounds, means, stds if len(curves) > 1 else None) if len(rounds) >= MIN_ROUNDS else None


def axis_limits(lines: Sequence[Line]) -> tuple[float, float] | None:
    """The range of scores that a panel shows; None if it shows all.

    In the first rounds scores rise from near zero, which presses the rest of the lines onto each other. If the scores
    after the first fifth of the rounds take up half of the whole range or less, only these are shown.
    """
    means = [value for row in lines for value in row.means]
    skipped = _FIRST_ROUNDS * max(row.rounds[-1] for row in lines)
    later: list[float] = []
    for row in lines:
        for number, *bounds in zip(row.rounds, *row.band, strict=True):
            # A line that ends within the first rounds stays whole.
            if number > skipped or row.rounds[-1] <= skipped:
                later += bounds
    low, high = min(later), max(later)
    if high == low or max(means) - min(means) < _MIN_STRETCH * (high - low):
        return None
    margin = 0.05 * (high - low)
    return low - margin, high + margin


def curves_svg(comparison: Comparison) -> str | None:
    """The figure as SVG, one panel per combination of the further axes; None if no row has scores in two rounds."""
    from matplotlib.lines import Line2D

    from fedshift.reporting import figures

    rows, test = comparison.rows, shows_test(comparison)
    panels: list[tuple[Block, dict[str, Line]]] = []
    for block in blocks(comparison):
        row_lines = {row: line(comparison.row_cells(row, block.labels), test=test) for row in rows}
        lines = {row: drawn for row, drawn in row_lines.items() if drawn is not None}
        if lines:
            panels.append((block, lines))
    if not panels:
        return None
    shown = [row for row in rows if any(row in lines for _, lines in panels)]
    columns = min(len(panels), _SIDE_BY_SIDE)
    panel_rows = -(-len(panels) // columns)
    width = columns * _WIDTH + 10 + 7 * min(max(map(len, shown)), 40)
    title = _title(comparison, columns * _WIDTH)
    height = max(panel_rows * _HEIGHT, len(shown) * _LEGEND_LINE) + 16 * title.count("\n") + 30
    with figures.drawing(width, height, rows=panel_rows, columns=columns) as (drawn, axes):
        for place, (block, lines) in zip(axes, panels, strict=False):
            _panel(place, comparison, block, {rows.index(row): drawn for row, drawn in lines.items()})
        for place in axes[len(panels) :]:
            place.set_visible(False)
        drawn.suptitle(title, fontsize=11, x=0.01, ha="left")
        drawn.legend(
            handles=[_style_line(Line2D([], []), rows.index(row)) for row in shown],
            # Matplotlib omits labels that start with an underscore.
            labels=[f" {name}" if name.startswith("_") else name for name in (textwrap.shorten(r, 44) for r in shown)],
            loc="outside right upper",
            frameon=False,
            fontsize=10,
            title=comparison.row_axis,
            alignment="left",
        )
        return figures.standalone(drawn, "curves", title.replace("\n", " "))


def write_curves(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``curves.csv`` and ``curves.svg`` if any row has scores in two rounds, and return their paths."""
    svg = curves_svg(comparison)
    if svg is None:
        return []
    return write_files(folder, {CSV_FILE: curves_csv(comparison), SVG_FILE: svg})


def _title(comparison: Comparison, width: int) -> str:
    """The figure's title, with a note if data are simulated; wrapped to ``width`` pixels."""
    seeds = len(comparison.seeds)
    what = f"Score on {'test' if shows_test(comparison) else 'validation'} samples after each round, mean over sites"
    what += f" and {seeds} seeds; band: sample standard deviation over seeds" if seeds > 1 else "; one seed"
    phantom = [note for note in notes(comparison) if "phantom" in note]
    lines = [title_with_scale(comparison.title, comparison.scale), f"{what}.", *phantom]
    return "\n".join(part for text in lines for part in textwrap.wrap(text, max(width // 8, 40)))


def _panel(axes: Axes, comparison: Comparison, block: Block, lines: Mapping[int, Line]) -> None:
    """Draw one panel. The keys of ``lines`` are row numbers, which set colour and marker in all panels."""
    from fedshift.reporting import figures

    for number, row in lines.items():
        mark_every = max(len(row.rounds) // 8, 1)
        (drawn,) = axes.plot(row.rounds, row.means, markevery=(number % mark_every, mark_every))
        _style_line(drawn, number)
        if row.stds is not None:
            axes.fill_between(row.rounds, *row.band, color=figures.colour(number), alpha=0.15, linewidth=0)
    names = dict.fromkeys(cell.metric for cell in comparison.cells_with(block.labels) if cell.curve)
    units = dict.fromkeys(measure(name).unit for name in names)
    part = "test" if shows_test(comparison) else "validation"
    axes.set_ylabel(", ".join(filter(None, [f"{part} " + " or ".join(names), *units])))
    axes.set_xlabel("round")
    limits = axis_limits(list(lines.values()))
    if limits is not None:
        axes.set_ylim(*limits)
        axes.set_xlabel("round (some of the first lie outside this range)")
    figures.integer_ticks(axes, [number for row in lines.values() for number in row.rounds])
    if block.labels:
        axes.set_title(", ".join(f"{axis} {label}" for axis, label in block.labels.items()), fontsize=11, loc="left")


def _style_line(drawn: Line2D, number: int) -> Line2D:
    from fedshift.reporting import figures

    drawn.set(color=figures.colour(number), linestyle=figures.dashes(number), marker=figures.marker(number))
    return drawn
