"""``predictions.csv`` and ``predictions.json``: what ``fedshift predict`` says of each image."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedshift.schema.errors import ConfigError
from fedshift.schema.files import CsvWriter, path_of, write_text
from fedshift.schema.names import printable

TABLE = "predictions.csv"
PARTIAL = "predictions.partial.csv"
"""The table of a call that is under way, was interrupted, or failed for some of its images."""
RECORD, PARTIAL_RECORD = "predictions.json", "predictions.partial.json"
"""The same for programs; written when the call ends."""
NOTE = "research use only; not a medical device"
Row = tuple[Mapping[str, object], Mapping[str, object]]
"""Of an image: its row in the table, and its entry in the record."""


def predicted_before(out: Path) -> set[Path]:
    """Images whose masks an unfinished call wrote into ``out``; repeating that call replaces them."""
    try:
        with (out / PARTIAL).open(newline="", encoding="utf-8") as file:
            return {path_of(row["file"]).resolve() for row in csv.DictReader(file) if not row["error"]}
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return set()


def write_rows(rows: Iterator[Row], out: Path, *, n: int, about: Mapping[str, object]) -> int:
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
        message = f"{partial_table} cannot be written ({error.strerror}): name another folder with --out"
        raise ConfigError("folder-unwritable", message) from None
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
