"""The page docs/leaderboard.md and its picture, from the committed results in benchmarks/results/leaderboard alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedshift.schema.errors import ConfigError
from fedshift_bench.leaderboard import Leaderboard, make_leaderboard, not_ranked, notes, p_text, rank_svg, table_lines
from fedshift_bench.record import FILE_NAME, Comparison, read_comparison
from fedshift_bench.significance import ALPHA
from fedshift_bench.spec import read_spec
from fedshift_bench.tables import heading

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "leaderboard"
SPECS = ROOT / "benchmarks" / "leaderboard"
AGAINST = "fedavg"


def committed() -> list[Comparison]:
    """The committed comparisons, in the order of their names."""
    return [read_comparison(path) for path in sorted(RESULTS.glob(f"*/{FILE_NAME}"))]


def make_page(comparisons: Sequence[Comparison]) -> tuple[str, str]:
    """The page's text and its picture."""
    boards = {one.name: board for one in comparisons if (board := _board([one])) is not None and _is_broad(one, board)}
    ranked = [one for one in comparisons if one.name in boards]
    overall = _board(ranked)
    assert overall is not None, "half of the rows of no committed comparison have finished"
    title = f"Mean ranks over {', '.join(one.name for one in ranked)}"
    lines = [advice(overall), "", *_limits(comparisons), ""]
    lines += [f"## {title}", "", "![Mean ranks](pictures/leaderboard.svg)", ""]
    lines += ["Bars join rows whose mean ranks differ by less than the critical difference.", "", *table_lines(overall)]
    lines += ["", *(f"- {note}" for note in notes(overall)), ""]
    if overall.unranked:
        lines += [*_not_ranked(overall.unranked), ""]
    if len(ranked) > 1:
        for one in ranked:
            lines += [f"## {heading(one)}", "", " ".join(one.what.split()), "", *table_lines(boards[one.name]), ""]
            lines += [*(f"- {note}" for note in notes(boards[one.name])), ""]
    for one in comparisons:
        if why := not_ranked(one):
            table = f"[table](../benchmarks/results/leaderboard/{one.name}_{one.scale}/table.md)"
            lines += [f"## {heading(one)}", "", f"{' '.join(one.what.split())} Scores without ranks: {table}.", ""]
            lines += [*(f"- {sentence}" for sentence in why), ""]
    lines += _ran(comparisons)
    return "\n".join(lines), rank_svg(overall, title)


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


def _not_ranked(reasons: Mapping[str, str]) -> list[str]:
    """A line for each reason, with the rows that it leaves out."""
    rows: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        rows.setdefault(reason, []).append(name)
    return [f"- Not ranked ({reason}): {', '.join(names)}." for reason, names in rows.items()]


def _limits(comparisons: Sequence[Comparison]) -> list[str]:
    cells = [cell for one in comparisons for cell in one.cells]
    done = [cell for cell in cells if cell.state == "done"]
    scales = sorted({one.scale for one in comparisons})
    return [
        f"{len(done)} of {len(cells)} cells have run, at the scale {' and '.join(scales)}, with methods' defaults.",
        "That scale is cut down until a core finishes a cell in a minute: few images, small networks, few rounds. It",
        "shows which methods work out of the box and which fail, and its ranks need not be those of the full tasks.",
    ]


def _ran(comparisons: Sequence[Comparison]) -> list[str]:
    lines = [
        "## What ran and what did not",
        "",
        "| task | scale | rows | cells done | table |",
        "|---|---|---:|---:|---|",
    ]
    ran = {(one.name, one.scale): one for one in comparisons}
    for path in sorted(SPECS.glob("*.yaml")):
        for scale in ("quick", "paper"):
            one = ran.get((path.stem, scale))
            if one is None:
                lines.append(f"| {path.stem} | {scale} | | none | |")
                continue
            done = sum(cell.state == "done" for cell in one.cells)
            rows = len(next(iter(one.axes.values())))
            table = f"../benchmarks/results/leaderboard/{one.name}_{scale}/table.md"
            lines.append(f"| {path.stem} | {scale} | {rows} | {done} of {len(one.cells)} | [table]({table}) |")
    draws = {path.stem: read_spec(path, "paper")[0].draws for path in SPECS.glob("*.yaml")}
    lines += [
        "",
        f"`paper` is the full task with three seeds and {min(draws.values())} settings a row: its defaults and others,",
        "drawn with equal budgets and chosen on validation.",
        "",
        "No row, and why:",
        "",
    ]
    reasons: dict[str, dict[str, list[str]]] = {}
    for one in comparisons:
        for name, why in one.left_out.items():
            reasons.setdefault(why.removeprefix(f"method {name}: "), {}).setdefault(name, []).append(one.name)
    for why, names in reasons.items():
        rows = ", ".join(f"{name} ({', '.join(tasks)})" for name, tasks in names.items())
        lines.append(f"- {why[0].upper()}{why[1:]}: {rows}.")
    return lines


def _is_broad(comparison: Comparison, board: Leaderboard) -> bool:
    """Whether half of a task's rows are ranked: one that has just begun would leave the others out of the ranking."""
    return 2 * len(board.rows) >= len(next(iter(comparison.axes.values())))


def _board(comparisons: Sequence[Comparison]) -> Leaderboard | None:
    try:
        return make_leaderboard(comparisons, against=AGAINST)
    except ConfigError:
        return None
