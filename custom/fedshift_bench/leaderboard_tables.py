"""A leaderboard's files: ``leaderboard.md``, ``leaderboard.csv`` and the diagram ``leaderboard.svg``.

The diagram is that of critical differences of Demšar 2006 (Figure 1): mean ranks on a line, and bars join what is not
told apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table as RichTable
from rich.text import Text

from fedshift.reporting.differences import signed
from fedshift.reporting.p_values import p_text
from fedshift.schema.files import csv_text, write_text
from fedshift_bench.leaderboard import Leaderboard, RankedRow
from fedshift_bench.ranks import ALPHA, FEWEST
from fedshift_bench.templates import lines, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADINGS = ("", "mean rank", "mean score{unit}", "against {against}", "p", "p (Holm)")
FILES = ("leaderboard.md", "leaderboard.csv", "leaderboard.svg")
WIDTH, LINE, BAR, TOP = 760, 17, 9, 50
"""Width of the diagram, height of a name and of a bar, and the space above them, in pixels."""


def row_text(row: RankedRow, board: Leaderboard) -> list[str]:
    """A row's entries as text, in the order of `HEADINGS` after its name."""
    decimals = board.measure.decimals
    numbers = [f"{row.rank:.2f}", f"{row.score:.{decimals}f}"]
    if row.name == board.against:
        return [*numbers, "", "", ""]
    difference = signed(row.difference, decimals=decimals).replace("-", "−")
    return [*numbers, difference, *(p_text(p) for p in (row.p, row.p_holm))]


def headings(board: Leaderboard) -> list[str]:
    """The headings of the columns."""
    unit = f", {board.measure.unit}" if board.measure.unit else ""
    return [heading.format(against=board.against, unit=unit) for heading in HEADINGS]


def notes(board: Leaderboard) -> list[str]:
    """What the numbers are, and what is not told apart."""
    tested = [row for row in board.rows if row.name != board.against]
    return lines(
        "leaderboard_notes.j2",
        board=board,
        alpha=ALPHA,
        fewest=FEWEST,
        alike=not_told_apart(board),
        n_tests=sum(row.p is not None for row in tested),
        pairs=max((row.pairs for row in tested), default=0),
    )


def not_told_apart(board: Leaderboard) -> str:
    """Which rows are not told apart from the first, and whether the baseline is one of them."""
    first = board.rows[0].name
    group = next((group for group in board.groups if group[0] == first), (first,))
    if len(group) == len(board.rows):
        return "No two rows are told apart."
    others = f"{first} is told apart from {len(board.rows) - len(group)} of {len(board.rows) - 1} others"
    if board.against != first:
        others += f", {board.against} {'not ' if board.against in group else ''}among them"
    return f"{others}."


def table_lines(board: Leaderboard) -> list[str]:
    """The lines of the table in Markdown."""
    rows = [["row", *headings(board)[1:]], *([row.name, *row_text(row, board)] for row in board.rows)]
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return [head, "|---|" + "---:|" * (len(HEADINGS) - 1), *body]


def leaderboard_markdown(board: Leaderboard, title: str, left_out: Mapping[str, str]) -> str:
    """The table in Markdown, with notes and the rows that are not in it."""
    absent = {**board.unranked, **left_out}
    facts = {"title": title, "table": table_lines(board), "notes": notes(board), "absent": absent}
    return render("leaderboard.md.j2", picture=FILES[2], **facts)


def rich_leaderboard(board: Leaderboard, title: str) -> RichTable:
    """The table for the terminal."""
    caption = Text("\n".join(notes(board)))
    table = RichTable(title=Text(title), caption=caption, title_justify="left", caption_justify="left")
    for number, heading in enumerate(headings(board)):
        table.add_column(Text(heading), justify="right" if number else "left", no_wrap=not number)
    for row in board.rows:
        table.add_row(*map(Text, [row.name, *row_text(row, board)]))
    return table


def leaderboard_csv(board: Leaderboard) -> str:
    """The table in CSV, with every block's score."""
    rows: list[list[object]] = []
    for place, row in enumerate(board.rows):
        numbers = [row.rank, row.score, row.difference, row.pairs, row.p, row.p_holm, *board.scores[:, place]]
        rows.append([row.name, *("" if number is None else f"{number:.6g}" for number in numbers)])
    return csv_text(["row", "mean rank", "mean score", "difference", "pairs", "p", "p holm", *board.blocks], rows)


def write_leaderboard(board: Leaderboard, folder: Path, *, title: str, left_out: Mapping[str, str]) -> list[Path]:
    """Write the files, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = (leaderboard_markdown(board, title, left_out), leaderboard_csv(board), rank_svg(board, title))
    for name, text in zip(FILES, texts, strict=True):
        write_text(folder / name, text)
    return [folder / name for name in FILES]


def rank_svg(board: Leaderboard, title: str) -> str:
    """The diagram as SVG: the better half of the rows is named on the left, the others on the right."""
    from fedshift.reporting import figures

    half, last = (len(board.rows) + 1) // 2, max(len(board.rows), 2)
    bars, margin = len(board.groups) * BAR, 0.45 * (last - 1)
    height = TOP + 30 + bars + half * LINE + 20
    with figures.style():
        drawn, (axes,) = figures.drawing(WIDTH, height)
        axes.set_axis_off()
        axes.grid(visible=False)
        axes.set_xlim(1 - margin, last + margin)
        axes.set_ylim(height - 30, 0)
        _draw_scale(axes, board, last)
        ranks = {row.name: row.rank for row in board.rows}
        for number, group in enumerate(board.groups, 1):
            ends, y = [ranks[group[0]], ranks[group[-1]]], TOP + BAR * number
            axes.plot(ends, [y, y], color=figures.INK, linewidth=3, solid_capstyle="round")
        for place, row in enumerate(board.rows):
            left = place < half
            y = TOP + bars + LINE * (1 + (place if left else len(board.rows) - 1 - place))
            end = 1 - 0.02 * margin if left else last + 0.02 * margin
            axes.plot([row.rank, row.rank, end], [TOP, y, y], color=figures.FAINT, linewidth=0.8)
            axes.annotate(
                f"{row.name}  {row.rank:.1f}" if left else f"{row.rank:.1f}  {row.name}",
                (end, y),
                xytext=(-4 if left else 4, 0),
                textcoords="offset points",
                ha="right" if left else "left",
                va="center",
                fontsize=10,
                color=figures.INK,
            )
        drawn.suptitle(title, fontsize=11, x=0.01, ha="left")
        words = ", ".join(f"{row.name} {row.rank:.1f}" for row in board.rows)
        return figures.standalone(drawn, "ranks", f"{title}: mean ranks, the best first: {words}")


def _draw_scale(axes: Axes, board: Leaderboard, last: int) -> None:
    from fedshift.reporting import figures

    axes.plot([1, last], [TOP, TOP], color=figures.INK, linewidth=1)
    step = max(round(last / 10), 1)
    for rank in [1, *range(step, last + 1, step)] if step > 1 else range(1, last + 1):
        axes.plot([rank, rank], [TOP, TOP - 5], color=figures.INK, linewidth=1)
        axes.annotate(str(rank), (rank, TOP - 7), ha="center", va="bottom", fontsize=10, color=figures.INK)
    difference = board.critical_difference
    if difference is not None:
        shown = min(difference, last - 1.0)
        label = f"critical difference {difference:.1f}" + ("" if shown == difference else " (more than the scale)")
        axes.plot([1, 1 + shown], [12, 12], color=figures.colour(0), linewidth=3)
        axes.annotate(f"{label}, α = {ALPHA}", (1 + shown, 12), xytext=(6, 0), textcoords="offset points", va="center")
