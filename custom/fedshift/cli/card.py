"""``fedshift card``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "card",
        help="write a model card: what a model was trained on, its use and limits, scores, privacy, versions",
        description="Write a model card as one HTML file that needs no network, and as JSON beside it, from the model "
        "file and the results of its run. Nothing in it is typed by hand.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="best_global_model.pt of a run, for example")
    parser.add_argument(
        "results",
        type=Path,
        nargs="?",
        metavar="RESULTS",
        help="the run's folder or results.json (default: the one beside the model, if there is one)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("card.html"), metavar="FILE.html", help="default: card.html; and FILE.json"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """``fedshift card``."""
    import json

    from fedshift.reporting import card
    from fedshift.reporting.report import page
    from fedshift.schema.errors import ConfigError
    from fedshift.schema.files import write_text

    if args.out.is_dir() or args.out.suffix != ".html":
        raise ConfigError(
            "invalid-value", f"--out {args.out}: name a file that ends in .html; a file with .json is written beside it"
        )
    described = card.describe(args.model, args.results)
    page.write(page.render(page.with_ids([card.chapter(described)])), args.out)
    record = args.out.with_suffix(".json")
    try:
        write_text(record, json.dumps(card.record(described), indent=1))
    except OSError as error:
        raise ConfigError(
            "file-unwritable", f"{record} cannot be written ({error.strerror}): name another file with --out"
        ) from None
    print(f"model card: {args.out}, {record}")
    if described.run is None:
        print("without test scores: there is no results.json beside the model; name the run's folder to have them")
    return 0
