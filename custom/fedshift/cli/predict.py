"""``fedshift predict``."""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fedshift
from fedshift.cli.arguments import add_shared, make_folder
from fedshift.cli.model_choice import add_choice, choice, describe, print_statistics
from fedshift.schema.codes import parse_codes
from fedshift.schema.errors import ConfigError
from fedshift.schema.files import CsvWriter, path_of, write_text
from fedshift.schema.job import read_yaml
from fedshift.schema.names import printable

if TYPE_CHECKING:
    from fedshift.inference.model import Model
    from fedshift.inference.monai_bundle import Bundle
    from fedshift.inference.segment import ClassResult, Segmented
    from fedshift.inference.sequences import ScanCase

TABLE = "predictions.csv"
PARTIAL = "predictions.partial.csv"
"""The table of a call that is under way, was interrupted, or failed for some of its images."""
RECORD, PARTIAL_RECORD = "predictions.json", "predictions.partial.json"
"""The same for programs; written when the call ends."""
NOTE = "research use only; not a medical device"
Row = tuple[Mapping[str, object], Mapping[str, object]]
"""Of an image: its row in the table, and its entry in the record."""


def add_arguments(parser: Any) -> None:
    parser.add_argument(
        "model",
        type=Path,
        metavar="MODEL",
        help="best_global_model.pt of a run, for example; or the folder of a MONAI bundle that segments volumes",
    )
    parser.add_argument(
        "images",
        type=Path,
        nargs="+",
        metavar="IMAGE",
        help="NIfTI, NRRD or MetaImage files, enhanced DICOM images, or folders with such files or DICOM series "
        "(FOLDER/UID: one of several); pictures for a classifier",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for masks and the table of volumes")
    parser.add_argument(
        "--format",
        action="append",
        default=[],
        choices=("mask", "seg", "rtstruct", "sr"),
        help="what is written of a scan, once for each: mask (in its own format, NIfTI for DICOM), and of DICOM a "
        "DICOM SEG, an RT Structure Set, or a report (SR) on the volumes in the SEG; default: mask, and seg of DICOM",
    )
    parser.add_argument(
        "--codes",
        type=Path,
        metavar="TASK",
        help="a .yaml file with DICOM codes of the classes, if the model's task has none",
    )
    parser.add_argument("--overlay", action="store_true", help="also a picture of every scan with the mask's outline")
    parser.add_argument("--force", action="store_true", help="replace what an earlier call wrote into the folder")
    add_shared(parser, "--volume", "--bits")
    add_choice(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """``fedshift predict``; exit code 1 if it failed for some of the images."""
    from fedshift.data.scans import require_text
    from fedshift.inference.model import Choice, Model, open_model
    from fedshift.inference.monai_bundle import describe_bundle, open_bundle

    bundle = args.model.is_dir()
    if bundle and choice(args) != Choice():
        said = "is a bundle, which has no site's statistics: leave out --site, --statistics and --site-state"
        raise ConfigError("no-effect", f"{args.model} {said}")
    model = open_bundle(args.model, device=args.device) if bundle else open_model(args.model)
    images, table = list(dict.fromkeys(args.images)), args.out / TABLE
    for image in images:
        require_text(image)
    if table.exists() and not args.force:
        said = f"{table} already exists: name another folder with --out, or replace it with --force"
        raise ConfigError("output-exists", said)
    for line in describe(model) if isinstance(model, Model) else describe_bundle(model):
        print(line)
    about = {"schema": 1, "fedshift": fedshift.__version__, "note": NOTE, **model.about}
    if isinstance(model, Model) and not model.is_segmentation:
        return _write_rows(_classify(model, images, args), args.out, n=len(images), about=about)
    cases = _cases(model, images, args)
    return _write_rows(_segment(model, cases, args), args.out, n=len(cases), about=about)


# --- scans ------------------------------------------------------------------------------------------------


def _cases(model: Model | Bundle, images: Sequence[Path], args: argparse.Namespace) -> list[ScanCase]:
    """The cases in what the command line names; prints what is not read, and which file is which sequence."""
    from fedshift.data.scan_folders import not_read, scans_in
    from fedshift.inference.sequences import find_cases, in_case_folders

    for line in not_read(images):
        print(printable(line))
    scans = scans_in(in_case_folders(images, model.sequences))
    cases = find_cases(scans, model.sequences, volume=args.volume)
    for line in dict.fromkeys(case.assignment for case in cases if case.assignment):
        print(printable(line))
    if args.bits is not None:
        said = f"{args.model} segments scans, whose values are taken as they are: leave out --bits"
        raise ConfigError("no-effect", said)
    return cases


def _segment(model: Model | Bundle, cases: Sequence[ScanCase], args: argparse.Namespace) -> Iterator[Row]:
    from fedshift.inference import dicom_source, masks, segment
    from fedshift.inference.model import Model

    replace = {case.image.resolve() for case in cases} if args.force else _predicted_before(args.out)
    paths_for = partial(masks.output_paths, cases, args.out, overlay=args.overlay, replace=replace)
    paths, origin = paths_for(formats=args.format), None
    if any(results.keys() - {"mask", "overlay"} for results in paths):
        try:
            origin = dicom_source.origin(model, _codes(args.codes))
        except ConfigError as error:
            if args.format or args.codes:
                raise
            print(f"masks only: {error}")
            paths = paths_for(formats=["mask"])
    segmenter: segment.Segmenter
    if isinstance(model, Model):
        ready = segment.ready_for(model, cases, choice(args), device=args.device, true_spacing=args.true_spacing)
        print_statistics(ready)
        segmenter = ready
    else:
        segmenter = model
    make_folder(args.out)
    for done in segment.segment_cases(segmenter, cases, paths, origin=origin, true_spacing=args.true_spacing):
        if done.error is None:
            written = ", ".join(map(str, done.written.values()))
            print(printable(f"{done.image}: {done.total.volume_ml:.1f} ml, {written or 'nothing written'}"))
        for remark in done.remarks:
            print(f"  warning: {remark}")
        yield _row(done, segmenter), _entry(done, segmenter.statistics)


def _row(done: Segmented, segmenter: Any) -> dict[str, object]:
    """The columns of one scan; of each class where there are several."""
    names = segmenter.classes if len(segmenter.classes) > 1 else ()
    columns = ("volume_ml", "voxels", "probability")
    row: dict[str, object] = {"file": done.image, **dict.fromkeys(columns, ""), "statistics": segmenter.statistics}
    row |= {f"{column} {name}": "" for column in ("volume_ml", "probability") for name in names}
    if done.error is None:
        row["voxels"] = done.total.voxels
        for suffix, result in {"": done.total, **{f" {name}": done.classes[name] for name in names}}.items():
            row[f"volume_ml{suffix}"] = f"{result.volume_ml:.3f}"
            row[f"probability{suffix}"] = "" if result.probability is None else f"{result.probability:.4f}"
    return row | {"warnings": " | ".join(done.remarks), "error": done.error or ""}


def _entry(done: Segmented, statistics: str) -> dict[str, object]:
    def numbers(result: ClassResult) -> dict[str, object]:
        probability = None if result.probability is None else round(result.probability, 4)
        return {"volume_ml": round(result.volume_ml, 3), "voxels": result.voxels, "probability": probability}

    return {
        "file": str(done.image),
        "written": {name: path.name for name, path in done.written.items()},
        "classes": {name: numbers(result) for name, result in done.classes.items()},
        "statistics": statistics,
        "reading": {name: reading.model_dump(mode="json") for name, reading in done.reading.items()},
        "warnings": list(done.remarks),
        "error": done.error,
    }


def _codes(file: Path | None) -> Any:
    """Codes of the classes in place of those of the model's task, if a file is given."""
    codes = None if file is None else parse_codes(read_yaml(file), where=str(file))
    if codes is not None and not codes:
        said = f"{file} has no 'codes': give category and type of each class there (docs/how-to-dicom.md)"
        raise ConfigError("codes-missing", said)
    return codes


# --- pictures ---------------------------------------------------------------------------------------------


def _classify(model: Model, images: Sequence[Path], args: argparse.Namespace) -> Iterator[Row]:
    from fedshift.inference import classify

    for given, what, options in (
        (args.overlay, "which have no outline", "--overlay"),
        (args.format or args.codes, "of which no mask is written", "--format and --codes"),
        (args.volume, "which have no volumes", "--volume"),
        (args.true_spacing, "which have no voxel size", "--true-spacing"),
    ):
        if given:
            raise ConfigError("no-effect", f"{model.path} classifies pictures, {what}: leave out {options}")
    depth = classify.depth_of(images, args.bits)
    ready = classify.ready_for(model, images, choice(args), depth=depth, device=args.device)
    print_statistics(ready)
    make_folder(args.out)
    for done in classify.classify(ready, images, depth=depth):
        row: dict[str, object] = {"file": done.image, "class": "", "probability": "", "statistics": ready.statistics}
        entry: dict[str, object] = {"file": str(done.image), "class": None, "probability": None}
        if done.error is None:
            entry |= {"class": done.label, "probability": round(done.probability, 4)}
            row |= {"class": done.label, "probability": f"{done.probability:.4f}"}
            print(printable(f"{done.image}: {done.label} ({done.probability:.0%})"))
        if done.reading is not None:
            entry["reading"] = done.reading.model_dump(exclude_defaults=True)
        entry |= {"statistics": ready.statistics, "error": done.error}
        yield row | {"error": done.error or ""}, entry
    if depth.said is not None:
        print(f"pictures: {depth.said} (--bits says otherwise)")


# --- the table and the record -----------------------------------------------------------------------------


def _predicted_before(out: Path) -> set[Path]:
    """Images whose masks an unfinished call wrote into ``out``; repeating that call replaces them."""
    try:
        with (out / PARTIAL).open(newline="", encoding="utf-8") as file:
            return {path_of(row["file"]).resolve() for row in csv.DictReader(file) if not row["error"]}
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return set()


def _write_rows(rows: Iterator[Row], out: Path, *, n: int, about: Mapping[str, object]) -> int:
    """Write each row as it comes into `PARTIAL`, which becomes `TABLE` if there was no error; then the record.

    Returns:
        1 if there was one; it is printed.
    """
    failed, partial_table = 0, out / PARTIAL
    first = next(rows)  # raises whatever forbids all predictions, before anything is written
    try:
        opened = partial_table.open("w", newline="", encoding="utf-8")
        for name in (TABLE, RECORD, PARTIAL_RECORD):
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        said = f"{partial_table} cannot be written ({error.strerror}): name another folder with --out"
        raise ConfigError("folder-unwritable", said) from None
    entries = []
    with opened as file:
        columns = list(first[0])
        writer = CsvWriter(file, columns)
        for row, entry in itertools.chain([first], rows):
            entries.append(entry)
            writer.row(row[column] for column in columns)
            file.flush()
            if row["error"]:
                failed += 1
                print(f"fedshift: {printable(str(row['error']))}", file=sys.stderr)
    if failed == n:
        partial_table.unlink()
    else:
        if not failed:
            partial_table.replace(out / TABLE)
        write_text(out / (PARTIAL_RECORD if failed else RECORD), json.dumps({**about, "images": entries}, indent=1))
        print(f"table: {out / (PARTIAL if failed else TABLE)}")
    if failed:
        print(f"{failed} of {n} images failed: correct them and repeat the command into the same folder")
    return int(failed > 0)
