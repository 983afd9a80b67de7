"""The one writer of CSV files: no cell is run as a formula by a spreadsheet, whatever names a site has given."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)
_BEGINS = r"[=+\-@\uff1d\uff0b\uff0d\uff20]"
"""What begins a formula; also the wide forms, which some spreadsheets take for the same."""
_BEFORE = r"[,;|\t\n][\s\"]*"
"""A program that is set to another separator than the comma begins a cell after it, and quotes do not hold it back."""
_RETURN = re.compile(r"\r\n?")
"""Python's writer puts only a new line into quotes, and readers end a row at both."""
_FORMULA = re.compile(rf"(^(?=[\t\n])|(?:^[\s\"]*|{_BEFORE})(?={_BEGINS}))")
_MADE_SAFE = re.compile(rf"({_BEFORE})'(?={_BEGINS})")


class CsvWriter:
    """Writes rows to an open file, which must have been opened with ``newline=""``."""

    def __init__(self, file: TextIO, header: Sequence[str]) -> None:
        """Write the header."""
        self._write = csv.writer(file, lineterminator="\n")
        self.row(header)

    def row(self, cells: Iterable[object]) -> None:
        """Write a row, each cell as `safe_cell` has it."""
        self._write.writerow(map(safe_cell, cells))


def csv_text(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """The text of a CSV file."""
    out = io.StringIO()
    writer = CsvWriter(out, header)
    for row in rows:
        writer.row(row)
    return out.getvalue()


def safe_cell(value: object) -> str:
    """A cell's text, with ``'`` before all that a spreadsheet would run; numbers stay as they are, None is empty.

    Source: OWASP, "CSV Injection". A `Path` that begins so gets ``./`` in front and stays the path of the same file.
    """
    text = "" if value is None else _RETURN.sub("\n", str(value))
    if _NUMBER.fullmatch(text):
        return text
    if isinstance(value, Path) and _FORMULA.match(text):
        text = f"./{text}"
    return _FORMULA.sub(r"\1'", text)


def path_of(cell: str) -> Path:
    """The path that `safe_cell` made a cell of."""
    return Path(_MADE_SAFE.sub(r"\1", cell))
