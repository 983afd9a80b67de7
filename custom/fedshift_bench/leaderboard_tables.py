"""A leaderboard's files: ``leaderboard.md``, ``leaderboard.csv`` and the diagram ``leaderboard.svg``."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table as RichTable
from rich.text import Text

from fedshift.reporting.differences import signed
from fedshift.reporting.p_values import p_equals, p_text
from fedshift.schema.csv_text import csv_text
from fedshift.schema.files import write_text
from fedshift_bench.leaderboard import Leaderboard, RankedRow
from fedshift_bench.rank_figure import rank_svg
from fedshift_bench.ranks import ALPHA, FEWEST

HEADINGS = ("", "mean rank", "mean score{unit}", "against {against}", "p", "p (Holm)")
FILES = ("leaderboard.md", "leaderboard.csv", "leaderboard.svg")


def cells_of(row: RankedRow, board: Leaderboard) -> list[str]:
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
    n = len(board.blocks)
    seeds = "; ".join(
        f"{name} {'seed' if len(of) == 1 else 'seeds'} {', '.join(map(str, of))}" for name, of in board.seeds.items()
    )
    lines = [
        f"{len(board.rows)} rows ranked in {n} blocks, a task and a site each, mean over seeds ({seeds}); 1 is best."
    ]
    lines += board.below_guess
    if board.friedman is None:
        enough = len(board.rows) >= FEWEST and n >= FEWEST
        why = "all scores are equal" if enough else f"it needs {FEWEST} rows and blocks"
        lines.append(f"There is no Friedman test: {why}.")
    else:
        found = board.friedman
        lines.append(f"Friedman's test that all rows are alike: χ² = {found.statistic:.1f}, p {p_equals(found.p)}.")
    if board.critical_difference is not None:
        lines.append(
            f"Critical difference of two mean ranks (Nemenyi, α = {ALPHA}): {board.critical_difference:.2f}. "
            f"{not_told_apart(board)}"
        )
    tested = [row for row in board.rows if row.name != board.against]
    made = [row for row in tested if row.p is not None]
    lines.append(
        f"p is from a {board.test}, against {board.against}; Holm's correction is for {len(made)} tests."
        if made
        else f"No row is tested against {board.against}: {_untested(tested, board)}."
    )
    return lines


def _untested(rows: list[RankedRow], board: Leaderboard) -> str:
    pairs = max((row.pairs for row in rows), default=0)
    if pairs >= FEWEST:  # to a t-test constant differences, and to a signed-rank test equal pairs, tell nothing
        return f"a {board.test} can tell nothing from the differences that there are"
    return f"a {board.test} needs {FEWEST} pairs, and there {'is' if pairs == 1 else 'are'} {pairs}"


def not_told_apart(board: Leaderboard) -> str:
    """Which rows are not told apart from the first, and whether the baseline is one of them."""
    first = board.rows[0].name
    group = next((group for group in board.groups if group[0] == first), (first,))
    if len(group) == len(board.rows):
        return "No two rows are told apart."
    apart = len(board.rows) - len(group)
    others = f"{first} is told apart from {apart} of {len(board.rows) - 1} others"
    if board.against != first:
        others += f", {board.against} {'not ' if board.against in group else ''}among them"
    return f"{others}."


def leaderboard_markdown(board: Leaderboard, title: str, left_out: dict[str, str]) -> str:
    """The table in Markdown, with notes and the rows that are not in it."""
    lines = [f"# {title}", "", f"![Mean ranks]({FILES[2]})", "", *table_lines(board), ""]
    lines += [f"- {line}" for line in notes(board)]
    if left_out or board.unranked:
        lines += ["", "Not in the table:", ""]
        lines += [f"- {name}: {reason}" for name, reason in {**board.unranked, **left_out}.items()]
    return "\n".join(lines) + "\n"


def table_lines(board: Leaderboard) -> list[str]:
    """The lines of the table in Markdown."""
    lines = [f"| {' | '.join(headings(board))} |".replace("|  |", "| row |"), "|---|" + "---:|" * (len(HEADINGS) - 1)]
    return lines + [f"| {' | '.join([row.name, *cells_of(row, board)])} |" for row in board.rows]


def rich_leaderboard(board: Leaderboard, title: str) -> RichTable:
    """The table for the terminal."""
    table = RichTable(
        title=Text(title), caption=Text("\n".join(notes(board))), title_justify="left", caption_justify="left"
    )
    for number, heading in enumerate(headings(board)):
        table.add_column(Text(heading), justify="right" if number else "left", no_wrap=not number)
    for row in board.rows:
        table.add_row(*map(Text, [row.name, *cells_of(row, board)]))
    return table


def leaderboard_csv(board: Leaderboard) -> str:
    """The table in CSV, with every block's score."""
    rows: list[list[object]] = []
    for place, row in enumerate(board.rows):
        numbers = [row.rank, row.score, row.difference, row.pairs, row.p, row.p_holm, *board.scores[:, place]]
        rows.append([row.name, *("" if number is None else f"{number:.6g}" for number in numbers)])
    return csv_text(["row", "mean rank", "mean score", "difference", "pairs", "p", "p holm", *board.blocks], rows)


def write_leaderboard(board: Leaderboard, folder: Path, *, title: str, left_out: dict[str, str]) -> list[Path]:
    """Write the files.

    Returns:
        The written files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = (leaderboard_markdown(board, title, left_out), leaderboard_csv(board), rank_svg(board, title))
    for name, text in zip(FILES, texts, strict=True):
        write_text(folder / name, text)
    return [folder / name for name in FILES]
