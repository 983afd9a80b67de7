"""``fedshift predict`` and ``fedshift export``."""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedshift.inference.model import Choice, Model, Ready

TABLE = "predictions.csv"


def add_parsers(subparsers: Any) -> None:
    """Add the commands."""
    predict = subparsers.add_parser("predict", help="masks of scans, or classes of pictures, with a trained model")
    predict.add_argument("model", type=Path, metavar="MODEL", help="best_global_model.pt of a run, for example")
    predict.add_argument(
        "images",
        type=Path,
        nargs="+",
        metavar="IMAGE",
        help="NIfTI, NRRD or MetaImage files, or folders with one DICOM series each; pictures for a classifier",
    )
    predict.add_argument("--out", type=Path, required=True, metavar="DIR", help="for masks and the table of volumes")
    predict.add_argument("--overlay", action="store_true", help="also a picture of every scan with the mask's outline")
    predict.add_argument("--force", action="store_true", help="replace what is in the folder from an earlier call")
    _add_choice(predict)
    predict.set_defaults(func=_predict)

    export = subparsers.add_parser("export", help="a model for others: MONAI bundle, ONNX, torch.export")
    export.add_argument("model", type=Path, metavar="MODEL")
    export.add_argument("--bundle", type=Path, metavar="DIR", help="a MONAI bundle; the folder must not be there yet")
    export.add_argument("--onnx", type=Path, metavar="FILE", help="the network with its normalisation, as ONNX")
    export.add_argument("--torch-export", type=Path, metavar="FILE", help="the same, as torch.export writes it (.pt2)")
    export.add_argument(
        "--images",
        type=Path,
        nargs="+",
        default=[],
        metavar="IMAGE",
        help="with --statistics own: what to estimate statistics from; they become part of the export",
    )
    _add_choice(export)
    export.set_defaults(func=_export)


def _add_choice(parser: Any) -> None:
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--site", metavar="NAME", help="use the statistics of this site, as the model holds them")
    whose.add_argument("--statistics", metavar="SITE|own", help="the same; or estimate them from the images given")
    whose.add_argument("--site-state", type=Path, metavar="DIR", help="a site's folder of the job: its personal parts")
    parser.add_argument("--device", default="auto", metavar="NAME", help="cpu, cuda, cuda:1 … (default: a GPU if any)")


def _choice(args: argparse.Namespace) -> Choice:
    from fedshift.inference.model import Choice

    own = args.statistics == "own"
    return Choice(site=args.site or (None if own else args.statistics), own=own, state=args.site_state)


def _describe(model: Model) -> Iterator[str]:
    header, job = model.header, model.header.job
    scores = "".join(f", {name} {value:.3f}" for name, value in header.scores.items())
    yield f"model: {'+'.join(job.methods)} on {job.task.name}, round {header.round}, {len(header.sites)} sites{scores}"
    if header.kind == "phantom":
        yield "it was trained on simulated data (phantom), not on patients"
    yield "research use only; not a medical device"


def _tell(ready: Ready) -> None:
    print(f"statistics: {ready.statistics}")
    for note in ready.notes:
        print(f"  note: {note}")


# --- predict ------------------------------------------------------------------------------------------------


def _predict(args: argparse.Namespace) -> int:
    from fedshift.data.scans import require_text
    from fedshift.inference.model import open_model
    from fedshift.schema.errors import ConfigError

    model, images = open_model(args.model), list(dict.fromkeys(args.images))
    for image in images:
        require_text(image)
    table = args.out / TABLE
    if table.exists() and not args.force:
        raise ConfigError(f"{table} is there already: name another folder with --out, or replace it with --force")
    for line in _describe(model):
        print(line)
    rows = (_segment if model.is_segmentation else _classify)(model, images, args)
    return _write_rows(rows, table)


def _segment(model: Model, images: Sequence[Path], args: argparse.Namespace) -> Iterator[dict[str, object]]:
    from fedshift.inference import segment

    places = segment.outputs(images, args.out, overlay=args.overlay, force=args.force)
    ready = segment.ready_for(model, images, _choice(args), device=args.device)
    _tell(ready)
    _make_folder(args.out)
    for done in segment.segment_scans(model, ready, places):
        row: dict[str, object] = {"file": done.image, "volume_ml": "", "voxels": "", "statistics": ready.statistics}
        if done.error is None:
            row |= {"volume_ml": f"{done.volume_ml:.3f}", "voxels": done.voxels}
            drawn = f", {done.overlay}" if done.overlay else ""
            print(f"{done.image}: {done.volume_ml:.1f} ml, {done.mask}{drawn}")
        for remark in done.remarks:
            print(f"  warning: {remark}")
        yield row | {"warnings": " | ".join(done.remarks), "error": done.error or ""}


def _classify(model: Model, images: Sequence[Path], args: argparse.Namespace) -> Iterator[dict[str, object]]:
    from fedshift.inference import classify
    from fedshift.schema.errors import ConfigError

    if args.overlay:
        raise ConfigError(f"{model.path} tells classes of pictures, which have no outline: leave out --overlay")
    ready = classify.ready_for(model, images, _choice(args), device=args.device)
    _tell(ready)
    _make_folder(args.out)
    for done in classify.classify(model, ready, images):
        row: dict[str, object] = {"file": done.image, "class": "", "probability": "", "statistics": ready.statistics}
        if done.error is None:
            row |= {"class": done.label, "probability": f"{done.probability:.4f}"}
            print(f"{done.image}: {done.label} ({done.probability:.0%})")
        yield row | {"error": done.error or ""}


def _make_folder(folder: Path) -> None:
    from fedshift.schema.errors import ConfigError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror}): name another folder with --out") from None


def _write_rows(rows: Iterator[Mapping[str, object]], table: Path) -> int:
    """Write each row as it comes, so that what is done is kept; 1 if one is of an error, which is told."""
    from fedshift.schema.errors import ConfigError

    failed = False
    first = next(rows)  # also finds whatever forbids a prediction, before anything is written
    try:
        opened = table.open("w", newline="", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{table} cannot be written ({error.strerror}): name another folder with --out") from None
    with opened as file:
        writer = csv.DictWriter(file, list(first), lineterminator="\n")
        writer.writeheader()
        for row in itertools.chain([first], rows):
            writer.writerow(row)
            file.flush()
            if row["error"]:
                failed = True
                print(f"fedshift: {row['error']}", file=sys.stderr)
    print(f"table: {table}")
    return int(failed)


# --- export -------------------------------------------------------------------------------------------------


def _export(args: argparse.Namespace) -> int:
    from fedshift.inference import classify, export, segment
    from fedshift.inference.model import open_model
    from fedshift.schema.errors import ConfigError

    if not (args.bundle or args.onnx or args.torch_export):
        raise ConfigError("name what to write: --bundle DIR, --onnx FILE or --torch-export FILE")
    model, choice = open_model(args.model), _choice(args)
    if choice.own and not args.images:
        raise ConfigError("--statistics own needs images to estimate them from: name some with --images")
    if args.images and not choice.own:
        raise ConfigError("--images go with --statistics own: leave them out, or say it")
    ready = (segment if model.is_segmentation else classify).ready_for(model, args.images, choice, device=args.device)
    for line in _describe(model):
        print(line)
    _tell(ready)
    if args.bundle:
        from fedshift.inference.bundle import write_bundle

        write_bundle(model, ready, args.bundle)
        print(f"{args.bundle}: run it there with 'python -m monai.bundle run --config_file configs/inference.json'")
    for path, write in ((args.onnx, export.write_onnx), (args.torch_export, export.write_torch_export)):
        if path:
            print(f"{path}: differs by at most {write(model, ready, path):.2g} from the model")
    return 0
