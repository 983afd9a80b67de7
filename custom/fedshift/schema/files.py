"""Writing files and folders whole, and CSV in which no cell is run as a formula, whatever names a site has given."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from fedshift.schema.errors import ConfigError

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)
_BEGINS = r"[=+\-@\uff1d\uff0b\uff0d\uff20]"
"""What begins a formula; also the wide forms, which some spreadsheets take for the same."""
_BEFORE = r"[,;|\t\n][\s\"]*"
"""A program that is set to another separator than the comma begins a cell after it, and quotes do not hold it back."""
_RETURN = re.compile(r"\r\n?")
"""Python's writer puts only a new line into quotes, and readers end a row at both."""
_FORMULA = re.compile(rf"(^(?=[\t\n])|(?:^[\s\"]*|{_BEFORE})(?={_BEGINS}))")
_ESCAPED = re.compile(rf"({_BEFORE})'(?={_BEGINS})")


def write_text(path: Path, text: str) -> None:
    """Replace the file at ``path`` by ``text`` (ending with one newline); if writing fails it stays as it was."""
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        partial.write_text(text.removesuffix("\n") + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)  # on a full disk it would stay in the way
        raise


def write_private(path: Path, content: bytes) -> None:
    """Replace a file that only its owner may read; it is on disk when this returns. Its folder is created if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """A new folder that gets its name once all is in it; if anything fails, nothing is left.

    Raises:
        ConfigError: it cannot be written.
    """
    staging = folder.with_name(f".{folder.name}.partial-{uuid.uuid4().hex[:8]}")
    try:
        staging.mkdir(parents=True)
        yield staging
        staging.rename(folder)
    except OSError as error:
        message = f"{folder} cannot be written ({error.strerror}): free disk space or name another place"
        raise ConfigError("file-unwritable", message) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Have the names of new files on disk too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class CsvWriter:
    """Writes rows to an open file, which must have been opened with ``newline=""``."""

    def __init__(self, file: TextIO, header: Sequence[str]) -> None:
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
    return Path(_ESCAPED.sub(r"\1", cell))
