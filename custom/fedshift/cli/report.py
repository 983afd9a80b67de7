"""``fedshift report`` and ``fedshift card``: what runs have given, and what a model is, as pages of HTML."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from fedshift.schema.errors import ConfigError
from fedshift.schema.files import write_text


def add_report(parser: Any) -> None:
    parser.description = (
        "Write one HTML file that needs no network, from the records of runs: what was run, on what data, scores with "
        "intervals, curves, costs, faults, and how to repeat it. Several runs are compared as well."
    )
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="a folder of a run, comparison, leave-one-out, cross-site or evaluate, a workspace, or a results.json",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="FILE.html", help="default: report.html"
    )
    parser.add_argument(
        "--images",
        action="store_true",
        help="with cases, histograms and features, where the sites' data are: such a file must not leave them",
    )
    parser.add_argument(
        "--site-data",
        action="append",
        default=[],
        metavar="SITE=DIR",
        help="with --images: a site's prepared folder; only the sites that are named are shown (repeat it)",
    )
    parser.add_argument(
        "--most-sites", type=int, default=12, metavar="N", help="with --images: of so many sites (default 12)"
    )
    parser.add_argument("--site", metavar="NAME", help="only this site's page: is the federation worth it for it?")
    parser.add_argument(
        "--own",
        type=Path,
        metavar="FILE",
        help="with --site: the site's own against_local.json, for the scores of its single cases, which stay there",
    )
    parser.set_defaults(func=report)


def add_card(parser: Any) -> None:
    parser.description = (
        "Write a model card as one HTML file that needs no network, and as JSON beside it, from the model file and the "
        "results of its run. Nothing in it is typed by hand."
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
    parser.set_defaults(func=card)


def report(args: argparse.Namespace) -> int:
    from fedshift.reporting.report import page
    from fedshift.reporting.report.runs import Run, Transfer, own_models, read
    from fedshift.reporting.report.wording import size

    records = [read(path) for path in args.runs]
    if args.out.is_dir():
        raise ConfigError(
            "not-a-file", f"{args.out} is a folder: name a file with --out, such as {args.out / 'report.html'}"
        )
    pictures = None
    if args.site_data and not args.images:
        raise ConfigError("options-clash", "--site-data is for the images of a report: add --images, or leave it out")
    if args.images:
        if args.most_sites < 1:
            raise ConfigError("invalid-value", f"--most-sites must be at least 1, not {args.most_sites}")
        if not any(
            isinstance(record, Run) or (isinstance(record, Transfer) and own_models(record)) for record in records
        ):
            raise ConfigError(
                "no-model",
                "--images needs models, and what was named holds scores only: name a run, or make a cross-site table "
                "with --keep-models",
            )
        from fedshift.reporting.report.images import sections

        folders = _folders(args.site_data)

        def pictures(record: Run | Transfer) -> list[Any]:
            say = partial(print, flush=True)
            return list(sections(record, folders=folders, most_sites=args.most_sites, progress=say))

    if args.site is not None and args.images:
        raise ConfigError("options-clash", "--site makes a page without images: leave out --images or --site")
    if args.own is not None:
        if args.site is None:
            raise ConfigError("options-clash", "--own is for one site's page: add --site")
        from fedshift.reporting.report.benefit import with_own_cases

        n_runs = sum(isinstance(record, Run) for record in records)
        if n_runs != 1:
            raise ConfigError(
                "several-runs", f"--own is of one run, and {n_runs} are given: name the run that it is of"
            )
        records = [with_own_cases(each, args.site, args.own) if isinstance(each, Run) else each for each in records]
    html = page.render(page.chapters(records, pictures=pictures, site=args.site))
    page.write(html, args.out)
    print(f"report: {args.out} ({size(args.out.stat().st_size)})")
    if args.own is not None:
        print("It has scores of single cases that the site's policy withholds: it is for the site alone.")
    if args.images:
        print("It contains images: if they are of patients, it must not leave the site.")
    return 0


def _folders(words: list[str]) -> dict[str, Path] | None:
    """``SITE=DIR`` as a mapping; None if nothing was given."""
    folders = {}
    for text in words:
        site, sign, folder = text.partition("=")
        if not sign or not site or not folder:
            raise ConfigError(
                "invalid-value", f"--site-data takes SITE=DIR, such as BIDMC=/data/prostate/BIDMC, not {text!r}"
            )
        folders[site] = Path(folder).absolute()
    return folders or None


def card(args: argparse.Namespace) -> int:
    from fedshift.reporting import card
    from fedshift.reporting.report import page

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
