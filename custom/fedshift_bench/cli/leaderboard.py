"""The command ``fedshift leaderboard``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "leaderboard",
        help="rank methods over several comparisons",
        description="Rank the rows that all of the given comparisons have, with Friedman's test, critical differences "
        "and tests against one row, and write leaderboard.md, leaderboard.csv and leaderboard.svg.",
    )
    parser.add_argument(
        "comparisons", nargs="+", type=Path, metavar="DIR", help="a folder with the cells.json of a comparison"
    )
    parser.add_argument("--against", metavar="ROW", help="the row to test against (default: as the comparisons say)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/leaderboard"), metavar="DIR", help="default: runs/leaderboard"
    )
    parser.set_defaults(func=leaderboard_command)


def leaderboard_command(args: argparse.Namespace) -> int:
    """The command ``fedshift leaderboard``."""
    from fedshift.cli.display import console
    from fedshift_bench.leaderboard import make_leaderboard, rich_leaderboard, write_leaderboard
    from fedshift_bench.record import read_comparison

    comparisons = [read_comparison(path) for path in args.comparisons]
    board = make_leaderboard(comparisons, against=args.against)
    title = f"Mean ranks over {', '.join(comparison.name for comparison in comparisons)}"
    console.print(rich_leaderboard(board, title))
    paths = write_leaderboard(board, args.out, title=title, left_out={})
    print(f"ranks: {', '.join(str(path) for path in paths)}")
    return 0
