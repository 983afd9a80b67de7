"""Rank the rows of one comparison or several, and test each against one of them.

A block is a task and a site: the mean over seeds of a row's scores there, as Demšar has a block for each data set and
averages its repetitions first. Sites of one task are scored with models of the same runs, so their blocks are not quite
independent. Ranked are the rows that every comparison has with the same seeds in all blocks.

Tests against the baseline: within one task a paired t-test over seeds of the averages over sites, as in the tables
(`fedshift_bench.paired_tests`); over several tasks Wilcoxon's signed-rank test over the blocks. Holm's
correction is for the number of rows tested.

Blocks in which half of the rows end no better than the image-free guess are not ranked: what differs there is not what
methods see in images (`fedshift_bench.columns`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np

from fedshift.schema.errors import ConfigError
from fedshift_bench.cell_record import CellRecord
from fedshift_bench.columns import Block, Measure, below_guess, blocks, main_scores, measure, summary
from fedshift_bench.paired_tests import t_test
from fedshift_bench.ranks import (
    Friedman,
    block_ranks,
    critical_difference,
    friedman,
    holm,
    indistinct,
    signed_rank,
)
from fedshift_bench.record import Comparison


@dataclass(frozen=True)
class RankedRow:
    """A row: its mean rank and score over the blocks, and its test against the baseline.

    ``p`` and ``p_holm`` are None for the baseline and where there are too few pairs.
    """

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
        given = self.comparison.seeds
        done = {seed: {row for row in self.comparison.rows if self._of_row(row, (seed,))} for seed in given}
        ordered = sorted(given, key=lambda seed: -len(done[seed]))
        choices = [ordered[:number] for number in range(1, len(ordered) + 1)]
        best = max(choices, key=lambda seeds: len(seeds) * len(set.intersection(*(done[seed] for seed in seeds))))
        return tuple(seed for seed in given if seed in best and done[seed])

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

    ``against`` is the row that the others are tested against; by default that of the first comparison's ``ranking``.

    Raises:
        ConfigError: no row is to test against, it is not ranked, scores cannot be ranked together, or all are no better
            than the image-free guess.
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
