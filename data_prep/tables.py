"""Tables (.csv) of public data sets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedshift.data.downloads import read_file
from fedshift.schema.errors import DataError

Row = dict[str, str]


def table_rows(table: Path, columns: Iterable[str]) -> Iterator[tuple[int, Row]]:
    """The rows of a table with the numbers of their lines.

    Raises:
        DataError: it cannot be read, lacks one of the ``columns``, or a row is cut short.
    """
    try:
        text = read_file(table).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError("table-encoding", f"{table} is not in UTF-8: download it again") from None
    reader = csv.DictReader(io.StringIO(text))
    absent = [name for name in columns if name not in (reader.fieldnames or ())]
    if absent:
        raise DataError("column-missing", f"{table} has no column {absent[0]!r}: download it again")
    for row in reader:
        if None in row.values():
            raise DataError("file-damaged", f"{table}, line {reader.line_num} is cut short: download it again")
        yield reader.line_num, row
