"""``fedshift predict`` from a PACS and to one: images are fetched before, and results stored after each case."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedshift.cli.pacs_access import add_access, add_query, archive_at, check_access, fetching, print_fetched
from fedshift.schema.errors import ConfigError, DataError

if TYPE_CHECKING:
    from fedshift.cli.opened_model import OpenedModel
    from fedshift.inference.segment import Segmented
    from fedshift.inference.sequences import ScanCase
    from fedshift.pacs.archive import Archive
    from fedshift.pacs.query import Query

FOLDER = "fetched"
"""In ``--out``: the images of a PACS."""


class Source(NamedTuple):
    """Which images are predicted, and where they are."""

    archive: Archive
    query: Query


def add_pacs(parser: Any) -> None:
    parser.add_argument(
        "--from",
        dest="source",
        metavar="PACS",
        help="fetch the images of --query from this PACS (https://…, dimse+tls://… or dimse://…), in place of IMAGE",
    )
    add_query(parser, required=False)
    add_destination(parser, required=False)


def add_destination(parser: Any, *, required: bool) -> None:
    """``--to``, and the options on how to reach a PACS."""
    parser.add_argument(
        "--to", dest="target", required=required, metavar="PACS", help="store the DICOM results in this PACS too"
    )
    parser.add_argument(
        "--to-credentials",
        type=Path,
        metavar="FILE",
        help="as --credentials, for --to where that is another server than --from",
    )
    add_access(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse options that do not go together (`ConfigError`)."""
    if args.source is None:
        if not args.images:
            raise ConfigError(
                "images-missing", "which images? name files or folders, or a PACS with --from and --query"
            )
        if args.query or args.sequence:
            message = "--query and --sequence ask a PACS: name it with --from, or leave them out"
            raise ConfigError("options-clash", message)
    elif args.images:
        raise ConfigError("options-clash", f"{args.images[0]} and --from both say which images: give one of the two")
    elif not args.query:
        raise ConfigError("options-clash", "--from takes every image that a PACS has: say which with --query")
    if args.source is None and args.target is None:
        options = {
            "--credentials": args.credentials,
            "--ca-file": args.ca_file,
            "--to-credentials": args.to_credentials,
        }
        for option, value in {**options, "--allow-unencrypted": args.allow_unencrypted}.items():
            if value:
                raise ConfigError(
                    "no-effect", f"{option} is for a PACS, and neither --from nor --to is there: leave it out"
                )
    check_access(args, args.source, args.target)
    if args.to_credentials is not None and args.target is None:
        raise ConfigError("no-effect", "--to-credentials is for --to, which is not there: leave it out")


def require_results(opened: OpenedModel) -> None:
    """Refuse a model of whose results no DICOM is made (`ConfigError`)."""
    if opened.model.of_pictures:
        message = f"{opened.model.path} segments pictures, of whose masks no DICOM is made"
        raise ConfigError(
            "no-effect", f"{message}: leave out --from and --to, and get images with 'fedshift data fetch'"
        )


def source(args: argparse.Namespace) -> Source | None:
    """The images that ``--from`` and ``--query`` name; None without ``--from``.

    Raises:
        ConfigError: the address, the credentials or the query cannot be used.
    """
    from fedshift.pacs.query import parse_query

    return (
        None if args.source is None else Source(archive_at(args.source, args), parse_query(args.query, args.sequence))
    )


def fetched(images: Source, args: argparse.Namespace) -> tuple[list[Path], int]:
    """The folders of the series, fetched, and 1 if some could not be."""
    from fedshift.pacs.fetch import fetch

    folder = args.out / FOLDER
    with fetching() as on_study:
        record = fetch(images.archive, images.query, folder, masks="none", progress=on_study)
    code = print_fetched(record, folder)
    if not record.fetched:
        raise DataError("pacs-answer", f"{images.archive.address} gave no series whole: see above, and repeat this")
    return [folder / each.folder for each in record.fetched], code


def named_by_study(cases: Sequence[ScanCase], args: argparse.Namespace) -> list[ScanCase]:
    """Cases whose results are called by study and series: series of several patients have one name."""
    return [replace(case, named=Path(name_of(case.named, args))) for case in cases]


def name_of(path: Path, args: argparse.Namespace) -> str:
    """What results of an image or series that was fetched are called: by study and series."""
    return "_".join(path.resolve().relative_to((args.out / FOLDER).resolve()).parts).removesuffix(".dcm")


def pictures_in(folders: Sequence[Path]) -> list[Path]:
    """The images of series, each of which a model of pictures takes by itself.

    Raises:
        DataError: a series holds slices of scans, or something else than pictures.
    """
    from fedshift.data.dicom import identify
    from fedshift.data.dicom_objects import PICTURES

    files = [file for folder in folders for file in sorted(folder.glob("*.dcm"))]
    for file in files:
        identity = identify(file)
        if identity is None or identity.sop_class not in PICTURES:
            raise DataError(
                "kind-of-data",
                f"{file.parent} holds no pictures such as radiographs, photographs or ultrasound, and the model "
                "classifies pictures: narrow --query, as with Modality=DX",
            )
    return files


def destination(args: argparse.Namespace) -> Archive | None:
    """The PACS that results go to; None without ``--to``.

    Raises:
        ConfigError: its address or the credentials cannot be used.
    """
    from fedshift.pacs.addresses import same_server

    if args.target is None:
        return None
    other = args.source is not None and not same_server(args.source, args.target)
    return archive_at(
        args.target,
        args,
        file=args.to_credentials,
        anonymous=other and args.to_credentials is None,  # what one server knows a user by is not for another
    )


def require_dicom(paths: Sequence[Mapping[str, Path]]) -> None:
    """Refuse results without DICOM where they are to be stored (`ConfigError`)."""
    if not any(path.suffix == ".dcm" for results in paths for path in results.values()):
        message = "--to stores DICOM, and nothing of it is written"
        raise ConfigError("no-effect", f"{message}: leave out --to, or name DICOM images and --format seg")


def stored(segmented: Segmented, archive: Archive | None) -> Segmented:
    """A case after its DICOM results are in a PACS; with an error, and without results, if it does not take them.

    Raises:
        DataError: it cannot be reached, or the credentials are wrong, as they would be for all other cases.
    """
    error = None if segmented.error is not None else store_results(segmented.image, segmented.written, archive)
    return segmented if error is None else replace(segmented, written={}, error=error)


def store_results(image: Path, written: Mapping[str, Path], archive: Archive | None) -> str | None:
    """Store what is DICOM of an image's results; why not, and nothing of them is left then, if a PACS does not take it.

    Raises:
        DataError: as `stored`.
    """
    from fedshift.pacs.archive import FATAL
    from fedshift.pacs.store import store

    files = [path for path in written.values() if path.suffix == ".dcm"]
    if archive is None or not files:
        return None
    try:
        counted = store(archive, files)
    except DataError as error:
        for path in written.values():
            path.unlink(missing_ok=True)
        if error.code in FATAL:
            raise
        return f"{image}: {error}"
    present = f", {counted.present} were there already" if counted.present else ""
    print(f"  stored in {archive.address}: {counted.new}{present}")
    return None
