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
from fedshift.cli import predict_pacs
from fedshift.cli.arguments import add_shared, make_folder
from fedshift.cli.guarantee import add_guarantee, show
from fedshift.cli.model_choice import add_choice, choice, describe, print_statistics
from fedshift.schema.codes import parse_codes
from fedshift.schema.errors import ConfigError
from fedshift.schema.files import CsvWriter, path_of, write_text
from fedshift.schema.job import read_yaml
from fedshift.schema.names import printable

if TYPE_CHECKING:
    from fedshift.data.depth import Depth
    from fedshift.dicomweb.archive import Archive
    from fedshift.inference.classify import Classified, Input, Thresholds
    from fedshift.inference.model import Model
    from fedshift.inference.monai_bundle import Bundle
    from fedshift.inference.promise import Promised
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
        nargs="*",
        metavar="IMAGE",
        help="NIfTI, NRRD or MetaImage files, enhanced DICOM images, or folders with such files or DICOM series "
        "(FOLDER/UID: one of several); PNG, JPEG, TIFF or BMP for a model of pictures",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="for masks and the table of volumes or areas"
    )
    parser.add_argument(
        "--format",
        action="append",
        default=[],
        choices=("mask", "regions", "seg", "rtstruct", "sr"),
        help="what is written of a scan, once for each: mask (in its own format, NIfTI for DICOM, PNG for pictures), "
        "regions (a mask of each class or region), and of DICOM a DICOM SEG, an RT Structure Set, or a report (SR) on "
        "the volumes in the SEG; default: mask, and seg of DICOM",
    )
    parser.add_argument(
        "--codes",
        type=Path,
        metavar="TASK",
        help="a .yaml file with DICOM codes of the classes, if the model's task has none",
    )
    parser.add_argument(
        "--overlay",
        action="store_true",
        help="also a picture of every scan with the mask's outline; of pictures, what speaks for their class",
    )
    predict_pacs.add_pacs(parser)
    add_guarantee(
        parser,
        "also inner and outer outlines of each structure, or sets of classes, that on average miss no more than this "
        "share, 0.1 for example; the model must promise it (--site: to whose patients)",
    )
    parser.add_argument("--force", action="store_true", help="replace what an earlier call wrote into the folder")
    add_shared(parser, "--volume", "--bits")
    add_choice(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """``fedshift predict``; exit code 1 if it failed for some of the images."""
    from fedshift.data.scans import require_text
    from fedshift.inference.model import Choice, Model, open_model
    from fedshift.inference.monai_bundle import describe_bundle, open_bundle

    predict_pacs.check(args)
    bundle = args.model.is_dir()
    if bundle and choice(args) != Choice():
        said = "is a bundle, which has no site's statistics: leave out --site, --statistics and --site-state"
        raise ConfigError("no-effect", f"{args.model} {said}")
    model = open_bundle(args.model, device=args.device) if bundle else open_model(args.model)
    table = args.out / TABLE
    for image in args.images:
        require_text(image)
    if table.exists() and not args.force:
        said = f"{table} already exists: name another folder with --out, or replace it with --force"
        raise ConfigError("output-exists", said)
    for line in describe(model) if isinstance(model, Model) else describe_bundle(model):
        print(line)
    promise = _promise(model, args)
    about = {"schema": 1, "fedshift": fedshift.__version__, "note": NOTE, **model.about}
    about |= {} if promise is None else promise.about
    archive = predict_pacs.destination(args)
    classifies = isinstance(model, Model) and not model.is_segmentation
    if (args.source or args.target) and (classifies or model.of_pictures):
        said = f"{args.model} does not segment scans, of whose results alone DICOM is stored"
        raise ConfigError("no-effect", f"{said}: leave out --from and --to, and get images with 'fedshift data fetch'")
    images, incomplete = predict_pacs.fetched(args) if args.source else (list(dict.fromkeys(args.images)), 0)
    if isinstance(model, Model) and not model.is_segmentation:
        inputs, depth = _inputs(model, images, args)
        return _write_rows(_classify(model, inputs, depth, args, about, promise), args.out, n=len(inputs), about=about)
    cases = predict_pacs.named_by_study(_cases(model, images, args), args)
    failed = _write_rows(_segment(model, cases, args, promise, archive), args.out, n=len(cases), about=about)
    return max(failed, incomplete)


def _promise(model: Model | Bundle, args: argparse.Namespace) -> Promised | None:
    """What ``--guarantee`` asks for, which is printed; None without it."""
    from fedshift.inference import promise
    from fedshift.inference.model import Model

    if args.guarantee is None:
        return None
    if not isinstance(model, Model):
        said = f"{args.model} is a bundle, which promises nothing: leave out --guarantee"
        raise ConfigError("no-guarantee", said)
    made = promise.promised(model, choice(args), args.guarantee)
    show(made, outlines=model.is_segmentation)
    return made


# --- scans ------------------------------------------------------------------------------------------------


def _cases(model: Model | Bundle, images: Sequence[Path], args: argparse.Namespace) -> list[ScanCase]:
    if args.bits is not None:
        said = f"{args.model} segments scans, whose values are taken as they are: leave out --bits"
        raise ConfigError("no-effect", said)
    return find_scans(model, images, volume=args.volume, true_spacing=args.true_spacing)


def find_scans(
    model: Model | Bundle, images: Sequence[Path], *, volume: int | None, true_spacing: bool
) -> list[ScanCase]:
    """The cases in what a command line names; prints what is not read, and which file is which sequence."""
    from fedshift.data.scan_folders import not_read, pictures_in, scans_in
    from fedshift.inference.sequences import find_cases, in_case_folders, picture_cases

    for line in () if model.of_pictures else not_read(images):
        print(printable(line))
    if model.of_pictures:
        cases = picture_cases(pictures_in(images), model.sequences)
        for given, option in ((volume, "--volume"), (true_spacing, "--true-spacing")):
            if given:
                raise ConfigError(
                    "no-effect", f"{model.path} segments pictures, which have no volumes: leave out {option}"
                )
    else:
        scans = scans_in(in_case_folders(images, model.sequences))
        cases = find_cases(scans, model.sequences, volume=volume)
    for line in dict.fromkeys(case.assignment for case in cases if case.assignment):
        print(printable(line))
    return cases


def _segment(
    model: Model | Bundle,
    cases: Sequence[ScanCase],
    args: argparse.Namespace,
    promise: Promised | None,
    archive: Archive | None,
) -> Iterator[Row]:
    """``archive``: where DICOM results are stored too."""
    from fedshift.inference import dicom_source, masks, segment
    from fedshift.inference import promise as promises
    from fedshift.inference.model import Model

    replace = {case.image.resolve() for case in cases} if args.force else _predicted_before(args.out)
    covered = {} if promise is None else promise.covered
    paths_for = partial(
        masks.output_paths,
        cases,
        args.out,
        overlay=args.overlay,
        replace=replace,
        structures=model.structures,
        outlined=list(covered),
    )
    paths, origin = paths_for(formats=args.format), None
    if any(results.keys() & set(segment.DICOM) for results in paths):
        try:
            origin = dicom_source.origin(model, _codes(args.codes))
        except ConfigError as error:
            if args.format or args.codes or archive is not None:
                raise
            print(f"masks only: {error}")
            paths = paths_for(formats=["mask"])
    if archive is not None:
        predict_pacs.require_dicom(paths)
    segmenter: segment.Segmenter
    if isinstance(model, Model):
        chosen = choice(args) if promise is None else promises.of_statistics(model, choice(args))
        ready = segment.ready_for(model, cases, chosen, device=args.device, true_spacing=args.true_spacing)
        print_statistics(ready)
        if promise is not None:
            promises.require_statistics(promise, ready)
        segmenter = ready
    else:
        segmenter = model
    make_folder(args.out)
    about = {"origin": origin, "true_spacing": args.true_spacing, "promises": covered}
    for done in segment.segment_cases(segmenter, cases, paths, **about):
        if done.error is None:
            written = ", ".join(map(str, done.written.values()))
            print(printable(f"{done.image}: {done.total}, {written or 'nothing written'}"))
        for remark in done.remarks:
            print(f"  warning: {remark}")
        done = predict_pacs.stored(done, archive)
        yield _row(done, segmenter), _entry(done, segmenter.statistics)


def _row(done: Segmented, segmenter: Any) -> dict[str, object]:
    """The columns of one scan; of each class where there are several."""
    names = segmenter.classes if len(segmenter.classes) > 1 else ()
    size, count = ("area_mm2", "pixels") if segmenter.of_pictures else ("volume_ml", "voxels")
    row: dict[str, object] = {"file": done.image, size: "", count: "", "probability": ""}
    row["statistics"] = segmenter.statistics
    of_class = (size, count, "probability") if segmenter.of_pictures else (size, "probability")
    row |= {f"{column} {name}": "" for column in of_class for name in names}
    if done.error is None:
        for suffix, result in {"": done.total, **{f" {name}": done.classes[name] for name in names}}.items():
            values = {count: str(result.voxels), size: _number(getattr(result, size), 3)}
            values["probability"] = _number(result.probability, 4)
            row |= {f"{column}{suffix}": value for column, value in values.items() if f"{column}{suffix}" in row}
    return row | {"warnings": " | ".join(done.remarks), "error": done.error or ""}


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _entry(done: Segmented, statistics: str) -> dict[str, object]:
    def numbers(result: ClassResult) -> dict[str, object]:
        probability = None if result.probability is None else round(result.probability, 4)
        if result.volume_ml is not None:
            return {"volume_ml": round(result.volume_ml, 3), "voxels": result.voxels, "probability": probability}
        area = None if result.area_mm2 is None else round(result.area_mm2, 3)
        return {"area_mm2": area, "pixels": result.voxels, "probability": probability}

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


def _inputs(model: Model, images: Sequence[Path], args: argparse.Namespace) -> tuple[list[Input], Depth | None]:
    """What is classified, and of pictures how deep the grey ones among them are."""
    from fedshift.inference import classify

    if model.classifies_volumes:
        return classify.of_volumes(model, _cases(model, images, args), true_spacing=args.true_spacing), None
    depth = classify.depth_of(images, args.bits)
    return classify.of_pictures(model, images, depth), depth


def _classify(
    model: Model,
    inputs: Sequence[Input],
    depth: Depth | None,
    args: argparse.Namespace,
    about: dict[str, Any],
    promise: Promised | None,
) -> Iterator[Row]:
    """``about`` gets the thresholds that decided, of a model of findings."""
    from fedshift.inference import classify
    from fedshift.inference import promise as promises

    images = "volumes" if model.classifies_volumes else "pictures"
    for given, what, options in (
        (args.format or args.codes, "of which no mask is written", "--format and --codes"),
        (args.volume and not model.classifies_volumes, "which have no volumes", "--volume"),
        (args.true_spacing and not model.classifies_volumes, "which have no voxel size", "--true-spacing"),
        (args.bits is not None and model.classifies_volumes, "whose values are taken as they are", "--bits"),
    ):
        if given:
            raise ConfigError("no-effect", f"{model.path} classifies {images}, {what}: leave out {options}")
    chosen = choice(args)
    thresholds = classify.thresholds_of(model, chosen) if model.task.findings else None
    chosen = classify.of_statistics(model, chosen, thresholds=model.header.thresholds)
    chosen = chosen if promise is None else promises.of_statistics(model, chosen)
    ready = classify.ready_for(model, inputs, chosen, device=args.device)
    print_statistics(ready)
    if promise is not None:
        promises.require_statistics(promise, ready)
    if thresholds is not None:
        print(f"thresholds: {thresholds.source}")
        about["thresholds"] = {"from": thresholds.source, "values": _rounded(thresholds.values)}
    make_folder(args.out)
    names: set[str] = set()
    for done in classify.classify(ready, inputs, saliency=args.overlay):
        row, entry = _label(done) if thresholds is None else _findings(done, thresholds, model)
        if promise is not None:
            said = promise.classes(done.probabilities)
            row |= {"set": "" if done.error else " | ".join(said)}
            entry["set"] = None if done.error else said
            if done.error is None:
                print(printable(f"  in the set: {', '.join(said) or 'none of them'}"))
        if done.saliency is not None:
            path = args.out / _unused(f"{done.name}_saliency", names)
            entry["written"] = {"saliency": path.name}
            _draw(done, path)
        if done.reading is not None:
            entry["reading"] = done.reading.model_dump(exclude_defaults=True)
        entry |= {"statistics": ready.statistics, "error": done.error}
        yield row | {"statistics": ready.statistics, "error": done.error or ""}, entry
    if depth is not None and depth.said is not None:  # known when all are read
        print(f"pictures: {depth.said}{' (--bits says otherwise)' if depth.settled_together else ''}")


def _label(done: Classified) -> tuple[dict[str, object], dict[str, object]]:
    """The most likely class of a picture."""
    row: dict[str, object] = {"file": done.image, "class": "", "probability": ""}
    entry: dict[str, object] = {"file": str(done.image), "class": None, "probability": None}
    if done.error is None:
        entry |= {"class": done.label, "probability": round(done.probability, 4)}
        row |= {"class": done.label, "probability": f"{done.probability:.4f}"}
        print(printable(f"{done.image}: {done.label} ({done.probability:.0%})"))
    return row, entry


def _findings(done: Classified, thresholds: Thresholds, model: Model) -> tuple[dict[str, object], dict[str, object]]:
    """What is said to be in a picture, and the probability of each finding."""
    classes = model.header.job.task.classes
    row: dict[str, object] = {"file": done.image, "findings": "", **{f"probability {name}": "" for name in classes}}
    entry: dict[str, object] = {"file": str(done.image), "findings": None, "probabilities": None}
    if done.error is None:
        said = thresholds.decided(done.probabilities)
        entry |= {"findings": said, "probabilities": _rounded(done.probabilities)}
        row |= {"findings": " | ".join(said)} | {f"probability {k}": f"{v:.4f}" for k, v in done.probabilities.items()}
        print(
            printable(f"{done.image}: {', '.join(f'{k} ({done.probabilities[k]:.0%})' for k in said) or 'no finding'}")
        )
    return row, entry


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def _draw(done: Classified, path: Path) -> None:
    """The picture with the places that speak for its most likely class."""
    from fedshift.inference import saliency_picture

    assert done.saliency is not None
    where = "and what speaks for it" if done.saliency.places.any() else "and no place speaks for it"
    said = f"{done.image.name}: {done.saliency.name} ({done.probability:.0%}), {where} (Grad-CAM)"
    saliency_picture.write(path, done.saliency.image, done.saliency.places, [printable(said), NOTE])


def _unused(stem: str, names: set[str]) -> str:
    """A file name that no earlier picture of this call has."""
    name = next(n for k in itertools.count(1) if (n := f"{stem}{'' if k == 1 else f'_{k}'}.png") not in names)
    names.add(name)
    return name


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
