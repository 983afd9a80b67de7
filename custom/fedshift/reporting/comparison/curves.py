"""A comparison's validation scores over rounds: one number a line, and a picture with a line for each row."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from fedshift.reporting.comparison.columns import Block, blocks
from fedshift.reporting.comparison.measures import measure
from fedshift.reporting.comparison.record import CellRecord, Comparison
from fedshift.reporting.comparison.tables import titled
from fedshift.schema.files import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CSV, PICTURE = "curves.csv", "curves.svg"
MIN_ROUNDS = 2
"""That make a line."""
_SIDE_BY_SIDE = 3
_WIDTH, _HEIGHT, _LEGEND_LINE = 400, 300, 17
"""In pixels, of a panel and of a line of the legend."""
_UNITS = {"percent": "%", "mm": "mm", "plain": ""}


@dataclass(frozen=True)
class Line:
    """A row's mean over the seeds that have ended, in the unit that tables print. ``stds`` is of the sample (n - 1),
    and None with one seed.
    """

    rounds: list[int]
    means: list[float]
    stds: list[float] | None


def curves_csv(comparison: Comparison) -> str:
    """One round of one cell a line; rounds without a score are left out."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    write.writerow([*comparison.axes, "seed", "round", "score", "unit", "metric"])
    for cell in comparison.cells:
        of = measure(cell.metric)
        for number, value in enumerate(cell.curve, 1):
            if value is not None:
                told = [cell.seed, number, f"{of.scaled(value):.6g}", _UNITS[of.unit], cell.metric]
                write.writerow([*cell.labels.values(), *told])
    return out.getvalue()


def line(cells: Sequence[CellRecord]) -> Line | None:
    """The line of cells that differ in their seeds, over the rounds that all which ended have scored."""
    told = [cell for cell in cells if any(value is not None for value in cell.curve)]
    if not told:
        return None
    rounds, means, stds = [], [], []
    for number, found in enumerate(zip(*(cell.curve for cell in told), strict=False), 1):
        values = [measure(cell.metric).scaled(v) for cell, v in zip(told, found, strict=True) if v is not None]
        if len(values) == len(told):
            rounds.append(number)
            means.append(fmean(values))
            stds.append(stdev(values) if len(values) > 1 else 0.0)
    return Line(rounds, means, stds if len(told) > 1 else None) if len(rounds) >= MIN_ROUNDS else None


def curves_svg(comparison: Comparison) -> str | None:
    """The picture: a panel for each choice of the further axes; None where no cell has a score in two rounds."""
    from fedshift.reporting.report import figures

    first, *_ = comparison.axes
    rows = comparison.axes[first]
    panels: list[tuple[Block, dict[str, Line]]] = []
    for block in blocks(comparison):
        found = {row: line(comparison.of({first: row, **block.labels})) for row in rows}
        lines = {row: one for row, one in found.items() if one is not None}
        if lines:
            panels.append((block, lines))
    if not panels:
        return None
    shown = [row for row in rows if any(row in lines for _, lines in panels)]
    columns = min(len(panels), _SIDE_BY_SIDE)
    deep = -(-len(panels) // columns)
    width = columns * _WIDTH + 10 + 7 * min(max(len(row) for row in shown), 40)
    words = _words(comparison, len(comparison.seeds), columns * _WIDTH)
    height = max(deep * _HEIGHT, len(shown) * _LEGEND_LINE) + 16 * words.count("\n") + 30
    with figures.style():
        drawn, axes = figures.drawing(width, height, rows=deep, columns=columns)
        for place, (block, lines) in zip(axes, panels, strict=False):
            _panel(place, comparison, block, {rows.index(row): one for row, one in lines.items()})
        for place in axes[len(panels) :]:
            place.set_visible(False)
        drawn.suptitle(words, fontsize=11, x=0.01, ha="left")
        drawn.legend(
            handles=[_mark(rows.index(row)) for row in shown],
            # Matplotlib leaves out what begins with an underscore.
            labels=[f" {name}" if name.startswith("_") else name for name in (textwrap.shorten(r, 44) for r in shown)],
            loc="outside right upper",
            frameon=False,
            fontsize=10,
            title=first,
            alignment="left",
        )
        return figures.standalone(drawn, "curves", words.replace("\n", " "))


def write_curves(comparison: Comparison, folder: Path) -> list[Path]:
    """``curves.csv`` and ``curves.svg``, if any cell has a score in two rounds; else nothing."""
    picture = curves_svg(comparison)
    if picture is None:
        return []
    write_text(folder / CSV, curves_csv(comparison))
    write_text(folder / PICTURE, picture)
    return [folder / CSV, folder / PICTURE]


def _words(comparison: Comparison, seeds: int, width: int) -> str:
    """What the picture shows, and that data are simulated where they are."""
    told = "Score on validation samples after each round, mean over sites"
    told += f" and {seeds} seeds; band: sample standard deviation over seeds" if seeds > 1 else "; one seed"
    phantom = [note for note in comparison.notes if "phantom" in note]
    lines = [titled(comparison.title, comparison.scale), f"{told}.", *phantom]
    return "\n".join(part for text in lines for part in textwrap.wrap(text, max(width // 8, 40)))


def _panel(axes: Axes, comparison: Comparison, block: Block, lines: dict[int, Line]) -> None:
    """One line a row; ``lines`` is by the row's number, which gives it its colour and mark in all panels."""
    from fedshift.reporting.report import figures
    from fedshift.reporting.report.curves import integer_ticks

    for number, told in lines.items():
        every = max(len(told.rounds) // 8, 1)
        (drawn,) = axes.plot(told.rounds, told.means, markevery=(number % every, every))
        _dress(drawn, number)
        if told.stds is not None:
            low = [mean - std for mean, std in zip(told.means, told.stds, strict=True)]
            high = [mean + std for mean, std in zip(told.means, told.stds, strict=True)]
            axes.fill_between(told.rounds, low, high, color=figures.colour(number), alpha=0.15, linewidth=0)
    cells = [cell for cell in comparison.of(block.labels) if cell.curve]
    names = dict.fromkeys(cell.metric for cell in cells)
    units = dict.fromkeys(_UNITS[measure(name).unit] for name in names)
    axes.set_ylabel(", ".join(filter(None, ["validation " + " or ".join(names), *units])))
    axes.set_xlabel("round")
    integer_ticks(axes, [number for told in lines.values() for number in told.rounds])
    if block.labels:
        axes.set_title(", ".join(f"{axis} {label}" for axis, label in block.labels.items()), fontsize=11, loc="left")


def _mark(number: int) -> object:
    from matplotlib.lines import Line2D

    mark = Line2D([], [])
    _dress(mark, number)
    return mark


def _dress(drawn: object, number: int) -> None:
    from matplotlib.lines import Line2D

    from fedshift.reporting.report import figures

    assert isinstance(drawn, Line2D)
    drawn.set(color=figures.colour(number), linestyle=figures.dashes(number), marker=figures.marker(number))
