"""The critical-difference diagram of Demšar 2006 (Figure 1): mean ranks on a line, bars join what is not told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedshift_bench.leaderboard import Leaderboard
from fedshift_bench.ranks import ALPHA

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, LINE, BAR, TOP = 760, 17, 9, 50
"""Width of the figure, height of a name and of a bar, and the space above them, in pixels."""


def rank_svg(board: Leaderboard, title: str) -> str:
    """The diagram as SVG: the better half of the rows is named on the left, the others on the right."""
    from fedshift.reporting import figures

    half = (len(board.rows) + 1) // 2
    bars = len(board.groups) * BAR
    height = TOP + 30 + bars + half * LINE + 20
    with figures.style():
        drawn, (axes,) = figures.drawing(WIDTH, height)
        axes.set_axis_off()
        axes.grid(visible=False)
        last = max(len(board.rows), 2)
        margin = 0.45 * (last - 1)
        axes.set_xlim(1 - margin, last + margin)
        axes.set_ylim(height - 30, 0)
        _scale(axes, board, last)
        _bars(axes, board)
        start = TOP + bars + LINE
        for place, row in enumerate(board.rows):
            left = place < half
            y = start + LINE * (place if left else len(board.rows) - 1 - place)
            end = 1 - 0.02 * margin if left else last + 0.02 * margin
            axes.plot([row.rank, row.rank, end], [TOP, y, y], color=figures.FAINT, linewidth=0.8)
            axes.annotate(
                f"{row.rank:.1f}  {row.name}" if not left else f"{row.name}  {row.rank:.1f}",
                (end, y),
                xytext=(-4 if left else 4, 0),
                textcoords="offset points",
                ha="right" if left else "left",
                va="center",
                fontsize=10,
                color=figures.INK,
            )
        drawn.suptitle(title, fontsize=11, x=0.01, ha="left")
        return figures.standalone(drawn, "ranks", f"{title}: {description(board)}")


def description(board: Leaderboard) -> str:
    """The diagram in words."""
    ranks = ", ".join(f"{row.name} {row.rank:.1f}" for row in board.rows)
    return f"mean ranks, the best first: {ranks}"


def _scale(axes: Axes, board: Leaderboard, last: int) -> None:
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


def _bars(axes: Axes, board: Leaderboard) -> None:
    from fedshift.reporting import figures

    ranks = {row.name: row.rank for row in board.rows}
    for number, group in enumerate(board.groups):
        y = TOP + BAR * (number + 1)
        axes.plot([ranks[group[0]], ranks[group[-1]]], [y, y], color=figures.INK, linewidth=3, solid_capstyle="round")
