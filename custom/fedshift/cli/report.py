"""``fedshift report``."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    report = subparsers.add_parser(
        "report",
        help="write the results of runs, comparisons and evaluations as one HTML file",
        description="Write one HTML file that needs no network, from the records of runs: what was run, on what data, "
        "scores with intervals, curves, costs, faults, and how to repeat it. Several runs are compared as well.",
    )
    report.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="a folder of a run, comparison, leave-one-out, cross-site or evaluate, a workspace, or a results.json",
    )
    report.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="FILE.html", help="default: report.html"
    )
    report.add_argument(
        "--images",
        action="store_true",
        help="with cases, histograms and features, where the sites' data are: such a file must not leave them",
    )
    report.add_argument(
        "--site-data",
        action="append",
        default=[],
        metavar="SITE=DIR",
        help="with --images: a site's prepared folder; only the sites that are named are shown (repeat it)",
    )
    report.add_argument(
        "--most-sites", type=int, default=12, metavar="N", help="with --images: of so many sites (default 12)"
    )
    report.add_argument("--site", metavar="NAME", help="only this site's page: is the federation worth it for it?")
    report.add_argument(
        "--own",
        type=Path,
        metavar="FILE",
        help="with --site: the site's own against_local.json, for the scores of its single cases, which stay there",
    )
    report.set_defaults(func=write)


def write(args: argparse.Namespace) -> int:
    """``fedshift report``."""
    from fedshift.reporting.report import page
    from fedshift.reporting.report.runs import Run, Transfer, own_models, read
    from fedshift.reporting.report.wording import size
    from fedshift.schema.errors import ConfigError

    given = [read(path) for path in args.runs]
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
        if not any(isinstance(one, Run) or (isinstance(one, Transfer) and own_models(one)) for one in given):
            raise ConfigError(
                "no-model",
                "--images needs models, and what was named holds scores only: name a run, or make a cross-site table "
                "with --keep-models",
            )
        from fedshift.reporting.report.images import sections

        folders = _folders(args.site_data)

        def pictures(one: Run | Transfer) -> list[Any]:
            told = partial(print, flush=True)
            return list(sections(one, folders=folders, most_sites=args.most_sites, tell=told))

    if args.site is not None and args.images:
        raise ConfigError("options-clash", "--site makes a page without images: leave out --images or --site")
    if args.own is not None:
        if args.site is None:
            raise ConfigError("options-clash", "--own is for one site's page: add --site")
        from fedshift.reporting.report.benefit import with_own_cases

        runs = [one for one in given if isinstance(one, Run)]
        if len(runs) != 1:
            raise ConfigError(
                "several-runs", f"--own is of one run, and {len(runs)} are given: name the run that it is of"
            )
        given = [with_own_cases(one, args.site, args.own) if isinstance(one, Run) else one for one in given]
    html = page.render(page.chapters(given, pictures=pictures, site=args.site))
    page.write(html, args.out)
    print(f"report: {args.out} ({size(args.out.stat().st_size)})")
    if args.own is not None:
        print("It has scores of single cases that the site's policy withholds: it is for the site alone.")
    if args.images:
        print("It contains images: if they are of patients, it must not leave the site.")
    return 0


def _folders(given: list[str]) -> dict[str, Path] | None:
    """``SITE=DIR`` as a mapping; None if nothing was given."""
    from fedshift.schema.errors import ConfigError

    folders = {}
    for text in given:
        site, sign, folder = text.partition("=")
        if not sign or not site or not folder:
            raise ConfigError(
                "invalid-value", f"--site-data takes SITE=DIR, such as BIDMC=/data/prostate/BIDMC, not {text!r}"
            )
        folders[site] = Path(folder).absolute()
    return folders or None
