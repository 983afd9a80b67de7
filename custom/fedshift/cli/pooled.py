"""``fedshift pooled``: a centralised reference, trained on all sites' images in one process."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedshift.cli.arguments import add_device, add_earlier_run, add_memory, add_phantom
from fedshift.cli.job import add_job_arguments, resolve_job


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    pooled = subparsers.add_parser("pooled", help="train a centralised reference on all sites' images, in one process")
    add_job_arguments(pooled)
    pooled.add_argument("-w", "--workspace", type=Path, metavar="DIR", help="default: runs/<name of the job>")
    add_earlier_run(pooled)
    add_phantom(pooled)
    add_device(pooled)
    add_memory(pooled)
    pooled.set_defaults(func=train_pooled)


def train_pooled(args: argparse.Namespace) -> int:
    """``fedshift pooled``."""
    from fedshift.cli.run import in_one_process
    from fedshift.federation.in_process import run_pooled
    from fedshift.methods import method_set
    from fedshift.schema.errors import ConfigError

    job = resolve_job(args)
    if method_set.pooled_reference(job.methods) is None:
        known = method_set.pooled_references()
        raise ConfigError(
            "not-a-reference",
            f"{args.methods} is no centralised reference ({', '.join(known)}): use 'fedshift job' and 'run'",
        )
    return in_one_process(job, args, run_pooled)
