"""``fedshift data prepare own --table``: a hospital's own pictures or volumes to classify."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fedshift.cli.display import console
from fedshift.cli.prepared import default_root, print_export, print_next, print_site, progress
from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import nearest

if TYPE_CHECKING:
    from fedshift.cli.own_scans import NamedTask

OF_SCANS = {
    "source": "--source",
    "masks": "--masks",
    "cases": "--cases",
    "write_cases": "--write-cases",
    "label": "--label",
    "sequence": "--sequence",
    "annotated": "--annotated",
    "withdraw": "--withdraw",
    "matrix": "--matrix",
    "empty": "--empty",
    "interpolate": "--interpolate",
    "trust_voxels": "--trust-voxels",
}
OF_PICTURES = {"size": "--size", "bits": "--bits"}
OF_VOLUMES = {"volume": "--volume", "true_spacing": "--true-spacing"}
SIZE = 224
"""Of pictures without a task."""


def refuse_options(args: argparse.Namespace, options: dict[str, str], what: str) -> None:
    """Refuse those of some options that are given, which have no effect (`ConfigError`)."""
    for name, option in options.items():
        if getattr(args, name):
            raise ConfigError("no-effect", f"{option} has no effect {what}: leave it out")


def refuse_table(args: argparse.Namespace, task: NamedTask) -> None:
    """Refuse a table for a task of masks, or a task of labels without a table (`ConfigError`)."""
    if task.kind == "classification" and args.table is None:
        raise ConfigError(
            "table-missing",
            f"the task of {task.dataset} classifies: name the table of labels, or a folder with one for each class, "
            "with --table",
        )
    if task.kind not in (None, "classification") and args.table is not None:
        message = f"--table is for tasks that classify, and that of {task.dataset} has masks"
        raise ConfigError("no-effect", f"{message}: give these with --masks or --source")
    if args.table is None:
        refuse_options(args, OF_PICTURES, "on scans with masks")


def run(args: argparse.Namespace, dataset: str, task: NamedTask) -> int:
    """Prepare the site; returns the exit code."""
    from data_prep.own_labels import prepare_labelled
    from data_prep.own_scans import LICENCE

    refuse_options(args, OF_SCANS, "with --table")
    if task.volumes is not None:
        options, what = (OF_PICTURES, "volumes") if task.volumes else (OF_VOLUMES, "pictures")
        refuse_options(args, options, f"on {what}, which the task takes")
    with progress(None) as on_picture:
        folder = prepare_labelled(
            args.table,
            args.site,
            args.out or default_root(),
            dataset=dataset,
            images=args.images,
            subject=args.subject,
            classes=task.classes,
            findings=task.findings,
            volumes=task.volumes,
            wanted=task.sequences or (),
            volume=args.volume,
            true_spacing=args.true_spacing,
            sizes=args.size or task.sizes or (SIZE,),
            channels=task.channels,
            bits=args.bits,
            licence=args.licence or LICENCE,
            skip_damaged=args.skip_damaged,
            progress=on_picture,
        )
    print_site(folder)
    print_export(args.out)
    if task.sites and args.site not in task.sites:
        hint = nearest(args.site, task.sites)
        console.print(f"note: the task has no site {args.site!r} yet{hint}", markup=False, highlight=False)
    if args.task is None:
        print_next(dataset)
    return 0
