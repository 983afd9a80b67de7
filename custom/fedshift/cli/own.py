"""The command ``fedshift data prepare own``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedshift.cli.prepared import add_volumes, default_root, names, print_export, print_next, print_site, progress
from fedshift.schema.codes import Codes, parse_codes
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import read_yaml
from fedshift.schema.strict import nearest
from fedshift.schema.task_files import apps_dir, tasks

ABOUT = """A hospital's own scans as a site. Run it again to add or withdraw cases.

The scans are two folders, --images and --masks, with the same file names; or --source, a folder with images and masks
in one of the usual layouts (beside each other, images/ and masks/, imagesTr/ and labelsTr/ with dataset.json, a folder
for each case, or DICOM studies with DICOM SEG or RT Structure Sets); or patterns in quotes, such as
--images 'sub-*/anat/*_T2w.nii.gz'.
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
    parser.add_argument("--site", required=True, metavar="NAME", help="the site's name in the federation")
    parser.add_argument("--dataset", metavar="NAME", help="the data set that the site takes part in (or give --task)")
    parser.add_argument("--task", metavar="TASK", help="the task, or its .yaml file, that names data set and classes")
    add_meaning(parser)
    parser.add_argument("--withdraw", nargs="+", default=[], metavar="ID", help="cases to remove")
    parser.add_argument("--licence", metavar="TEXT", help="licence terms, stored in the manifest")
    parser.add_argument(
        "--true-spacing", action="store_true", help="voxels of 1 x 1 x 1 mm are real, not a header's placeholder"
    )
    add_volumes(parser)
    parser.set_defaults(func=run)


def add_meaning(parser: Any) -> None:
    """Options that say what scans and masks are."""
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="NAME=V,V",
        help="a class and the mask's values for it (of DICOM masks the names of structures), once for each class; "
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
        "--annotated", type=names, metavar="A,B", help="the classes that the masks outline (default: all)"
    )


def meaning(args: argparse.Namespace) -> dict[str, Any]:
    """What `add_meaning` asks for, as `check` and `prepare_own` take it."""
    from fedshift.data.labels import parse_labels
    from fedshift.data.scansets import parse_sequences

    return {
        "labels": parse_labels(args.label),
        "sequences": parse_sequences(args.sequence),
        "annotated": args.annotated,
    }


def run(args: argparse.Namespace) -> int:
    """Prepare the site; returns the exit code."""
    from data_prep.own import LICENCE, prepare_own

    dataset, classes, codes = _dataset(args.dataset, args.task)
    with progress(None) as on_case:
        folder = prepare_own(
            args.images,
            args.masks,
            args.site,
            args.out or default_root(),
            dataset=dataset,
            source=args.source,
            classes=classes,
            codes=codes,
            withdraw=args.withdraw,
            matrices=args.matrix,
            licence=args.licence or LICENCE,
            trust_voxels=args.trust_voxels,
            true_spacing=args.true_spacing,
            skip_damaged=args.skip_damaged,
            progress=on_case,
            **meaning(args),
        )
    print_site(folder)
    print_export(args.out)
    print_next(dataset)
    return 0


def _dataset(dataset: str | None, task: str | None) -> tuple[str, tuple[str, ...] | None, Codes]:
    """The data set's name, and its classes and their codes if a task has it.

    Raises:
        ConfigError: neither is given, or a task that is not there or of another data set.
    """
    if task is None:
        if dataset is None:
            raise ConfigError("which data set is it? give --task, the task that the site takes part in, or --dataset")
        known = (read_yaml(apps_dir() / f"{name}.yaml") for name in tasks())
        return next((_said(raw, dataset) for raw in known if raw.get("dataset") == dataset), (dataset, None, {}))
    name, classes, codes = named_by(task)
    return dataset or name, classes, codes


def named_by(task: str) -> tuple[str, tuple[str, ...] | None, Codes]:
    """The data set, the classes and their codes that a task, or its .yaml file, names.

    Raises:
        ConfigError: it is not there, or names no data set.
    """
    if task.endswith((".yaml", ".yml")):
        path = Path(task)
    elif task in tasks():
        path = apps_dir() / f"{task}.yaml"
    else:
        raise ConfigError(f"there is no task {task!r}{nearest(task, tasks())}, or the path of a .yaml file")
    name, classes, codes = _said(read_yaml(path), str(path))
    if not name:
        raise ConfigError(f"{path} has no 'dataset': name the data set there")
    return name, classes, codes


def _said(raw: dict[str, Any], where: str) -> tuple[str, tuple[str, ...] | None, Codes]:
    classes = raw.get("classes")
    return (
        str(raw.get("dataset") or ""),
        tuple(map(str, classes)) if isinstance(classes, list) else None,
        parse_codes(raw, where=where),
    )
