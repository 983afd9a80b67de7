"""The command ``fedshift data prepare own``."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedshift.cli.arguments import add_shared
from fedshift.cli.display import console
from fedshift.cli.prepared import (
    add_volumes,
    default_root,
    print_export,
    print_findings,
    print_next,
    print_site,
    progress,
)
from fedshift.schema.codes import Codes, parse_codes, takes_empty
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import read_yaml
from fedshift.schema.names import comma_separated
from fedshift.schema.strict import nearest
from fedshift.schema.task_files import Numbered, apps_dir, tasks

ABOUT = """A hospital's own scans as a site. Run it again to add or withdraw cases.

The scans are two folders, --images and --masks, with the same file names; or --source, a folder with images and masks
in one of the usual layouts (beside each other, images/ and masks/, imagesTr/ and labelsTr/ with dataset.json, a folder
for each case, or DICOM studies with DICOM SEG or RT Structure Sets); or patterns in quotes, such as
--images 'sub-*/anat/*_T2w.nii.gz'; or --cases, a table with a row for each case, which --write-cases writes of any of
these, to be read and edited.
"""


def add_parser(kinds: Any) -> None:
    """Add ``own`` to the data sets."""
    parser = kinds.add_parser(
        "own",
        help="a hospital's own scans; run again to add or withdraw cases",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        help="NIfTI, NRRD or MHA files, one folder per DICOM series, or DICOM studies; or a pattern in quotes",
    )
    parser.add_argument(
        "--masks",
        type=Path,
        metavar="DIR",
        help="masks with the same names as the images, or DICOM masks of them; or a pattern",
    )
    parser.add_argument(
        "--source", type=Path, metavar="DIR", help="a folder with images and masks; or what the others begin at"
    )
    parser.add_argument(
        "--cases", type=Path, metavar="FILE", help="a table of cases (.csv) with the images and masks of each"
    )
    parser.add_argument(
        "--write-cases", type=Path, metavar="FILE", help="only write the table of the cases that are found, and stop"
    )
    parser.add_argument("--site", metavar="NAME", help="the site's name in the federation")
    parser.add_argument("--dataset", metavar="NAME", help="the data set that the site takes part in (or give --task)")
    parser.add_argument("--task", metavar="TASK", help="the task, or its .yaml file, that names data set and classes")
    add_meaning(parser)
    parser.add_argument("--withdraw", nargs="+", default=[], metavar="ID", help="cases to remove")
    parser.add_argument("--licence", metavar="TEXT", help="licence terms, stored in the manifest")
    add_shared(parser, "--true-spacing", "--interpolate")
    add_volumes(parser)
    parser.set_defaults(func=run)


def add_meaning(parser: Any) -> None:
    """Options that say what scans and masks are."""
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="NAME=V,V",
        help="a class and the mask's values for it (or names of structures, as DICOM has), once for each class; "
        "several are merged",
    )
    parser.add_argument(
        "--sequence",
        action="append",
        default=[],
        metavar="NAME[=PATTERN]",
        help="an image sequence, once for each, in their order; with a pattern in place of --images",
    )
    parser.add_argument(
        "--annotated", type=comma_separated, metavar="A,B", help="the classes that the masks outline (default: all)"
    )
    add_shared(parser, "--volume")


def meaning(args: argparse.Namespace) -> dict[str, Any]:
    """What `add_meaning` asks for, as `check` and `prepare_own` take it."""
    from fedshift.data.cases import parse_sequences
    from fedshift.data.labels import parse_labels

    return {
        "labels": parse_labels(args.label),
        "sequences": parse_sequences(args.sequence),
        "annotated": args.annotated,
        "volume": args.volume,
    }


def run(args: argparse.Namespace) -> int:
    """Prepare the site, or write the table of its cases; returns the exit code."""
    from data_prep.own_scans import LICENCE, prepare_own

    if args.cases is not None:
        if args.source is not None:
            raise ConfigError("options-clash", "--cases takes the place of --source: give one of the two")
        args.source = args.cases
    if args.write_cases is not None:
        return _write_cases(args)
    if args.site is None:
        raise ConfigError("site-missing", "which site is it? give its name in the federation with --site")
    dataset, task = _dataset(args.dataset, args.task)
    with progress(None) as on_case:
        folder = prepare_own(
            args.images,
            args.masks,
            args.site,
            args.out or default_root(),
            dataset=dataset,
            source=args.source,
            classes=task.classes,
            codes=task.codes,
            wanted=task.sequences,
            withdraw=args.withdraw,
            matrices=args.matrix,
            licence=args.licence or LICENCE,
            trust_voxels=args.trust_voxels,
            interpolate=args.interpolate,
            true_spacing=args.true_spacing,
            empty=args.empty or task.empty,
            skip_damaged=args.skip_damaged,
            progress=on_case,
            **meaning(args),
        )
    print_site(folder)
    print_export(args.out)
    if task.sites and args.site not in task.sites:
        known = nearest(args.site, task.sites)
        console.print(f"note: the task has no site {args.site!r} yet{known}", markup=False, highlight=False)
    print_next(dataset)
    return 0


def _write_cases(args: argparse.Namespace) -> int:
    """Write the table of the cases; what keeps files out of it is printed."""
    from fedshift.data.cases_csv import write_cases
    from fedshift.data.layouts.find import gather

    chosen = meaning(args)
    tables = gather(
        args.source, images=args.images, masks=args.masks, sequences=chosen["sequences"], volume=args.volume
    )
    write_cases(tables, args.write_cases)
    print_findings(finding for table in tables for finding in table.findings)
    cases = sum(len(table.cases) for table in tables)
    console.print(f"{cases} case(s) in {args.write_cases}", markup=False, highlight=False)
    labels = next((table.labels for table in tables if table.labels), None)
    values_of = {} if labels is None else labels.values
    options = [f"--label {shlex.quote(name)}={','.join(map(str, values))}" for name, values in values_of.items()]
    command = " ".join(["fedshift data prepare own --cases", shlex.quote(str(args.write_cases)), *options])
    console.print(f"next: {command} --site NAME --task TASK", markup=False, highlight=False)
    return 0


@dataclass(frozen=True)
class NamedTask:
    """What a task file says of the data; empty or None for what it leaves out."""

    dataset: str
    classes: tuple[str, ...] | None = None
    codes: Codes = field(default_factory=dict)
    sites: tuple[str, ...] = ()
    """Those that train and those that are held out."""
    sequences: tuple[str, ...] | None = None
    """Those that it takes, empty for one without a name; None if it does not say what it takes of the data."""
    empty: bool = False
    """Whether it takes cases without the structure."""


def _dataset(dataset: str | None, task: str | None) -> tuple[str, NamedTask]:
    """The data set's name, and the task that is named, or that has it."""
    if task is None:
        if dataset is None:
            raise ConfigError(
                "dataset-missing",
                "which data set is it? give --task, the task that the site takes part in, or --dataset",
            )
        known = (read_yaml(apps_dir() / f"{name}.yaml") for name in tasks())
        likely = next((_said(raw, dataset) for raw in known if raw.get("dataset") == dataset), NamedTask(dataset))
        return dataset, replace(likely, sites=(), sequences=None)  # nobody has named the task
    named = named_by(task)
    return dataset or named.dataset, named


def named_by(task: str) -> NamedTask:
    """What a task, or its .yaml file, says of the data."""
    if task.endswith((".yaml", ".yml")):
        path = Path(task)
    elif task in tasks():
        path = apps_dir() / f"{task}.yaml"
    else:
        raise ConfigError(
            "task-unknown", f"there is no task {task!r}{nearest(task, tasks())}, or the path of a .yaml file"
        )
    named = _said(read_yaml(path), str(path))
    if not named.dataset:
        raise ConfigError("dataset-missing", f"{path} has no 'dataset': name the data set there")
    return named


def _said(raw: dict[str, Any], where: str) -> NamedTask:
    classes, sites, held_out, data = (raw.get(key) for key in ("classes", "sites", "held_out", "data"))
    codes = parse_codes(raw, where=where)
    named = tuple(map(str, classes)) if isinstance(classes, list) else None
    taken = (data.get("sequences") or ()) if isinstance(data, dict) else None
    if isinstance(sites, dict):
        sites = Numbered.parse(sites, where=f"{where}: sites").names
    return NamedTask(
        str(raw.get("dataset") or ""),
        named,
        codes,
        tuple(map(str, [*sites, *(held_out if isinstance(held_out, list) else [])])) if isinstance(sites, list) else (),
        tuple(map(str, taken)) if isinstance(taken, list | tuple) else None,
        named is not None and takes_empty(data if isinstance(data, dict) else {}, named, codes),
    )
