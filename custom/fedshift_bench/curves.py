"""A comparison's scores over rounds: a CSV file, and a figure with one line per row of the table.

The figure is of test samples if the jobs have test scores of rounds (``evaluation.every``), otherwise of validation.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from fedshift.schema.csv_text import csv_text
from fedshift.schema.files import write_text
from fedshift_bench.cell_record import CellRecord
from fedshift_bench.columns import Block, blocks
from fedshift_bench.measures import measure
from fedshift_bench.record import Comparison
from fedshift_bench.tables import title_with_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    """A row's mean over the finished seeds, in the unit of the tables.

    ``stds`` are sample standard deviations (n - 1), or None with one seed.
    """

    rounds: list[int]
    means: list[float]
    stds: list[float] | None


def curves_csv(comparison: Comparison) -> str:
    """CSV text with one line per round, part and cell; rounds without a score are skipped."""
    rows: list[list[object]] = []
    for cell in comparison.of({}):
        of = measure(cell.metric)
        for part, scores in (("val", cell.curve), ("test", cell.test_curve)):
            for number, value in enumerate(scores, 1):
                if value is not None:
                    values = [cell.seed, number, f"{of.scaled(value):.6g}", of.unit, cell.metric, part]
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
    curves = [(cell, cell.test_curve if test else cell.curve) for cell in cells]
    curves = [(cell, values) for cell, values in curves if any(value is not None for value in values)]
    scored = [cell for cell, _ in curves]
    if not scored:
        return None
    rounds, means, stds = [], [], []
    for number, scores in enumerate(zip(*(values for _, values in curves), strict=False), 1):
        values = [measure(cell.metric).scaled(v) for cell, v in zip(scored, scores, strict=True) if v is not None]
        if len(values) == len(scored):
            rounds.append(number)
            means.append(fmean(values))
            stds.append(stdev(values) if len(values) > 1 else 0.0)
    return Line(rounds, means, stds if len(scored) > 1 else None) if len(rounds) >= MIN_ROUNDS else None


def axis_limits(lines: Sequence[Line]) -> tuple[float, float] | None:
    """The range of scores that a panel shows; None if it shows all.

    In the first rounds scores rise from near zero, which presses the rest of the lines onto each other. If the scores
    after the first fifth of the rounds take up half of the whole range or less, only these are shown.
    """
    every = [value for one in lines for value in one.means]
    skipped = _FIRST_ROUNDS * max(one.rounds[-1] for one in lines)
    later: list[float] = []
    for one in lines:
        spread = one.stds or [0.0] * len(one.rounds)
        for number, mean, std in zip(one.rounds, one.means, spread, strict=True):
            # A line that ends within the first rounds stays whole.
            if number > skipped or one.rounds[-1] <= skipped:
                later += [mean - std, mean + std]
    low, high = min(later), max(later)
    if high == low or max(every) - min(every) < _MIN_STRETCH * (high - low):
        return None
    margin = 0.05 * (high - low)
    return low - margin, high + margin


def curves_svg(comparison: Comparison) -> str | None:
    """The figure as SVG, one panel per combination of the further axes; None if no row has scores in two rounds."""
    from fedshift.reporting import figures

    first, *_ = comparison.axes
    rows = comparison.axes[first]
    test = shows_test(comparison)
    panels: list[tuple[Block, dict[str, Line]]] = []
    for block in blocks(comparison):
        row_lines = {row: line(comparison.of({first: row, **block.labels}), test=test) for row in rows}
        lines = {row: one for row, one in row_lines.items() if one is not None}
        if lines:
            panels.append((block, lines))
    if not panels:
        return None
    shown = [row for row in rows if any(row in lines for _, lines in panels)]
    columns = min(len(panels), _SIDE_BY_SIDE)
    panel_rows = -(-len(panels) // columns)
    width = columns * _WIDTH + 10 + 7 * min(max(len(row) for row in shown), 40)
    title = _title(comparison, len(comparison.seeds), columns * _WIDTH)
    height = max(panel_rows * _HEIGHT, len(shown) * _LEGEND_LINE) + 16 * title.count("\n") + 30
    with figures.style():
        drawn, axes = figures.drawing(width, height, rows=panel_rows, columns=columns)
        for place, (block, lines) in zip(axes, panels, strict=False):
            _panel(place, comparison, block, {rows.index(row): one for row, one in lines.items()})
        for place in axes[len(panels) :]:
            place.set_visible(False)
        drawn.suptitle(title, fontsize=11, x=0.01, ha="left")
        drawn.legend(
            handles=[_legend_handle(rows.index(row)) for row in shown],
            # Matplotlib omits labels that start with an underscore.
            labels=[f" {name}" if name.startswith("_") else name for name in (textwrap.shorten(r, 44) for r in shown)],
            loc="outside right upper",
            frameon=False,
            fontsize=10,
            title=first,
            alignment="left",
        )
        return figures.standalone(drawn, "curves", title.replace("\n", " "))


def write_curves(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``curves.csv`` and ``curves.svg`` if any row has scores in two rounds.

    Returns:
        The written files.
    """
    svg = curves_svg(comparison)
    if svg is None:
        return []
    write_text(folder / CSV_FILE, curves_csv(comparison))
    write_text(folder / SVG_FILE, svg)
    return [folder / CSV_FILE, folder / SVG_FILE]


def _title(comparison: Comparison, seeds: int, width: int) -> str:
    """The figure's title, with a note if data are simulated; wrapped to ``width`` pixels."""
    what = f"Score on {'test' if shows_test(comparison) else 'validation'} samples after each round, mean over sites"
    what += f" and {seeds} seeds; band: sample standard deviation over seeds" if seeds > 1 else "; one seed"
    phantom = [note for note in comparison.notes if "phantom" in note]
    lines = [title_with_scale(comparison.title, comparison.scale), f"{what}.", *phantom]
    return "\n".join(part for text in lines for part in textwrap.wrap(text, max(width // 8, 40)))


def _panel(axes: Axes, comparison: Comparison, block: Block, lines: dict[int, Line]) -> None:
    """Draw one panel. The keys of ``lines`` are row numbers, which set colour and marker in all panels."""
    from fedshift.reporting import figures

    for number, row_line in lines.items():
        mark_every = max(len(row_line.rounds) // 8, 1)
        (drawn,) = axes.plot(row_line.rounds, row_line.means, markevery=(number % mark_every, mark_every))
        _style_line(drawn, number)
        if row_line.stds is not None:
            low = [mean - std for mean, std in zip(row_line.means, row_line.stds, strict=True)]
            high = [mean + std for mean, std in zip(row_line.means, row_line.stds, strict=True)]
            axes.fill_between(row_line.rounds, low, high, color=figures.colour(number), alpha=0.15, linewidth=0)
    cells = [cell for cell in comparison.of(block.labels) if cell.curve]
    names = dict.fromkeys(cell.metric for cell in cells)
    units = dict.fromkeys(measure(name).unit for name in names)
    part = "test" if shows_test(comparison) else "validation"
    axes.set_ylabel(", ".join(filter(None, [f"{part} " + " or ".join(names), *units])))
    axes.set_xlabel("round")
    limits = axis_limits(list(lines.values()))
    if limits is not None:
        axes.set_ylim(*limits)
        axes.set_xlabel("round (some of the first lie outside this range)")
    figures.integer_ticks(axes, [number for row_line in lines.values() for number in row_line.rounds])
    if block.labels:
        axes.set_title(", ".join(f"{axis} {label}" for axis, label in block.labels.items()), fontsize=11, loc="left")


def _legend_handle(number: int) -> object:
    from matplotlib.lines import Line2D

    mark = Line2D([], [])
    _style_line(mark, number)
    return mark


def _style_line(drawn: object, number: int) -> None:
    from matplotlib.lines import Line2D

    from fedshift.reporting import figures

    assert isinstance(drawn, Line2D)
    drawn.set(color=figures.colour(number), linestyle=figures.dashes(number), marker=figures.marker(number))
