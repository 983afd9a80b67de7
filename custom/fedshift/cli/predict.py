"""``fedshift predict``."""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.cli.arguments import add_bits, add_volume, make_folder
from fedshift.cli.model_choice import add_choice, choice, describe, print_statistics

if TYPE_CHECKING:
    from fedshift.inference.dicom_source import Origin
    from fedshift.inference.model import Model
    from fedshift.inference.monai_bundle import Bundle
    from fedshift.inference.segment import Segmented

TABLE = "predictions.csv"
PARTIAL = "predictions.partial.csv"
"""The table of a call that is under way, was interrupted, or failed for some of its images."""
RECORD, PARTIAL_RECORD = "predictions.json", "predictions.partial.json"
"""The same for programs; written when the call ends."""
Row = tuple[Mapping[str, object], Mapping[str, object]]
"""Of an image: its row in the table, and its entry in the record."""


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("predict", help="masks of scans, or classes of pictures, with a trained model")
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
    add_volume(parser)
    add_bits(parser)
    add_choice(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """``fedshift predict``; exit code 1 if it failed for some of the images."""
    from fedshift.data.scan_folders import not_read, scans_in
    from fedshift.data.scans import require_text
    from fedshift.inference.sequences import first_files, in_case_folders, which_is_which
    from fedshift.schema.errors import ConfigError
    from fedshift.schema.names import printable

    opened, images = _open(args), list(dict.fromkeys(args.images))
    for image in images:
        require_text(image)
    table = args.out / TABLE
    if table.exists() and not args.force:
        raise ConfigError(f"{table} already exists: name another folder with --out, or replace it with --force")
    for line in opened.lines:
        print(line)
    if opened.is_segmentation:
        for line in not_read(images):
            print(printable(line))
        images = first_files(scans_in(in_case_folders(images, opened.sequences)), opened.sequences)
        for line in which_is_which(images, opened.sequences):
            print(printable(line))
        if args.bits is not None:
            raise ConfigError(f"{args.model} segments scans, whose values are taken as they are: leave out --bits")
    rows = (_segment if opened.is_segmentation else _classify)(opened, images, args)
    return _write_rows(rows, args.out, n=len(images), about=_about(opened))


@dataclass(frozen=True)
class Opened:
    """A model file, or a bundle; exactly one of the two."""

    model: Model | None = None
    bundle: Bundle | None = None

    @property
    def lines(self) -> Iterator[str]:
        """What is said of it first."""
        if self.bundle is not None:
            from fedshift.inference import monai_bundle

            return monai_bundle.describe(self.bundle)
        return describe(self.file)

    @property
    def is_segmentation(self) -> bool:
        """Whether it segments volumes."""
        return self.bundle is not None or self.file.is_segmentation

    @property
    def sequences(self) -> tuple[str, ...]:
        """Of a case."""
        return self.file.sequences if self.bundle is None else self.bundle.sequences

    @property
    def file(self) -> Model:
        """The model file."""
        assert self.model is not None
        return self.model


def _open(args: argparse.Namespace) -> Opened:
    """Read what the command line names.

    Raises:
        ConfigError: it cannot be read, or a bundle is asked for a site's statistics.
    """
    from fedshift.inference.model import Choice, open_model
    from fedshift.inference.monai_bundle import is_bundle, open_bundle
    from fedshift.schema.errors import ConfigError

    if not is_bundle(args.model):
        return Opened(model=open_model(args.model))
    if choice(args) != Choice():
        raise ConfigError(
            f"{args.model} is a bundle, which has no site's statistics: leave out --site, --statistics and --site-state"
        )
    return Opened(bundle=open_bundle(args.model, device=args.device))


def _segment(opened: Opened, images: Sequence[Path], args: argparse.Namespace) -> Iterator[Row]:
    from fedshift.inference import segment
    from fedshift.schema.errors import ConfigError
    from fedshift.schema.names import printable

    replace = {image.resolve() for image in images} if args.force else _predicted_before(args.out)
    places_of = partial(
        segment.output_paths, images, args.out, overlay=args.overlay, replace=replace, sequences=opened.sequences
    )
    places, origin = places_of(formats=args.format), None
    if any(place.keys() - {"mask", "overlay"} for place in places.values()):
        try:
            origin = _origin(opened, args.codes)
        except ConfigError as error:
            if args.format or args.codes:
                raise
            print(f"masks only: {error}")
            places = places_of(formats=["mask"])
    of: segment.Segmenter
    if opened.bundle is not None:
        of, statistics = opened.bundle, "the bundle's own"
    else:
        ready = segment.ready_for(
            opened.file,
            images,
            choice(args),
            device=args.device,
            true_spacing=args.true_spacing,
            volume=args.volume,
        )
        of, statistics = segment.ModelSegmenter(opened.file, ready), ready.statistics
        print_statistics(ready)
    make_folder(args.out)
    for done in segment.segment_scans(of, places, origin=origin, true_spacing=args.true_spacing, volume=args.volume):
        if done.error is None:
            written = ", ".join(map(str, done.written.values()))
            print(printable(f"{done.image}: {done.all.volume_ml:.1f} ml, {written or 'nothing written'}"))
        for remark in done.remarks:
            print(f"  warning: {remark}")
        yield _row(done, of.classes, statistics), _entry(done, statistics)


def _row(done: Segmented, classes: Sequence[str], statistics: str) -> dict[str, object]:
    """The columns of one scan; of each class where there are several."""
    found = {"": done.all} | ({f" {name}": done.classes.get(name) for name in classes} if len(classes) > 1 else {})
    row: dict[str, object] = {
        "file": done.image,
        "volume_ml": "",
        "voxels": "",
        "probability": "",
        "statistics": statistics,
    }
    row |= {f"{column}{name}": "" for column in ("volume_ml", "probability") for name in found if name}
    if done.error is None:
        row["voxels"] = done.all.voxels
        for name, of in found.items():
            assert of is not None
            row[f"volume_ml{name}"] = f"{of.volume_ml:.3f}"
            row[f"probability{name}"] = "" if of.probability is None else f"{of.probability:.4f}"
    return row | {"warnings": " | ".join(done.remarks), "error": done.error or ""}


def _entry(done: Segmented, statistics: str) -> dict[str, object]:
    return {
        "file": str(done.image),
        "written": {name: path.name for name, path in done.written.items()},
        "classes": {
            name: {
                "volume_ml": round(of.volume_ml, 3),
                "voxels": of.voxels,
                "probability": None if of.probability is None else round(of.probability, 4),
            }
            for name, of in done.classes.items()
        },
        "statistics": statistics,
        "reading": {name: said.model_dump(mode="json") for name, said in done.reading.items()},
        "warnings": list(done.remarks),
        "error": done.error,
    }


def _origin(opened: Opened, file: Path | None) -> Origin:
    """What DICOM results say of the model; ``file`` has codes in place of those of its task."""
    from fedshift.inference import dicom_source
    from fedshift.schema.codes import parse_codes
    from fedshift.schema.errors import ConfigError
    from fedshift.schema.job import read_yaml

    codes = None if file is None else parse_codes(read_yaml(file), where=str(file))
    if codes is not None and not codes:
        raise ConfigError(f"{file} has no 'codes': give category and type of each class there (docs/how-to-dicom.md)")
    bundle = opened.bundle
    if bundle is None:
        return dicom_source.origin_of(opened.file, codes)
    return dicom_source.origin(
        bundle.weights,
        program=f"MONAI bundle {bundle.version}",
        task=bundle.name,
        classes=("background", *bundle.classes),
        codes=codes or {},
    )


def _about(opened: Opened) -> dict[str, object]:
    """What the record says of the model."""
    import fedshift

    about: dict[str, object] = {
        "schema": 1,
        "fedshift": fedshift.__version__,
        "note": "research use only; not a medical device",
    }
    if opened.bundle is not None:
        return {**about, "bundle": {"name": opened.bundle.name, "version": opened.bundle.version}}
    header = opened.file.header
    return {
        **about,
        "model": {
            "file": opened.file.path.name,
            "task": header.job.task.name,
            "methods": list(header.job.methods),
            "round": header.round,
            "trained_on": header.kind,
        },
    }


def _classify(opened: Opened, images: Sequence[Path], args: argparse.Namespace) -> Iterator[Row]:
    from fedshift.inference import classify
    from fedshift.schema.errors import ConfigError
    from fedshift.schema.names import printable

    model = opened.file
    if args.overlay:
        raise ConfigError(f"{model.path} classifies pictures, which have no outline: leave out --overlay")
    if args.format or args.codes:
        raise ConfigError(
            f"{model.path} classifies pictures, of which no mask is written: leave out --format and --codes"
        )
    if args.volume:
        raise ConfigError(f"{model.path} classifies pictures, which have no volumes: leave out --volume")
    if args.true_spacing:
        raise ConfigError(f"{model.path} classifies pictures, which have no voxel size: leave out --true-spacing")
    depth = classify.depth_of(images, args.bits)
    ready = classify.ready_for(model, images, choice(args), depth=depth, device=args.device)
    print_statistics(ready)
    make_folder(args.out)
    for done in classify.classify(model, ready, images, depth=depth):
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


def _predicted_before(out: Path) -> set[Path]:
    """Images whose masks an unfinished call wrote into ``out``; repeating that call replaces them."""
    from fedshift.schema.csv_text import path_of

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
    from fedshift.schema.csv_text import CsvWriter
    from fedshift.schema.errors import ConfigError
    from fedshift.schema.files import write_text
    from fedshift.schema.names import printable

    failed, partial = 0, out / PARTIAL
    first = next(rows)  # raises whatever forbids all predictions, before anything is written
    try:
        opened = partial.open("w", newline="", encoding="utf-8")
        for earlier in (TABLE, RECORD, PARTIAL_RECORD):
            (out / earlier).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{partial} cannot be written ({error.strerror}): name another folder with --out") from None
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
    if failed < n:
        if not failed:
            partial.replace(out / TABLE)
        write_text(out / (PARTIAL_RECORD if failed else RECORD), json.dumps({**about, "images": entries}, indent=1))
        print(f"table: {out / (PARTIAL if failed else TABLE)}")
    else:
        partial.unlink()
    if failed:
        print(f"{failed} of {n} images failed: correct them and repeat the command into the same folder")
    return int(failed > 0)
