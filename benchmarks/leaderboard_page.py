"""The page docs/leaderboard.md and its picture, from the committed results in benchmarks/results/leaderboard alone."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import frame
from fedshift.schema.errors import ConfigError
from fedshift_bench.leaderboard import Leaderboard, make_leaderboard, not_ranked, notes, p_text, rank_svg, table_lines
from fedshift_bench.record import FILE_NAME, Comparison, read_comparison
from fedshift_bench.significance import ALPHA
from fedshift_bench.spec import read_spec
from fedshift_bench.tables import heading

RESULTS = frame.RESULTS / "leaderboard"
SPECS = frame.RESULTS.parent / "leaderboard"
AGAINST = "fedavg"


def committed() -> list[Comparison]:
    """The committed comparisons, in the order of their names."""
    return [read_comparison(path) for path in sorted(RESULTS.glob(f"*/{FILE_NAME}"))]


def make_page(comparisons: Sequence[Comparison]) -> tuple[str, str]:
    """The page's text and its picture."""
    boards = [
        (candidate, board)
        for candidate in comparisons
        if (board := _board([candidate])) is not None and _is_broad(candidate, board)
    ]
    ranked = [comparison for comparison, _ in boards]
    overall = _board(ranked)
    assert overall is not None, "half of the rows of no committed comparison have finished"
    title = f"Mean ranks over {', '.join(comparison.name for comparison in ranked)}"
    unranked: dict[str, list[str]] = {}
    for name, reason in overall.unranked.items():
        unranked.setdefault(reason, []).append(name)
    left_out: dict[str, dict[str, list[str]]] = {}
    for comparison in comparisons:
        for name, why in comparison.left_out.items():
            left_out.setdefault(why.removeprefix(f"method {name}: "), {}).setdefault(name, []).append(comparison.name)
    ran = {(comparison.name, comparison.scale): comparison for comparison in comparisons}
    specs = sorted(SPECS.glob("*.yaml"))
    text = frame.page(
        "leaderboard",
        advice=advice(overall),
        n_done=sum(len(comparison.finished) for comparison in comparisons),
        n_cells=sum(len(comparison.cells) for comparison in comparisons),
        scales=sorted({comparison.scale for comparison in comparisons}),
        title=title,
        overall=overall,
        unranked=unranked,
        boards=boards if len(ranked) > 1 else [],
        comparisons=comparisons,
        runs=[(path.stem, scale, ran.get((path.stem, scale))) for path in specs for scale in ("quick", "paper")],
        draws=min(read_spec(path, "paper")[0].draws for path in specs),
        left_out=left_out,
        **{function.__name__: function for function in (table_lines, notes, heading, not_ranked, folder)},
    )
    return text, rank_svg(overall, title)


def folder(comparison: Comparison) -> str:
    """Where a comparison's results are, from the page."""
    return f"../benchmarks/results/leaderboard/{comparison.name}_{comparison.scale}"


def advice(board: Leaderboard) -> str:
    """What to take at first, with the figure that says so."""
    first, base = board.rows[0], next(row for row in board.rows if row.name == board.against)
    by_ranks = board.critical_difference is not None and base.rank - first.rank >= board.critical_difference
    by_test = first.p_holm is not None and first.p_holm < ALPHA
    blocks = f"{len(board.blocks)} blocks of a task and a site"
    figures = f"its mean rank is {first.rank:.1f} and that of `{base.name}` {base.rank:.1f}"
    if by_ranks or by_test:
        why = (
            f"critical difference {board.critical_difference:.1f}" if by_ranks else f"p = {p_text(first.p_holm or 0.0)}"
        )
        return f"**Take `{first.name}` at first**: of {len(board.rows)} rows in {blocks} {figures} ({why})."
    better = [row.name for row in board.rows if row.p_holm is not None and row.p_holm < ALPHA and row.difference > 0]
    start = f"**Take `{base.name}` at first.** Of {len(board.rows)} rows in {blocks} "
    if better:
        return f"{start}these are better than it after Holm's correction: {', '.join(better)}."
    if first.name == base.name:
        return f"{start}none is ranked before it."
    limit = board.critical_difference
    needed = (
        f"a difference of {limit:.1f} would be significant"
        if limit is not None
        else "the blocks are too few for a test"
    )
    return f"{start}none is significantly better: `{first.name}` is ranked first, {figures}; {needed}."


def _is_broad(comparison: Comparison, board: Leaderboard) -> bool:
    """Whether half of a task's rows are ranked: one that has just begun would leave the others out of the ranking."""
    return 2 * len(board.rows) >= len(next(iter(comparison.axes.values())))


def _board(comparisons: Sequence[Comparison]) -> Leaderboard | None:
    try:
        return make_leaderboard(comparisons, against=AGAINST)
    except ConfigError:
        return None
