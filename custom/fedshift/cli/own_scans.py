"""The command ``fedshift data prepare own``."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedshift.cli import own_labels
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
    sizes,
)
from fedshift.schema.codes import Codes, parse_codes, takes_empty
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import comma_separated
from fedshift.schema.regions import Regions
from fedshift.schema.strict import nearest
from fedshift.schema.task import with_overlapping
from fedshift.schema.task_files import Numbered, apps_dir, tasks
from fedshift.schema.yaml_file import read_yaml

if TYPE_CHECKING:
    from fedshift.data.cases import CaseFiles, CaseTable
    from fedshift.inference.model import Model

ABOUT = """A hospital's own scans as a site. Run it again to add or withdraw cases.

The scans are two folders, --images and --masks, with the same file names; or --source, a folder with images and masks
in one of the usual layouts (beside each other, images/ and masks/, imagesTr/ and labelsTr/ with dataset.json, a folder
for each case, or DICOM studies with DICOM SEG or RT Structure Sets); or patterns in quotes, such as
--images 'sub-*/anat/*_T2w.nii.gz'; or --cases, a table with a row for each case, which --write-cases writes of any of
these, to be read and edited.

Pictures to classify have a table of labels in place of masks: --table labels.csv --images DIR. A row is a picture, with
its file (or its id, the file's name without suffix), and its label, or a column for each finding with 1, 0, or nothing
or -1 where it is unknown; and, where wanted, subject, split and site. A folder for each class stands for such a table:
--table DIR, with --subject to say whose the pictures are.
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
        help="NIfTI, NRRD or MHA files, one folder per DICOM series, or DICOM studies; or pictures; or a pattern in "
        "quotes",
    )
    parser.add_argument(
        "--masks",
        type=Path,
        metavar="DIR",
        help="masks with the same names as the images, or DICOM masks of them; of pictures also a folder for each "
        "class, or a .json file of COCO; or a pattern",
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
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="the labels (.csv) of pictures or volumes to classify, see above; or a folder with one for each class",
    )
    parser.add_argument("--site", metavar="NAME", help="the site's name in the federation")
    parser.add_argument("--dataset", metavar="NAME", help="the data set that the site takes part in (or give --task)")
    parser.add_argument("--task", metavar="TASK", help="the task, or its .yaml file, that names data set and classes")
    add_meaning(parser)
    add_shared(parser, "--subject")
    parser.add_argument("--withdraw", nargs="+", default=[], metavar="ID", help="cases to remove")
    parser.add_argument("--licence", metavar="TEXT", help="licence terms, stored in the manifest")
    add_shared(parser, "--true-spacing", "--interpolate", "--bits")
    parser.add_argument("--size", type=sizes, metavar="N,M", help="sizes of pictures in pixels (default: the task's)")
    add_volumes(parser)
    parser.set_defaults(func=run)


def add_meaning(parser: Any) -> None:
    """Options that say what scans and masks are."""
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="NAME=V,V",
        help="a class and the mask's values for it (or names of structures, as DICOM has, or a colour, as in "
        "cup=255,0,0), once for each class; several are merged",
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


def cases_for(model: Model, args: argparse.Namespace) -> tuple[list[CaseTable], list[CaseFiles]]:
    """The folders that a command names, and their cases with masks, as a model segments them."""
    from fedshift.data.cases import both_sides
    from fedshift.data.layouts.find import gather
    from fedshift.inference.scoring import labelled_cases

    meant = meaning(args)
    tables = gather(args.source, images=args.images, masks=args.masks, sequences=meant["sequences"], volume=args.volume)
    tables = [table.with_subjects(args.subject) for table in tables] if args.subject else tables
    tables = [replace(table, findings=(*table.findings, *both_sides(table))) for table in tables]
    cases = labelled_cases(
        model,
        tables,
        labels=meant["labels"],
        annotated=meant["annotated"],
        trust_voxels=args.trust_voxels,
        interpolate=args.interpolate,
        empty=args.empty,
    )
    return tables, cases


def run(args: argparse.Namespace) -> int:
    """Prepare the site, or write the table of its cases; returns the exit code."""
    if args.table is not None and args.site is None:
        raise ConfigError("site-missing", "which site is it? give its name in the federation with --site")
    if args.table is not None:
        dataset, task = _dataset(args.dataset, args.task)
        own_labels.refuse_table(args, task)
        return own_labels.run(args, dataset, task)
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
    own_labels.refuse_table(args, task)
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
            regions=task.regions,
            ignore=task.ignore,
            wanted=task.sequences,
            subject=args.subject,
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
        hint = nearest(args.site, task.sites)
        console.print(f"note: the task has no site {args.site!r} yet{hint}", markup=False, highlight=False)
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
    tables = [table.with_subjects(args.subject) for table in tables] if args.subject else tables
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
    kind: str | None = None
    """Of task."""
    findings: bool | None = None
    """Whether pictures have findings, and not one label each; None if no task says it."""
    volumes: bool | None = None
    """Whether a task that classifies takes volumes, and not pictures."""
    sizes: tuple[int, ...] = ()
    """Of pictures, those of its protocols too."""
    channels: Literal[1, 3] = 3
    """Of pictures."""
    regions: Regions | None = None
    ignore: bool | None = None
    """Whether masks may have voxels to ignore; None if no task is named."""


def _dataset(dataset: str | None, task: str | None) -> tuple[str, NamedTask]:
    """The data set's name, and the task that is named, or that has it."""
    if task is None:
        if dataset is None:
            raise ConfigError(
                "dataset-missing",
                "which data set is it? give --task, the task that the site takes part in, or --dataset",
            )
        task_files = (read_yaml(apps_dir() / f"{name}.yaml") for name in tasks())
        likely = next(
            (_named_task(raw, dataset) for raw in task_files if raw.get("dataset") == dataset), NamedTask(dataset)
        )
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
    named = _named_task(read_yaml(path), str(path))
    if not named.dataset:
        raise ConfigError("dataset-missing", f"{path} has no 'dataset': name the data set there")
    return named


def _named_task(raw: dict[str, Any], where: str) -> NamedTask:
    try:
        raw = with_overlapping(raw)
    except ValueError as error:
        raise ConfigError("invalid-value", f"{where}: {error}") from None
    classes, sites, held_out, data = (raw.get(key) for key in ("classes", "sites", "held_out", "data"))
    from fedshift.data.labels import regions_of

    codes = parse_codes(raw, where=where)
    named = tuple(map(str, classes)) if isinstance(classes, list | tuple) else None
    data = data if isinstance(data, dict) else {}
    sequences = (data.get("sequences") or ()) if "data" in raw else None
    classifies = raw.get("kind") == "classification"
    regions = regions_of(raw["regions"], named) if named is not None and isinstance(raw.get("regions"), dict) else None
    structures = named if regions is None else ("", *regions.names)
    if isinstance(sites, dict):
        sites = Numbered.parse(sites, where=f"{where}: sites").names
    return NamedTask(
        str(raw.get("dataset") or ""),
        named,
        codes,
        tuple(map(str, [*sites, *(held_out if isinstance(held_out, list) else [])])) if isinstance(sites, list) else (),
        tuple(map(str, sequences)) if isinstance(sequences, list | tuple) else None,
        structures is not None and takes_empty(data, structures, codes),
        str(raw["kind"]) if "kind" in raw else None,
        bool(data.get("multi_label")) if classifies else None,
        "patch" in data if classifies else None,
        _sizes(raw) if classifies else (),
        1 if data.get("channels") == 1 else 3,
        regions,
        bool(raw.get("ignore")),
    )


def _sizes(raw: dict[str, Any]) -> tuple[int, ...]:
    """The sizes of pictures that a task and its protocols name."""
    protocols = raw.get("protocols")
    parts = [raw, *(protocols.values() if isinstance(protocols, dict) else ())]
    sections = (part.get("data") for part in parts if isinstance(part, dict))
    sizes = {data.get("size") for data in sections if isinstance(data, dict)}
    return tuple(sorted(size for size in sizes if isinstance(size, int)))
