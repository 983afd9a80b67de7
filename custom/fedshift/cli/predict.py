"""``fedshift predict``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fedshift
from fedshift.cli import predict_classes, predict_pacs
from fedshift.cli.arguments import add_shared, make_folder
from fedshift.cli.guarantee import add_guarantee
from fedshift.cli.model_choice import add_choice, add_models, choice
from fedshift.cli.opened_model import OpenedModel, open_for
from fedshift.cli.predict_pacs import Source
from fedshift.cli.predict_table import NOTE, TABLE, Row, predicted_before, write_rows
from fedshift.cli.scan_cases import scan_cases
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import printable

if TYPE_CHECKING:
    from fedshift.inference.segment import ClassResult, Segmented
    from fedshift.inference.sequences import ScanCase
    from fedshift.pacs.archive import Archive


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
        "the volumes in the SEG; default: mask, and seg of DICOM. Of a model that classifies: sr, on the classes",
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
    add_models(parser)
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

    predict_pacs.check(args)
    table = args.out / TABLE
    for image in args.images:
        require_text(image)
    if table.exists() and not args.force:
        message = f"{table} already exists: name another folder with --out, or replace it with --force"
        raise ConfigError("output-exists", message)
    opened = open_for(args)
    target = predict_pacs.destination(args)
    return predict(opened, args, source=predict_pacs.source(args), target=target)


def predict(opened: OpenedModel, args: argparse.Namespace, *, source: Source | None, target: Archive | None) -> int:
    """Predict the images of a command line, or those of ``source``; DICOM results go to ``target`` too.

    Returns:
        1 if it failed for some of the images.
    """
    model = opened.model
    about = {"schema": 1, "fedshift": fedshift.__version__, "note": NOTE, **opened.about}
    about |= {} if opened.promise is None else opened.promise.about
    if source is not None or target is not None:
        predict_pacs.require_results(opened)
    images, incomplete = list(dict.fromkeys(args.images)), 0
    if source is not None:
        images, incomplete = predict_pacs.fetched(source, args)
    if opened.classifies:
        n, rows = predict_classes.rows_of(opened, images, args, about, fetched=source is not None, archive=target)
    else:
        cases = scan_cases(model, images, args)
        cases = cases if source is None else predict_pacs.named_by_study(cases, args)
        n, rows = len(cases), _segment(opened, cases, args, target)
    return max(write_rows(rows, args.out, n=n, about=about), incomplete)


def _segment(
    opened: OpenedModel, cases: Sequence[ScanCase], args: argparse.Namespace, archive: Archive | None
) -> Iterator[Row]:
    """``archive``: where DICOM results are stored too."""
    from fedshift.inference import masks, segment
    from fedshift.inference import promise as promises
    from fedshift.inference.model import Model

    model, promise = opened.model, opened.promise
    replace = {case.image.resolve() for case in cases} if args.force else predicted_before(args.out)
    apart = not isinstance(model, Model) and model.overlapping
    covered = {} if promise is None else promise.covered
    paths_for = partial(
        masks.output_paths,
        cases,
        args.out,
        overlay=args.overlay,
        replace=replace,
        structures=model.structures,
        outlined=list(covered),
        apart=apart,
    )
    paths, origin = paths_for(formats=args.format), None
    if any(results.keys() & set(segment.DICOM) for results in paths):
        try:
            origin = opened.origin(args.codes)
        except ConfigError as error:
            if args.format or args.codes or archive is not None:
                raise
            print(f"masks only: {error}")
            paths = paths_for(formats=["regions" if apart else "mask"])
    if archive is not None:
        predict_pacs.require_dicom(paths)
    segmenter: segment.Segmenter
    if isinstance(model, Model):
        chosen = choice(args) if promise is None else promises.of_statistics(model, choice(args))
        about_scans = {"device": args.device, "true_spacing": args.true_spacing}
        ready_for = partial(segment.ready_for, model, cases, chosen, others=opened.others, **about_scans)
        ready = opened.ready(ready_for, of_these_images=chosen.estimate)
        if promise is not None:
            promises.require_statistics(promise, ready)
        segmenter = ready
    else:
        segmenter = model
    make_folder(args.out)
    about = {"origin": origin, "true_spacing": args.true_spacing, "promises": covered}
    for segmented in segment.segment_cases(segmenter, cases, paths, **about):
        if segmented.error is None:
            written = ", ".join(map(str, segmented.written.values()))
            print(printable(f"{segmented.image}: {segmented.total}, {written or 'nothing written'}"))
        for remark in segmented.remarks:
            print(f"  warning: {remark}")
        segmented = predict_pacs.stored(segmented, archive)
        yield _row(segmented, segmenter), _entry(segmented, segmenter.statistics)


def _row(segmented: Segmented, segmenter: Any) -> dict[str, object]:
    """The columns of one scan; of each class where there are several."""
    names = segmenter.classes if len(segmenter.classes) > 1 else ()
    size, count = ("area_mm2", "pixels") if segmenter.of_pictures else ("volume_ml", "voxels")
    row: dict[str, object] = {"file": segmented.image, size: "", count: "", "probability": ""}
    row["statistics"] = segmenter.statistics
    of_class = (size, count, "probability") if segmenter.of_pictures else (size, "probability")
    row |= {f"{column} {name}": "" for column in of_class for name in names}
    if segmented.error is None:
        for suffix, result in {"": segmented.total, **{f" {name}": segmented.classes[name] for name in names}}.items():
            values = {count: str(result.voxels), size: _number(getattr(result, size), 3)}
            values["probability"] = _number(result.probability, 4)
            row |= {f"{column}{suffix}": value for column, value in values.items() if f"{column}{suffix}" in row}
    return row | {"warnings": " | ".join(segmented.remarks), "error": segmented.error or ""}


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _entry(segmented: Segmented, statistics: str) -> dict[str, object]:
    def numbers(result: ClassResult) -> dict[str, object]:
        probability = None if result.probability is None else round(result.probability, 4)
        if result.volume_ml is not None:
            return {"volume_ml": round(result.volume_ml, 3), "voxels": result.voxels, "probability": probability}
        area = None if result.area_mm2 is None else round(result.area_mm2, 3)
        return {"area_mm2": area, "pixels": result.voxels, "probability": probability}

    return {
        "file": str(segmented.image),
        "written": {name: path.name for name, path in segmented.written.items()},
        "classes": {name: numbers(result) for name, result in segmented.classes.items()},
        "statistics": statistics,
        "reading": {name: reading.model_dump(mode="json") for name, reading in segmented.reading.items()},
        "warnings": list(segmented.remarks),
        "error": segmented.error,
    }
