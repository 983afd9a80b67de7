"""``fedshift plans``: one task from several sites' plans of nnU-Net."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from fedshift.schema.errors import ConfigError


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "plans",
        help="compare sites' own plans of nnU-Net, and propose one of them as a task for all",
        description="Compare sites' own plans of nnU-Net, and write a task file with one site's plan, a patch that all "
        "sites have, and what they disagree on. Each site's labels are read from the dataset.json beside its plans.",
    )
    parser.add_argument("plans", nargs="+", metavar="SITE=FILE", help="such as A=…/Dataset027_ACDC/nnUNetPlans.json")
    parser.add_argument("--dataset", required=True, metavar="NAME", help="as the sites have prepared it")
    parser.add_argument("--configuration", default="3d_fullres", metavar="NAME", help="default: 3d_fullres")
    parser.add_argument("--propose", metavar="SITE", help="whose plan (default: the first)")
    parser.add_argument("--memory", type=float, default=8.0, metavar="GB", help="of a training step (default 8)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the task file (default: NAME.yaml)")
    parser.add_argument("--force", action="store_true", help="replace a task file that was changed by hand")
    parser.set_defaults(func=execute)


def execute(args: argparse.Namespace) -> int:
    """``fedshift plans``."""
    from rich.table import Table

    from fedshift.cli.display import console
    from fedshift.schema.files import write_text
    from fedshift_survey.planning.site_plans import propose, proposed_task, read_site_plan
    from fedshift_survey.planning.task_file import is_unchanged

    plan_files: dict[str, Path] = {}
    for text in args.plans:
        site, equals, path = text.partition("=")
        if not (site and equals and path) or site in plan_files:
            raise ConfigError("invalid-value", f"{text!r} is not a site with its plans: write each site once, A=FILE")
        plan_files[site] = Path(path)
    proposed = args.propose or next(iter(plan_files))
    if proposed not in plan_files:
        raise ConfigError("site-unknown", f"--propose {proposed} is none of {', '.join(plan_files)}: name one of them")
    out: Path = args.out or Path(f"{args.dataset}.yaml")
    if out.is_file() and not args.force and not is_unchanged(out):
        raise ConfigError(
            "file-changed", f"{out} is not as it was written: keep it by another --out, or replace it (--force)"
        )
    sites = [read_site_plan(site, path, args.configuration) for site, path in plan_files.items()]
    proposal = propose(sites, proposed_site=proposed, memory=args.memory)
    table = Table("", *plan_files, "proposed", title=f"plans, configuration {args.configuration}", title_justify="left")
    for row in proposal.rows:
        table.add_row(row.what if row.agreed else f"{row.what} (differ)", *row.by_site, row.proposed)
    console.print(table)
    write_text(out, proposed_task(proposal, sites, dataset=args.dataset, name=out.stem))
    for site in sites:
        if not site.plans.axes_known:
            print(
                f"note: the files of {site.site} are taken to lie along slices, rows and columns: compare with one, or "
                "name the nnunet_plans.json of its prepared site"
            )
    print(f"a training step takes about {proposal.need:.1f} GB in fp32")
    print(f"{out}: fedshift job fedavg {shlex.quote(str(out))}")
    return 0
