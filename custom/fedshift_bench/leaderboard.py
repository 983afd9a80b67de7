"""Rank the rows of one comparison or several, test each against one of them, and write and draw the leaderboard.

A block is a task and a site: the mean over seeds of a row's scores there, as Demšar has a block for each data set and
averages its repetitions first. Sites of one task are scored with models of the same runs, so their blocks are not quite
independent. Ranked are the rows that every comparison has with the same seeds in all blocks.

Tests against the baseline: within one task a paired t-test over seeds of the averages over sites, as in the tables
(`fedshift_bench.significance`); over several tasks Wilcoxon's signed-rank test over the blocks. Holm's
correction is for the number of rows tested.

Blocks in which half of the rows end no better than the image-free guess are not ranked: what differs there is not what
methods see in images (`fedshift_bench.columns`). The diagram is that of critical differences of Demšar 2006 (Figure 1):
mean ranks on a line, and bars join what is not told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table as RichTable
from rich.text import Text

from fedshift.reporting.differences import signed
from fedshift.reporting.p_values import p_text
from fedshift.schema.errors import ConfigError
from fedshift.schema.files import csv_text
from fedshift_bench.columns import Block, Measure, below_guess, blocks, main_scores, measure, summary
from fedshift_bench.record import CellRecord, Comparison
from fedshift_bench.significance import (
    ALPHA,
    FEWEST,
    Friedman,
    block_ranks,
    critical_difference,
    friedman,
    holm,
    indistinct,
    signed_rank,
    t_test,
)
from fedshift_bench.templates import lines, render, write_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class RankedRow:
    """A row's mean rank and score over the blocks, and its test against the baseline, if there are pairs enough."""

    name: str
    rank: float
    score: float
    difference: float
    pairs: int
    p: float | None
    p_holm: float | None


@dataclass(frozen=True)
class Leaderboard:
    """Rows by mean rank, the best first.

    ``scores`` is (blocks, rows in this order), in the unit of the tables. ``unranked`` are the other rows of the
    comparisons, with the reason; ``below_guess`` says which tasks, or blocks of them, are not ranked.
    """

    rows: tuple[RankedRow, ...]
    blocks: tuple[str, ...]
    scores: np.ndarray
    against: str
    seeds: Mapping[str, tuple[int, ...]]
    """The seeds that count, by comparison."""
    friedman: Friedman | None
    critical_difference: float | None
    groups: tuple[tuple[str, ...], ...]
    unranked: Mapping[str, str]
    measure: Measure
    below_guess: tuple[str, ...] = ()

    @property
    def test(self) -> str:
        """What the tests against the baseline are."""
        if len(self.seeds) == 1:
            return "paired t-test over seeds of the averages over sites"
        return "Wilcoxon signed-rank test over tasks and sites"


class _Ranked:
    """A comparison's blocks that are ranked, its seeds that count, and the rows that have finished with these."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison, self.measure = comparison, measure(comparison.metric)
        self.blocks = [block for block in blocks(comparison) if not below_guess(comparison, block)]

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Those with which the most cells count: a begun row doesn't take all others' seeds, nor a begun seed rows."""
        all_seeds = self.comparison.seeds
        rows = {seed: {row for row in self.comparison.rows if self._of_row(row, (seed,))} for seed in all_seeds}
        ordered = sorted(all_seeds, key=lambda seed: -len(rows[seed]))
        choices = [ordered[:number] for number in range(1, len(ordered) + 1)]
        best = max(choices, key=lambda seeds: len(seeds) * len(set.intersection(*(rows[seed] for seed in seeds))))
        return tuple(seed for seed in all_seeds if seed in best and rows[seed])

    @cached_property
    def scores(self) -> dict[str, dict[str, float]]:
        """Each row's mean score over the seeds in each block and at each site, in the unit of the tables."""
        return {row: scores for row in self.comparison.rows if (scores := self._of_row(row, self.seeds))}

    def averages(self, row: str) -> list[float]:
        """A row's average over sites, and over blocks if there are further axes, for each seed."""
        cells = [self._cells(row, block) for block in self.blocks]
        by_seed = [[summary(self.comparison, seeds[seed], "average") for seeds in cells] for seed in self.seeds]
        return [fmean(value for value in values if value is not None) for values in by_seed]

    def _cells(self, row: str, block: Block) -> dict[int, CellRecord]:
        return {cell.seed: cell for cell in self.comparison.row_cells(row, block.labels) if cell.is_done}

    def _of_row(self, row: str, seeds: Sequence[int]) -> dict[str, float]:
        """A row's scores; empty if one is missing."""
        scores: dict[str, float] = {}
        for block in self.blocks:
            cells = self._cells(row, block)
            if not seeds or not cells.keys() >= set(seeds):
                return {}
            by_seed = [main_scores(self.comparison, cells[seed]) for seed in seeds]
            for site in (site for sites in cells[seeds[0]].main_sites.values() for site in sites):
                if any(site not in sites for sites in by_seed):
                    return {}
                name = "/".join(filter(None, (self.comparison.name, block.key, site)))
                scores[name] = self.measure.scaled(fmean(sites[site] for sites in by_seed))
        return scores


def make_leaderboard(comparisons: Sequence[Comparison], *, against: str | None = None) -> Leaderboard:
    """Rank the rows of comparisons of different tasks, whose rows of one name are one method.

    The others are tested against the row ``against``, by default that of the first comparison's ``ranking``.

    Raises:
        ConfigError: that row is unknown or not ranked, or scores cannot be ranked (together).
    """
    rankings = [comparison.ranking for comparison in comparisons if comparison.ranking is not None]
    against = against or next((ranking.against for ranking in rankings), None)
    if against is None:
        raise ConfigError("no-baseline", "the comparisons have no 'ranking': name the row to test against")
    higher_is_better = _check_together(comparisons)
    not_better = tuple(why for comparison in comparisons for why in not_ranked(comparison))
    tasks = [task for task in map(_Ranked, comparisons) if task.blocks]
    if not tasks:
        raise ConfigError("below-guess", " ".join(not_better))
    rankings = [task.comparison.ranking for task in tasks if task.comparison.ranking is not None]
    references = {row for ranking in rankings for row in ranking.references}
    unranked = dict.fromkeys(sorted(references), "a reference")
    ranked = []
    for row in dict.fromkeys(row for task in tasks for row in task.comparison.rows if row not in references):
        lacking = [task.comparison.name for task in tasks if row not in task.scores]
        if lacking:
            unranked[row] = f"not finished, or not taken, by {', '.join(lacking)}"
        else:
            ranked.append(row)
    if against not in ranked:
        what = f"row {against!r}, which the others are tested against,"
        raise ConfigError("baseline-unfinished", f"{what} has not finished")
    names = [(task, name) for task in tasks for name in task.scores[against]]
    table = np.array([[task.scores[row][name] for row in ranked] for task, name in names])
    ranks = block_ranks(table, higher_is_better=higher_is_better).mean(axis=0)
    means, base = table.mean(axis=0), table[:, ranked.index(against)]
    tests = [
        (0, None) if row == against else _test(tasks, row, against, table[:, place], base)
        for place, row in enumerate(ranked)
    ]
    adjusted = holm([p for _, p in tests])
    rows = [
        RankedRow(row, float(ranks[i]), float(means[i]), float(means[i] - base.mean()), *tests[i], adjusted[i])
        for i, row in enumerate(ranked)
    ]
    order = sorted(range(len(rows)), key=lambda i: (rows[i].rank, rows[i].name))
    difference = critical_difference(len(ranked), len(table))
    groups = indistinct({row.name: row.rank for row in rows}, difference) if difference is not None else []
    return Leaderboard(
        rows=tuple(rows[i] for i in order),
        blocks=tuple(name for _, name in names),
        scores=table[:, order],
        against=against,
        seeds={task.comparison.name: task.seeds for task in tasks},
        friedman=friedman(table),
        critical_difference=difference,
        groups=tuple(groups),
        unranked=unranked,
        measure=tasks[0].measure,
        below_guess=not_better,
    )


def _check_together(comparisons: Sequence[Comparison]) -> bool:
    """Whether higher scores are better, if they can be ranked together."""
    if len({comparison.name for comparison in comparisons}) < len(comparisons):
        raise ConfigError("same-task", "two of the comparisons are of the same task: rank them apart")
    measures = {comparison.metric: measure(comparison.metric) for comparison in comparisons}
    units = {shown.unit: name for name, shown in measures.items()}
    if len(units) > 1:
        named = " and ".join(f"{name} ({unit or 'without unit'})" for unit, name in units.items())
        what = f"scores in different units cannot be ranked together, {named}"
        raise ConfigError("different-units", f"{what}: rank those of one unit")
    better = {shown.better for shown in measures.values()}
    if len(better) > 1 or None in better:
        what = "the comparisons' scores cannot be ranked together"
        raise ConfigError("different-directions", f"{what}: higher is better in some and not in others")
    return better == {"higher"}


def not_ranked(comparison: Comparison) -> list[str]:
    """Sentences on why blocks of a comparison are not ranked, which name it."""
    return [f"{comparison.name}: {why}" for block in blocks(comparison) if (why := below_guess(comparison, block))]


def _test(
    tasks: Sequence[_Ranked], row: str, against: str, ours: np.ndarray, theirs: np.ndarray
) -> tuple[int, float | None]:
    """The number of pairs and p of a row against the baseline."""
    if len(tasks) > 1:
        return len(ours), signed_rank(list(ours), list(theirs))
    test = t_test(tasks[0].averages(row), tasks[0].averages(against))
    return len(tasks[0].seeds), None if test is None else test.p


FILES = ("leaderboard.md", "leaderboard.csv", "leaderboard.svg")
WIDTH, LINE, BAR, TOP = 760, 17, 9, 50
"""Width of the diagram, height of a name and of a bar, and the space above them, in pixels."""


def row_text(row: RankedRow, board: Leaderboard) -> list[str]:
    """A row's entries after its name, in the order of `headings`."""
    decimals = board.measure.decimals
    numbers = [f"{row.rank:.2f}", f"{row.score:.{decimals}f}"]
    if row.name == board.against:
        return [*numbers, "", "", ""]
    difference = signed(row.difference, decimals=decimals).replace("-", "−")
    return [*numbers, difference, *(p_text(p) for p in (row.p, row.p_holm))]


def headings(board: Leaderboard) -> list[str]:
    """Those of all columns but the first."""
    unit = f", {board.measure.unit}" if board.measure.unit else ""
    return ["mean rank", f"mean score{unit}", f"against {board.against}", "p", "p (Holm)"]


def notes(board: Leaderboard) -> list[str]:
    """What the numbers are, and which rows are not told apart from the first."""
    tested = [row for row in board.rows if row.name != board.against]
    first = board.rows[0].name
    return lines(
        "leaderboard_notes.j2",
        board=board,
        alpha=ALPHA,
        fewest=FEWEST,
        alike=next((group for group in board.groups if group[0] == first), (first,)),
        n_tests=sum(row.p is not None for row in tested),
        pairs=max((row.pairs for row in tested), default=0),
    )


def table_lines(board: Leaderboard) -> list[str]:
    """The lines of the table in Markdown."""
    rows = [["row", *headings(board)], *([row.name, *row_text(row, board)] for row in board.rows)]
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return [head, "|---|" + "---:|" * len(headings(board)), *body]


def rich_leaderboard(board: Leaderboard, title: str) -> RichTable:
    """The table for the terminal."""
    caption = Text("\n".join(notes(board)))
    table = RichTable(title=Text(title), caption=caption, title_justify="left", caption_justify="left")
    table.add_column(no_wrap=True)
    for heading in headings(board):
        table.add_column(Text(heading), justify="right")
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
    """Write `FILES`, with the methods ``left_out`` among those that are not in the table; return their paths."""
    absent = {**board.unranked, **left_out}
    facts = {"title": title, "table": table_lines(board), "notes": notes(board), "absent": absent}
    text = render("leaderboard.md.j2", picture=FILES[2], **facts)
    return write_files(folder, dict(zip(FILES, (text, leaderboard_csv(board), rank_svg(board, title)), strict=True)))


def rank_svg(board: Leaderboard, title: str) -> str:
    """The diagram as SVG: the better half of the rows is named on the left, the others on the right."""
    from fedshift.reporting import figures

    half, last = (len(board.rows) + 1) // 2, max(len(board.rows), 2)
    bars, margin = len(board.groups) * BAR, 0.45 * (last - 1)
    height = TOP + 30 + bars + half * LINE + 20
    with figures.drawing(WIDTH, height) as (drawn, (axes,)):
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
            is_left = place < half
            y = TOP + bars + LINE * (1 + (place if is_left else len(board.rows) - 1 - place))
            end = 1 - 0.02 * margin if is_left else last + 0.02 * margin
            axes.plot([row.rank, row.rank, end], [TOP, y, y], color=figures.FAINT, linewidth=0.8)
            axes.annotate(
                f"{row.name}  {row.rank:.1f}" if is_left else f"{row.rank:.1f}  {row.name}",
                (end, y),
                xytext=(-4 if is_left else 4, 0),
                textcoords="offset points",
                ha="right" if is_left else "left",
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
