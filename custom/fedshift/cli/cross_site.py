"""``fedshift cross-site``: every site's own model at every site."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedshift.cli.arguments import add_phantom
from fedshift.cli.display import console, shown
from fedshift.cli.job import add_job_arguments, resolve_job


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    cross = subparsers.add_parser(
        "cross-site",
        help="score every site's own model at every site (simulation only)",
        description="Score every site's own model, as it is after its last local training, on every site's test part. "
        "Simulation only, in one process: in a federation these models never leave their sites.",
    )
    add_job_arguments(cross, with_methods=False, with_held_out=False)
    cross.add_argument(
        "--methods", default="single", metavar="METHODS", help="joined by +; single (default): all sites train alone"
    )
    cross.add_argument("-w", "--workspace", type=Path, metavar="DIR", help="default: runs/<name>_cross_site")
    cross.add_argument(
        "--keep-models",
        action="store_true",
        help="leave each site's own model in own_models/: `fedshift report --images` shows its features",
    )
    add_phantom(cross)
    cross.set_defaults(func=cross_site)


def cross_site(args: argparse.Namespace) -> int:
    """``fedshift cross-site``."""
    from fedshift.data.locate import find_sites, is_phantom
    from fedshift.federation import protocols
    from fedshift.methods import method_set
    from fedshift.reporting.protocol_tables import cross_site_table
    from fedshift.schema.errors import ConfigError
    from fedshift.schema.protocol_results import CrossSite, own_model

    job = resolve_job(args, held_out=[], sites=args.sites)
    method_set.require_federation(job)
    from fedshift.tasks.device import own_device

    device = own_device()
    data = find_sites(job)
    protocols.require_training_samples(data)
    folder = (args.workspace or Path("runs") / f"{job.name}_cross_site").absolute()
    protocols.claim(folder, job)
    if (folder / CrossSite.FILE_NAME).is_file():
        record = CrossSite.read(folder)
        if args.keep_models and not all(own_model(folder, site).is_file() for site in job.task.sites):
            raise ConfigError(
                "run-exists", f"{folder} has its table already, made without --keep-models: give another --workspace"
            )
    else:
        keep = args.keep_models
        with shown(folder, job, phantom=is_phantom(data)) as show:
            record = protocols.cross_site(job, data, folder, device=device, keep_models=keep, on_progress=show)
    console.print(cross_site_table(record))
    print(f"table: {folder / CrossSite.FILE_NAME}")
    return 0
