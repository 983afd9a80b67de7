"""Rank the rows of one comparison or several, and test each against one of them.

A block is a task and a site: the mean over seeds of a row's scores there, as Demšar has a block for each data set and
averages its repetitions first. Sites of one task are scored with models of the same runs, so their blocks are not quite
independent. Ranked are the rows that every comparison has with the same seeds in all blocks.

Tests against the baseline: within one task a paired t-test over seeds of the averages over sites, as in the tables
(`fedshift_bench.significance`); over several tasks Wilcoxon's signed-rank test over the blocks. Holm's
correction is for the number of rows tested.

Blocks in which half of the rows end no better than the image-free guess are not ranked: what differs there is not what
methods see in images (`fedshift_bench.guess`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from fedshift.schema.errors import ConfigError
from fedshift_bench.cell_record import CellRecord
from fedshift_bench.columns import Block, blocks, main_sites, site_score, summary
from fedshift_bench.guess import below_guess
from fedshift_bench.measures import Measure, measure
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
from fedshift_bench.significance import t_test


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
    comparisons, with the reason.
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
    """Unit and format of the scores."""
    below_guess: tuple[str, ...] = ()
    """Sentences on tasks, or blocks of them, that are not ranked."""

    @property
    def test(self) -> str:
        """What the tests against the baseline are."""
        if len(self.seeds) == 1:
            return "paired t-test over seeds of the averages over sites"
        return "Wilcoxon signed-rank test over tasks and sites"


def make_leaderboard(comparisons: Sequence[Comparison], *, against: str | None = None) -> Leaderboard:
    """Rank the rows of comparisons.

    Args:
        comparisons: tables of different tasks, whose rows of one name are one method.
        against: the row that the others are tested against; by default that of the first comparison's ``ranking``.

    Raises:
        ConfigError: no row is to test against, it is not ranked, scores cannot be ranked together, or all are no better
            than the image-free guess.
    """
    against = against or next((one.ranking.against for one in comparisons if one.ranking is not None), None)
    if against is None:
        raise ConfigError("the comparisons have no 'ranking': name the row to test against")
    if len({one.name for one in comparisons}) < len(comparisons):
        raise ConfigError("two of the comparisons are of the same task: rank them apart")
    units = {measure(one.metric).unit: one.metric for one in comparisons}
    if len(units) > 1:
        named = " and ".join(f"{name} ({unit or 'without unit'})" for unit, name in units.items())
        raise ConfigError(f"scores in different units cannot be ranked together, {named}: rank those of one unit")
    better = {measure(one.metric).better for one in comparisons}
    if len(better) > 1 or None in better:
        raise ConfigError(
            "the comparisons' scores cannot be ranked together: higher is better in some and not in others"
        )
    below = tuple(why for one in comparisons for why in not_ranked(one))
    comparisons = [one for one in comparisons if _ranked_blocks(one)]
    if not comparisons:
        raise ConfigError(" ".join(below))
    references = {row for one in comparisons if one.ranking is not None for row in one.ranking.references}
    every_row = list(dict.fromkeys(row for one in comparisons for row in _rows(one)))
    unranked = dict.fromkeys(sorted(references), "a reference")
    seeds, columns = {}, []
    for comparison in comparisons:
        ranked_blocks = _ranked_blocks(comparison)
        counted = _seeds(comparison, ranked_blocks)
        seeds[comparison.name] = counted
        columns.append({row: _of_blocks(comparison, row, counted, ranked_blocks) for row in _rows(comparison)})
    ranked = []
    for row in every_row:
        if row in references:
            continue
        lacking = [one.name for one, column in zip(comparisons, columns, strict=True) if not column.get(row)]
        if lacking:
            unranked[row] = f"not finished, or not taken, by {', '.join(lacking)}"
        else:
            ranked.append(row)
    if against not in ranked:
        raise ConfigError(f"row {against!r}, which the others are tested against, has not finished")
    found = [(measure(one.metric), column) for one, column in zip(comparisons, columns, strict=True)]
    table = np.array(
        [[of.scaled(column[row][name]) for row in ranked] for of, column in found for name in column[against]]
    )
    ranks = block_ranks(table, higher_is_better=better == {"higher"}).mean(axis=0)
    means, base = table.mean(axis=0), table[:, ranked.index(against)]
    tests = [_test(comparisons, row, against, table[:, place], base, seeds) for place, row in enumerate(ranked)]
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
        blocks=tuple(name for column in columns for name in column[against]),
        scores=table[:, order],
        against=against,
        seeds=seeds,
        friedman=friedman(table),
        critical_difference=difference,
        groups=tuple(groups),
        unranked=unranked,
        measure=measure(comparisons[0].metric),
        below_guess=below,
    )


def not_ranked(comparison: Comparison) -> list[str]:
    """Sentences on why blocks of a comparison are not ranked, which name it."""
    return [f"{comparison.name}: {why}" for block in blocks(comparison) if (why := below_guess(comparison, block))]


def _ranked_blocks(comparison: Comparison) -> list[Block]:
    return [block for block in blocks(comparison) if not below_guess(comparison, block)]


def _rows(comparison: Comparison) -> list[str]:
    return next(iter(comparison.axes.values()))


def _seeds(comparison: Comparison, ranked: Sequence[Block]) -> tuple[int, ...]:
    """The seeds with which the most cells count: a begun row doesn't take all others' seeds, nor a begun seed rows."""
    done = {
        seed: {row for row in _rows(comparison) if _of_blocks(comparison, row, (seed,), ranked)}
        for seed in comparison.seeds
    }
    ordered = sorted(comparison.seeds, key=lambda seed: -len(done[seed]))
    choices = [ordered[:number] for number in range(1, len(ordered) + 1)]
    best = max(choices, key=lambda seeds: len(seeds) * len(set.intersection(*(done[seed] for seed in seeds))))
    return tuple(seed for seed in comparison.seeds if seed in best and done[seed])


def _cells(comparison: Comparison, row: str, labels: Mapping[str, str]) -> dict[int, CellRecord]:
    first = next(iter(comparison.axes))
    return {cell.seed: cell for cell in comparison.of({first: row, **labels}) if cell.state == "done"}


def _of_blocks(comparison: Comparison, row: str, seeds: Sequence[int], ranked: Sequence[Block]) -> dict[str, float]:
    """A row's mean score over the seeds in each block and at each site; empty if one is missing."""
    scores: dict[str, float] = {}
    for block in ranked:
        cells = _cells(comparison, row, block.labels)
        if not seeds or not cells.keys() >= set(seeds):
            return {}
        for site in (site for sites in main_sites(cells[seeds[0]]).values() for site in sites):
            values = [site_score(comparison, cells[seed], site) for seed in seeds]
            if any(value is None for value in values):
                return {}
            name = "/".join(filter(None, (comparison.name, block.key, site)))
            scores[name] = fmean(value for value in values if value is not None)
    return scores


def _test(
    comparisons: Sequence[Comparison],
    row: str,
    against: str,
    ours: np.ndarray,
    theirs: np.ndarray,
    seeds: Mapping[str, Sequence[int]],
) -> tuple[int, float | None]:
    """The number of pairs and p of a row against the baseline."""
    if row == against:
        return 0, None
    if len(comparisons) > 1:
        return len(ours), signed_rank(list(ours), list(theirs))
    (comparison,) = comparisons
    a, b = ([_average(comparison, name, seed) for seed in seeds[comparison.name]] for name in (row, against))
    found = t_test(a, b)
    return len(a), None if found is None else found.p


def _average(comparison: Comparison, row: str, seed: int) -> float:
    """A row's average over sites, and over blocks if there are further axes."""
    found = [
        summary(comparison, _cells(comparison, row, block.labels)[seed], "average")
        for block in _ranked_blocks(comparison)
    ]
    return fmean(value for value in found if value is not None)
