"""How ``data fetch``, ``predict`` and ``serve`` reach a PACS, and what they print of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn

from fedshift.schema.errors import ConfigError
from fedshift.schema.names import printable

if TYPE_CHECKING:
    from fedshift.pacs.archive import Archive
    from fedshift.pacs.dimse.node import Node
    from fedshift.pacs.record import FetchRecord


def add_query(parser: Any, *, required: bool) -> None:
    parser.add_argument(
        "--query",
        nargs="+",
        action="extend",
        required=required,
        default=None if required else [],
        metavar="KEY=VALUE",
        help="which series, by DICOM's keywords: StudyDate=20240101-20240630 Modality=MR 'SeriesDescription=t2*'",
    )

    parser.add_argument(
        "--sequence",
        action="append",
        default=[],
        metavar="NAME=DESCRIPTION",
        help="of a model or task with several sequences: which series each is, by its SeriesDescription, such as "
        "'T2=t2_tse*'; a study must have one of each",
    )


def add_access(parser: Any) -> None:
    """Add the options that `archive_at` reads."""
    parser.add_argument(
        "--credentials",
        type=Path,
        metavar="FILE",
        help="a file of mode 0600 with lines FEDSHIFT_PACS_USER=… and FEDSHIFT_PACS_PASSWORD=…, or "
        "FEDSHIFT_PACS_TOKEN=… (default: environment variables of these names)",
    )
    parser.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="the certificate (.pem) of the authority that the PACS is known by"
    )
    parser.add_argument(
        "--allow-unencrypted",
        action="store_true",
        help="allow http or dimse to another machine: images of patients then cross the network for all to read",
    )
    by_dimse = parser.add_argument_group("a PACS that is asked by DIMSE")
    by_dimse.add_argument("--ae-title", metavar="NAME", help="what this machine is called there (default: FEDSHIFT)")
    by_dimse.add_argument(
        "--receive-port",
        type=port,
        metavar="PORT",
        help="have it send images to this port of this machine (C-MOVE), as one does that has no C-GET",
    )
    by_dimse.add_argument(
        "--certificate", type=Path, metavar="FILE", help="of dimse+tls: this machine's certificate (.pem), with its key"
    )
    by_dimse.add_argument(
        "--certificate-key", type=Path, metavar="FILE", help="the key of --certificate, if it is in another file"
    )


def port(text: str) -> int:
    """A port of TCP."""
    if not text.isdecimal() or not 0 < int(text) < 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} is no port, which is a whole number from 1 to 65535")
    return int(text)


def archive_at(url: str, args: argparse.Namespace, *, file: Path | None = None, anonymous: bool = False) -> Archive:
    """The PACS at an address, with the credentials of ``file``, else of ``--credentials`` or of the environment.

    ``anonymous``: without any.
    """
    from fedshift.pacs.access import Access, open_archive
    from fedshift.pacs.credentials import Credentials, from_environment, from_file

    file = file or args.credentials
    credentials = Credentials() if anonymous else from_environment() if file is None else from_file(file)
    access = Access(credentials, node_of(args), ca_file=args.ca_file, allow_unencrypted=args.allow_unencrypted)
    return open_archive(url, access)


def node_of(args: argparse.Namespace) -> Node:
    """What this machine is to DICOM nodes (`ConfigError`: it has no such name)."""
    from fedshift.pacs.dimse.node import Node

    title = {} if args.ae_title is None else {"title": args.ae_title}
    return Node(**title, certificate=args.certificate, key=args.certificate_key, receive_port=args.receive_port)


def check_access(args: argparse.Namespace, *addresses: str | None) -> None:
    """Refuse options of a way by which none of these addresses is asked (`ConfigError`)."""
    by_dimse = {
        "--ae-title": args.ae_title,
        "--receive-port": args.receive_port,
        "--certificate": args.certificate,
        "--certificate-key": args.certificate_key,
    }
    by_web = {"--credentials": args.credentials}
    schemes = {address.partition(":")[0] for address in addresses if address is not None}
    for options, ways, prefix in ((by_dimse, "dimse", "dimse://"), (by_web, "http", "https://")):
        for option, value in options.items():
            if value is not None and not any(scheme.startswith(ways) for scheme in schemes):
                raise ConfigError("no-effect", f"{option} is for a PACS at {prefix}, and none is there: leave it out")
    if args.certificate_key is not None and args.certificate is None:
        raise ConfigError("no-effect", "--certificate-key is of --certificate, which is not there: name both")


@contextmanager
def fetching() -> Iterator[Callable[[str], None]]:
    """Show on standard error, if it is a terminal, which study is fetched; yields a function to call with each."""
    screen = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("asking the PACS", total=None)
        number = 0

        def on_study(study: str) -> None:
            nonlocal number
            number += 1
            bar.update(task, description=escape(f"study {number}: {study}"))

        yield on_study


def print_fetched(record: FetchRecord, folder: Path) -> int:
    """Print what was fetched, left out and not got; 1 if something could not be fetched."""
    studies = len({each.study for each in record.fetched})
    files = sum(each.files for each in record.fetched)
    print(f"{folder}: {len(record.fetched)} series of {studies} studies, {files} files, are there whole")
    for each in record.left_out:
        print(
            printable(
                f"  left out: {'study' if each.series is None else 'series'} {each.series or each.study}: {each.reason}"
            )
        )
    for each in record.failed:
        print(printable(f"fedshift: {each.reason}"), file=sys.stderr)
    if record.failed:
        print(f"{len(record.failed)} series could not be fetched: repeat the command, which goes on with them")
    return int(bool(record.failed))
