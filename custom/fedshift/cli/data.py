"""``fedshift data``: prepare sites, check scans and sites, and say how files are read."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from fedshift.cli import fetch, own_labels, own_scans, phantom
from fedshift.cli.arguments import add_shared
from fedshift.cli.display import console
from fedshift.cli.prepared import (
    add_out,
    add_volumes,
    default_root,
    print_export,
    print_findings,
    print_next,
    print_site,
    progress,
    sizes,
)
from fedshift.schema.errors import ConfigError, FedshiftError
from fedshift.schema.manifest import read_manifest
from fedshift.schema.names import one_line, printable

if TYPE_CHECKING:
    from fedshift.data.case_notes import Counts
    from fedshift.data.explain import Explained
    from fedshift.data.scan_file import Finding

MAX_SITES_LISTED = 20
"""With more sites than this, only their number is printed."""


def add_arguments(parser: Any) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    prepare = commands.add_parser("prepare", help="convert scans or images to a prepared site")
    kinds = prepare.add_subparsers(required=True, metavar="DATASET")
    own_scans.add_parser(kinds)
    for file in sorted(resources.files("data_prep").iterdir(), key=lambda file: file.name):
        text = file.read_text(encoding="utf-8") if file.name.endswith(".py") else ""
        if re.search(r"^def plan(?:_volumes)?\(", text, re.MULTILINE):
            name = file.name.removesuffix(".py")
            kinds.add_parser(
                name,
                fill=partial(_add_data_set, f"data_prep.{name}"),
                help=text.partition("\n")[0].strip('"'),
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
    fetch.add_parser(commands)
    look = commands.add_parser("check", help="report problems of scans or prepared sites")
    look.add_argument("dir", type=Path, metavar="DIR", help="a folder of scans or a pattern, or prepared data")
    look.add_argument("--masks", type=Path, metavar="DIR", help="the masks, if they are in another folder")
    look.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="the labels (.csv) of pictures or volumes to classify, or the folder of their classes' folders",
    )
    look.add_argument("--task", metavar="TASK", help="the task, or its .yaml file, that names the classes")
    look.add_argument(
        "--explain",
        action="store_true",
        help="how a scan, series or mask is read, and why not if it is not; DIR may be a file, --masks its mask",
    )
    own_scans.add_meaning(look)
    add_shared(look, "--subject", "--trust-voxels", "--interpolate", "--empty")
    look.set_defaults(func=_check)
    formats = commands.add_parser("formats", help="what is read, converted, warned of and refused, by format")
    formats.set_defaults(func=_formats)
    phantom.add_parser(commands)


def _add_data_set(name: str, parser: Any) -> None:
    """Add the options of a data set, whose module needs NumPy and Pillow or SimpleITK."""
    module = importlib.import_module(name)
    parser.description = module.__doc__
    parser.add_argument("--source", type=Path, required=True, metavar="DIR", help="the downloaded data, see above")
    if hasattr(module, "plan_volumes"):
        add_volumes(parser)
        parser.set_defaults(func=_prepare_volumes, plan=module.plan_volumes)
    else:
        _add_pictures(parser)
        parser.set_defaults(func=_prepare_pictures, plan=module.plan)
    if hasattr(module, "add_options"):
        module.add_options(parser)


def _add_pictures(parser: Any) -> None:
    add_out(parser)
    parser.add_argument(
        "--size",
        type=sizes,
        metavar="N,M",
        help="image sizes in pixels (default: those of the task and its protocols)",
    )
    add_shared(parser, "--bits")
    parser.add_argument("--skip-damaged", action="store_true", help="skip images that cannot be read, and count them")


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments that the data set's own plan takes."""
    return {key: value for key, value in vars(args).items() if key in inspect.signature(args.plan).parameters}


@contextmanager
def _own_options(args: argparse.Namespace) -> Iterator[None]:
    """Say where to find options that an error names and this data set's command does not have."""
    try:
        yield
    except FedshiftError as error:
        named = {option: option in str(error) for option in ("--label", "--sequence")}
        lacking = [option for option, is_named in named.items() if is_named and not hasattr(args, option[2:])]
        if not lacking:
            raise
        hint = f"'data prepare own' takes {' and '.join(lacking)}, and this command does not"
        raise FedshiftError(error.code, f"{error}; {hint}") from None


def _prepare_volumes(args: argparse.Namespace) -> int:
    with _own_options(args):
        return _write_volumes(args)


def _write_volumes(args: argparse.Namespace) -> int:
    from data_prep.volumes import write_volumes

    plan = args.plan(**_options(args))
    with progress(plan.total) as on_case:
        folders = write_volumes(
            plan,
            args.out or default_root(),
            matrices=args.matrix,
            trust_voxels=args.trust_voxels,
            empty=args.empty,
            skip_damaged=args.skip_damaged,
            progress=on_case,
        )
    for folder in folders:
        print_site(folder)
    print_export(args.out)
    print_next(folders[0].parent.name)
    return 0


def _prepare_pictures(args: argparse.Namespace) -> int:
    from data_prep.labelled_volumes import LabelledPlan, write_labelled_sites
    from data_prep.pictures import write_pictures

    plan = args.plan(**_options(args))
    if isinstance(plan, LabelledPlan):
        own_labels.refuse_options(args, own_labels.OF_PICTURES, "on volumes")
        with progress(plan.total) as on_case:
            folders = write_labelled_sites(
                plan, args.out or default_root(), skip_damaged=args.skip_damaged, progress=on_case
            )
        return _print_sites(folders, args.out)
    with progress(plan.total) as on_case:
        folders = write_pictures(
            plan,
            args.out or default_root(),
            sizes=args.size,
            bits=args.bits,
            skip_damaged=args.skip_damaged,
            progress=on_case,
        )
    return _print_sites(folders, args.out)


def _print_sites(folders: list[Path], out: Path | None) -> int:
    if len(folders) <= MAX_SITES_LISTED:
        for folder in folders:
            print_site(folder)
    else:
        manifests = [read_manifest(folder) for folder in folders]
        noun = "cases" if manifests[0].cases else "pictures"
        written = sum(len(manifest.entries) for manifest in manifests)
        console.print(f"{len(folders)} sites, {written} {noun}, in {folders[0].parent}", markup=False)
        if manifests[0].pictures:
            console.print(f"  look at {folders[0].parent / 'montage.png'}", markup=False)
    print_export(out)
    return 0


def _check(args: argparse.Namespace) -> int:
    """Print the findings; the exit code is 1 if there are errors."""
    if args.explain:
        return _explain(args)
    from fedshift.data.case_notes import Counts
    from fedshift.data.check import check

    counts = Counts()
    task = own_scans.named_by(args.task) if args.task else own_scans.NamedTask("")
    if args.table is not None:
        findings = _check_table(args, task, counts)
        return _print_checked(args.dir, findings, counts)
    with progress(None) as on_case:
        findings = check(
            args.dir,
            masks=args.masks,
            dataset=task.dataset,
            classes=task.classes,
            codes=task.codes,
            regions=task.regions,
            ignore=task.ignore,
            wanted=task.sequences,
            subject=args.subject,
            trust_voxels=args.trust_voxels,
            interpolate=args.interpolate,
            empty=args.empty or task.empty,
            progress=on_case,
            counts=counts,
            **own_scans.meaning(args),
        )
    if task.kind == "classification" and any(finding.code == "layout-unknown" for finding in findings):
        console.print(
            "to check pictures or volumes to classify, name the table of their labels with --table, or there the "
            "folder that has one for each class"
        )
    return _print_checked(args.dir, findings, counts)


def _check_table(args: argparse.Namespace, task: own_scans.NamedTask, counts: Counts) -> list[Finding]:
    from fedshift.data.label_check import check_table

    if task.kind not in (None, "classification"):
        raise ConfigError("no-effect", f"--table is for tasks that classify, and {args.task} has masks: leave it out")
    options = {"masks": "--masks", "label": "--label", "sequence": "--sequence", "annotated": "--annotated"}
    options |= {"empty": "--empty", "trust_voxels": "--trust-voxels", "interpolate": "--interpolate"}
    own_labels.refuse_options(args, options, "with --table")
    with progress(None) as on_image:
        return check_table(
            args.table,
            args.dir,
            subject=args.subject,
            classes=task.classes,
            findings=task.findings,
            volumes=task.volumes,
            volume=args.volume,
            channels=task.channels,
            progress=on_image,
            counts=counts,
        )


def _print_checked(folder: Path, findings: Sequence[Finding], counts: Counts) -> int:
    """Print what was found and a summary; 1 if there are errors."""
    print_findings(findings)
    errors = sum(finding.level == "error" for finding in findings)
    summary = f"{errors} error(s), {len(findings) - errors} warning(s)"
    asked = "; prepare will ask for --label" if counts.unnamed else ""
    console.print(f"{folder}: {counts}: {summary}{asked}", markup=False)
    return 1 if errors else 0


def _explain(args: argparse.Namespace) -> int:
    """Print how each file is read; the exit code is 1 if one cannot be."""
    from fedshift.data.explain import ReadingOptions, explain

    for option in ("task", "table", "label", "sequence", "annotated"):
        if getattr(args, option):
            raise ConfigError(
                "options-clash", f"--explain shows a file as it is, whatever the task: leave out --{option}"
            )
    options = ReadingOptions(
        args.volume, trust_voxels=args.trust_voxels, interpolate=args.interpolate, may_be_empty=args.empty
    )
    failed = False
    for result in explain(args.dir, args.masks, options):
        console.print(_reading_table(result), markup=False)
        print_findings(result.findings)
        failed = failed or any(finding.level == "error" for finding in result.findings)
    return int(failed)


def _reading_table(result: Explained) -> Table:
    table = Table(title=escape(printable(str(result.path))), title_justify="left", show_header=False)
    record = {} if result.reading is None else result.reading.model_dump()
    remarks = record.pop("remarks", ())
    for name, value in {**record, **result.outcome}.items():
        table.add_row(name.replace("_", " "), escape(one_line(value)))
    for remark in remarks:
        table.add_row("remark", escape(one_line(remark)))
    if result.reading is None:
        table.add_row("not read", "see below")
    return table


def _formats(args: argparse.Namespace) -> int:
    """Print the tables of what is read, as the documentation has them."""
    from fedshift.data.reading_rules import RULES, table

    print("\n\n".join(map(table, RULES)))
    return 0
