"""``cases.csv``: the table of cases as a file that people read, edit and bring themselves.

A row is a case. Columns: ``case``, ``mask`` and ``image``, or ``image NAME`` for each sequence; and, where wanted,
``subject``, ``site``, ``split`` (train, val or test) and ``volume`` or ``volume NAME``, which says which volume of a 4D
image to take, from 1. ``stratum NAME``, such as ``stratum vendor``, is kept with the case, so that scores can be told
by it (`fedshift.schema.validation`). Paths are absolute or begin at the file's folder.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import get_args

from fedshift.data.cases import CaseFiles, CaseTable
from fedshift.data.picture_structures import names_picture_structures, structures_in_picture
from fedshift.data.scan_file import Finding, as_compared, is_broken_link, reading, same_form
from fedshift.data.series import is_series
from fedshift.data.splits import subject_of
from fedshift.data.strata import REMEDY, STRATUM, check_column, is_stratum, refuse_many, strata_of
from fedshift.schema.errors import DataError
from fedshift.schema.files import csv_text, path_of, write_text
from fedshift.schema.manifest import Split
from fedshift.schema.strict import closest, nearest

PLAIN = ("case", "subject", "site", "split", "mask")
BY_SEQUENCE = ("image", "volume")
"""Columns that there are for each sequence, with its name after a space; without one for a single sequence."""
SPLITS: tuple[Split, ...] = get_args(Split)


def is_table(path: Path | None) -> bool:
    """Whether a path names a table of cases: a file that is called ``.csv``."""
    return path is not None and path.suffix.lower() == ".csv" and not path.is_dir()


def write_cases(tables: Sequence[CaseTable], path: Path) -> None:
    """Write the cases of tables, each of which is a site if there are several."""
    names = list(dict.fromkeys(name for table in tables for name in table.sequences or ("",)))
    volumes = [name for name in names if any(_volumes(table).get(name) for table in tables)]
    header = ["case", "subject", "site", "split"]
    header += [_heading(kind, name) for kind, columns in (("image", names), ("volume", volumes)) for name in columns]
    strata = list(dict.fromkeys(column for table in tables for case in table.cases for column in case.strata))
    rows = []
    for table in tables:
        site = table.site or (table.name if len(tables) > 1 else "")
        for case in table.cases:
            image_of = dict(zip(case.sequences or ("",), case.images, strict=True))
            volume_of = _volume_of(case)
            row: list[object] = [case.id, case.subject or subject_of(case.id), site, case.split]
            row += [_shown(image_of.get(name), path) for name in names]
            row += [*(volume_of.get(name) for name in volumes), _shown(case.mask, path)]
            rows.append([*row, *(case.strata.get(column) for column in strata)])
    write_text(path, csv_text([*header, "mask", *(_heading(STRATUM, column) for column in strata)], rows))


def read_cases(path: Path) -> list[CaseTable]:
    """The tables of the sites in a file, in their order; rows that cannot be used are errors among the findings."""
    header, lines = read_lines(path)
    columns = [_column(cell) for cell in header]
    _refuse_columns(columns, path)
    rows = [_Row(path, number, columns, cells) for number, cells in lines]
    if not rows:
        raise DataError("table-empty", f"{path} has no row below its columns: write a case in each")
    of_site: dict[str, list[_Row]] = {}
    for row in rows:
        of_site.setdefault(row.cells.get("site", ""), []).append(row)
    return [_table(path, site, site_rows) for site, site_rows in of_site.items()]


def read_lines(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header of a CSV file, and the lines below it that are not empty, with their numbers.

    Raises:
        DataError: it does not exist, is not in UTF-8, or has a quote that does not end.
    """
    if not path.is_file():
        raise DataError("file-missing", f"{path} does not exist: name the table of cases")
    with reading(path):
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise DataError("table-encoding", f"{path} is not in UTF-8: save it as CSV in UTF-8") from None
    reader = csv.reader(StringIO(text), delimiter=_separator(text.partition("\n")[0]), strict=True)
    try:
        header = next(reader, [])
        return header, [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        what = f"{path} cannot be divided into cells at line {reader.line_num} ({error})"
        raise DataError(
            "table-quotes", f"{what}: look at the quotes there and above, and save it as CSV again"
        ) from None


@dataclass
class _Row:
    """A row by its columns, and what is wrong with it."""

    path: Path
    line: int
    columns: Sequence[str]
    raw_cells: Sequence[str]
    cells: dict[str, str] = field(init=False)
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        cells = [cell.strip() for cell in self.raw_cells]
        self.cells = {name: cell for name, cell in zip(self.columns, cells, strict=False) if cell}
        if any(cells[len(self.columns) :]):
            self.refuse("table-cell", self.columns[-1], "has cells after the last column", "put names into quotes")

    @property
    def case(self) -> str:
        return same_form(self.cells.get("case", ""))

    def refuse(self, code: str, column: str, what: str, remedy: str) -> None:
        where = f"line {self.line}, column {column}:"
        self.findings.append(
            Finding("error", code, self.path, f"{where} {what}", remedy, self.case or f"line {self.line}")
        )

    def file(self, column: str) -> Path:
        named = path_of(self.cells.get(column, ""))
        file = Path(os.path.normpath(self.path.parent / named))
        if column not in self.cells:
            self.refuse("cell-missing", column, "the cell is empty", "name the file, or remove the row")
        elif not (file.exists() or is_broken_link(file) or is_series(file) or _stands_for_files(file)):
            self.refuse("file-missing", column, f"{named} is not there", "correct the path, or remove the row")
        return file

    def volume(self, name: str) -> int | None:
        column = _heading("volume", name)
        text = self.cells.get(column)
        if text is None or (text.isdecimal() and int(text) > 0):
            return int(text) if text else None
        self.refuse(
            "table-cell", column, f"{text!r} is no number of a volume", "write 1 for the first, or leave it empty"
        )
        return None


def _table(path: Path, site: str, rows: Sequence[_Row]) -> CaseTable:
    known = [name for name in map(_sequence, rows[0].columns) if name is not None]
    names = [name for name in known if any(_heading("image", name) in row.cells for row in rows)] or known[:1]
    sequences = tuple(names) if names != [""] else ()
    first: dict[str, _Row] = {}
    cases = []
    for row in rows:
        if not row.case:
            row.refuse("cell-missing", "case", "the cell is empty", "name the case, or remove the row")
        elif (other := first.setdefault(as_compared(row.case), row)) is not row:
            what = f"{row.case} is the case of line {other.line} too"
            row.refuse("case-twice", "case", what, "rename or remove one of the two")
        cases.append(_case(row, names, sequences))
    _refuse_divided(rows, cases)
    refuse_many(path, [case.strata for case in cases])
    good = tuple(case for case, row in zip(cases, rows, strict=True) if not row.findings)
    findings = tuple(finding for row in rows for finding in row.findings)
    return CaseTable(site or path.stem, path.parent, "table", good, findings, sequences, site=site)


def _case(row: _Row, names: Sequence[str], sequences: tuple[str, ...]) -> CaseFiles:
    split = row.cells.get("split", "").lower()
    if split and split not in SPLITS:
        near = closest(split, SPLITS)
        meant = f"; did you mean {near!r}?" if near else ""
        row.refuse(
            "table-cell", "split", f"{split!r} is no split{meant}", "write train, val or test, or leave it empty"
        )
    images = tuple(row.file(_heading("image", name)) for name in names)
    volumes = [row.volume(name) for name in names]
    single = volumes[0] if len(names) == 1 else None
    channels = tuple(volume and volume - 1 for volume in volumes) if any(volumes) and single is None else ()
    return CaseFiles(
        row.case,
        images,
        row.file("mask"),
        channels=channels,
        sequences=sequences,
        volume=single,
        subject=row.cells.get("subject", ""),
        strata=_strata(row),
        split=next((known for known in SPLITS if known == split), None),
    )


def _strata(row: _Row) -> dict[str, str]:
    strata, faults = strata_of(row.cells)
    for column, what in faults:
        row.refuse("table-cell", column, what, REMEDY)
    return strata


def _refuse_divided(rows: Sequence[_Row], cases: Sequence[CaseFiles]) -> None:
    first: dict[str, tuple[Split, _Row]] = {}
    for row, case in zip(rows, cases, strict=True):
        if case.split is None:
            continue
        subject = case.subject or subject_of(case.id)
        split, other = first.setdefault(subject, (case.split, row))
        if split != case.split:
            what = f"{subject} is in {case.split}, and in {split} in line {other.line}"
            row.refuse("subject-divided", "split", what, "keep all scans of a person in one split")


def _refuse_columns(columns: Sequence[str], path: Path) -> None:
    known = [*PLAIN, *BY_SEQUENCE, "image NAME", "volume NAME", f"{STRATUM} NAME"]
    for column in columns:
        if is_stratum(column):
            check_column(column, path)
        elif column not in PLAIN and _kind(column) is None:
            raise DataError("column-unknown", f"{path} has a column {column!r}{nearest(column, known)}")
        if columns.count(column) > 1:
            raise DataError("column-twice", f"{path} has the column {column!r} twice: keep one of them")
        if _kind(column) == "volume" and column.replace("volume", "image", 1) not in columns:
            what = f"{path} has a column {column!r} and none that is called image so"
            raise DataError("column-missing", f"{what}: name the images of that sequence too")
    lacking = [name for name in ("case", "mask") if name not in columns]
    lacking += [] if any(_kind(column) == "image" for column in columns) else ["image"]
    if lacking:
        has = ", ".join(columns) or "none"
        what = f"{path} has no column {' and no column '.join(lacking)}, it has {has}: add what lacks"
        raise DataError("column-missing", what)


def _separator(header: str) -> str:
    """What separates columns: a comma, or what spreadsheets write where numbers have one."""
    return max((",", ";", "\t"), key=header.count)


def _column(cell: str) -> str:
    """A column's name, whose words may be in capitals; a sequence is as it is written."""
    word, _, name = cell.strip().partition(" ")
    return f"{word.lower()} {name.strip()}".strip()


def _heading(kind: str, name: str) -> str:
    return f"{kind} {name}".strip()


def _kind(column: str) -> str | None:
    word = column.partition(" ")[0]
    return word if word in BY_SEQUENCE else None


def _sequence(column: str) -> str | None:
    """The sequence that a column has the images of, "" for one without a name; None for another column."""
    return column.partition(" ")[2] if _kind(column) == "image" else None


def _volumes(table: CaseTable) -> Mapping[str, int]:
    return {name: volume for case in table.cases for name, volume in _volume_of(case).items()}


def _volume_of(case: CaseFiles) -> dict[str, int]:
    """Sequence -> the number of its volume, from 1, where one is taken of several."""
    names = case.sequences or ("",)
    if not case.channels:
        return dict.fromkeys(names, case.volume) if case.volume else {}
    return {name: channel + 1 for name, channel in zip(names, case.channels, strict=True) if channel is not None}


def _stands_for_files(path: Path) -> bool:
    """Whether a mask is of several files, or within one (`fedshift.data.picture_structures`)."""
    try:
        return names_picture_structures(path) and bool(structures_in_picture(path))
    except (DataError, OSError):
        return False


def _shown(file: Path | None, table: Path) -> Path | None:
    if file is None:
        return None
    file, folder = (Path(os.path.normpath(path.absolute())) for path in (file, table.parent))
    return file.relative_to(folder) if file.is_relative_to(folder) else file
