"""``fedshift data fetch``."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from fedshift.cli.pacs_access import add_access, add_query, archive_at, check_access, fetching, print_fetched

ABOUT = """Fetch series of images from a PACS by DICOMweb or DIMSE, with the DICOM SEG and RT Structure Sets of their
studies, into a folder that 'fedshift data check' and 'fedshift data prepare own --source' take. Repeat it to go on
where it ended, or to add what is new in the PACS.
"""


def add_parser(commands: Any) -> None:
    """Add ``fetch`` to the commands of ``data``."""
    parser = commands.add_parser("fetch", help="fetch images and masks from a PACS", description=ABOUT)
    parser.add_argument(
        "pacs",
        metavar="PACS",
        help="its DICOMweb service, as https://pacs.example/dicom-web, or itself as a DICOM node, as "
        "dimse+tls://AE_TITLE@pacs.example:2762 or dimse://AE_TITLE@pacs.example:104",
    )
    add_query(parser, required=True)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="a new folder, or one of an earlier call"
    )
    parser.add_argument(
        "--masks",
        choices=("any", "required", "none"),
        default="any",
        help="masks of the studies: fetch those that there are (default), leave out studies without any, or fetch none",
    )
    add_access(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Fetch; the exit code is 1 if some series could not be fetched."""
    from fedshift.pacs.fetch import fetch
    from fedshift.pacs.query import parse_query

    check_access(args, args.pacs)
    query = parse_query(args.query, args.sequence)
    archive = archive_at(args.pacs, args)
    with fetching() as on_study:
        record = fetch(archive, query, args.out, masks=args.masks, progress=on_study)
    code = print_fetched(record, args.out)
    if not code and args.masks != "none":
        print(f"next: fedshift data check {shlex.quote(str(args.out))} --task TASK")
    return code
