"""``labels.csv``: which classes pictures or volumes to be classified have, as a table that hospitals export.

A row is a picture or a volume. Columns:

- ``file``, its path, absolute or from the folder of images; or ``id``, its file name without the suffix; of a volume
  with several sequences ``file NAME`` for each;
- ``label``, one of the classes; or a column for each finding, with 1, 0, or nothing or -1 (uncertain) where it is
  unknown, or as R and pandas write these (TRUE, False, NA, NaN);
- where wanted, ``subject``, whose it is, ``split`` (train, val or test), ``site``, and ``stratum NAME``
  (`fedshift.data.strata`).

In place of the table there may be a folder for each class (`fedshift.data.class_folders`).

Other columns are not used, and upper and lower case are the same. A finding without a column is unknown at the site.
"""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fedshift.data.cases import sides_of
from fedshift.data.cases_csv import SPLITS, read_lines
from fedshift.data.class_folders import class_rows, images_in, stem
from fedshift.data.row_faults import RowFaults
from fedshift.data.scan_file import Finding, as_compared, is_broken_link, same_form
from fedshift.data.series import folder_and_uid, is_series
from fedshift.data.strata import REMEDY, STRATUM, check_column, is_stratum, refuse_many, strata_of
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.files import path_of
from fedshift.schema.manifest import Split
from fedshift.schema.names import few_names
from fedshift.schema.strict import nearest

FILE, ID, LABEL, SUBJECT, SPLIT, SITE = "file", "id", "label", "subject", "split", "site"
ALIASES = {"image": FILE, "path": FILE, "filename": FILE, "case": ID, "patient": SUBJECT, "patient_id": SUBJECT}
"""Other names of columns, which hospitals' exports have; a finding of the same name goes before."""
VALUES: Mapping[str, bool | None] = {
    "1": True,
    "1.0": True,
    "0": False,
    "0.0": False,
    "": None,
    "-1": None,
    "-1.0": None,
    "true": True,
    "false": False,
    "na": None,
    "nan": None,
}
"""What a cell of a finding says, in lower case."""
MISSING = ("na", "nan", "n/a", "#n/a", "null")
"""What programs write, in lower case, where there is no value."""
UNCERTAIN = ("-1", "-1.0")
_INDEX = re.compile(r"Unnamed: \d+")
"""How pandas calls a column without a name, such as the numbers of rows that it has written before."""
_WRITTEN = re.compile(r"^0+(?=\d)|\.0+$")
"""What spreadsheets and programs leave out of the numbers of people, or add: 007 and 7, 7 and 7.0."""
ALIKE = 0.8
"""From how alike on a column that is not used is a finding that was misspelt."""


@dataclass(frozen=True)
class Labelled:
    """A row: ``files`` (one for each sequence), and the label or the findings that are known.

    ``line``: of the table; 0 if there are folders of classes in its place.
    """

    id: str
    files: tuple[Path, ...]
    line: int
    label: str = ""
    findings: Mapping[str, bool] = field(default_factory=dict)
    subject: str = ""
    split: Split | None = None
    strata: Mapping[str, str] = field(default_factory=dict)

    @property
    def beginning(self) -> str:
        """How a sentence on the row begins."""
        return f"line {self.line}: " if self.line else ""

    @property
    def place(self) -> str:
        """Where it is, at the end of a sentence."""
        return f" in line {self.line}" if self.line else ""


@dataclass(frozen=True)
class LabelTable:
    """The rows of a site.

    ``classes``: those of the task, or those of the table if there is no task. ``without_column``: findings that the
    table has no column of. ``uncertain``: how many cells say -1. ``unlabelled``: how many rows are left out because
    nothing is known of them. ``faults``: what is wrong, errors and warnings.
    """

    path: Path
    rows: tuple[Labelled, ...]
    classes: tuple[str, ...]
    sequences: tuple[str, ...]
    has_findings: bool
    without_column: tuple[str, ...]
    uncertain: int
    unlabelled: int
    faults: tuple[Finding, ...]

    @property
    def errors(self) -> list[Finding]:
        return [fault for fault in self.faults if fault.level == "error"]


def read_labels(
    path: Path,
    *,
    images: Path | None = None,
    site: str = "",
    classes: Sequence[str] | None = None,
    findings: bool | None = None,
    subject: str | None = None,
) -> LabelTable:
    """Read a table of labels.

    Args:
        path: the table, or a folder with one for each class.
        images: the folder that paths and ids are of; by default the table's.
        site: whose rows are read, where the table has a column ``site``.
        classes: of the task; None takes those of the table.
        findings: whether the task takes findings, and not one label each; None goes by the table's columns.
        subject: whose an image in a folder of a class is, see `fedshift.data.class_folders.class_rows`.

    Raises:
        DataError: no such file, no column of files or of labels, or a column that is there twice; or as `class_rows`.
        ConfigError: as `class_rows`, or options that only tables or only folders have.
    """
    if path.is_dir():
        return _of_folders(path, images=images, classes=classes, findings=findings, subject=subject)
    if subject is not None:
        raise ConfigError("no-effect", "--subject has no effect with --table: write a column 'subject' in the table")
    header, lines = read_lines(path)
    return _Reader(path, images, header, classes, findings).table(lines, site)


def _of_folders(
    folder: Path,
    *,
    images: Path | None,
    classes: Sequence[str] | None,
    findings: bool | None,
    subject: str | None,
) -> LabelTable:
    if images not in (None, folder):
        raise ConfigError("no-effect", f"--images has no effect with the folders of classes in {folder}: leave it out")
    if findings:
        raise DataError(
            "layout-unknown",
            f"{folder} has folders, which say one class of each image, and the task takes several findings: write a "
            "table of labels (.csv)",
        )
    header, rows = class_rows(folder, classes=classes, subject=subject)
    reader = _Reader(folder, folder, header, classes, wants_findings=False)
    if subject is None:
        what = "has folders of classes, and nothing says whose the images are: each is taken for a person of its own"
        reader.fault("warning", "subject-missing", what, "say it with --subject, or in a table (.csv)")
    return reader.table([(0, cells) for cells in rows], site="")


@dataclass
class _Reader:
    path: Path
    images: Path | None
    header: Sequence[str]
    named_classes: Sequence[str] | None
    wants_findings: bool | None
    faults: list[Finding] = field(default_factory=list)
    uncertain: int = 0
    spelling: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.row_faults = RowFaults(self.path, self.faults)
        self.columns = [self._column(cell) for cell in self.header]
        twice = next((name for name, times in Counter(self.columns).items() if name and times > 1), None)
        if twice is not None:
            raise DataError("column-twice", f"{self.path} has the column {twice!r} twice: keep one of them")
        has = ", ".join(filter(None, self.header)) or "none"
        self.files = [name for name in self.columns if name == FILE or name.startswith(f"{FILE} ")]
        if not self.files and ID not in self.columns:
            what = f"{self.path} has no column {FILE!r} and none {ID!r}, it has {has}"
            raise DataError("column-missing", f"{what}: say in one of them which image a row is of")
        if self.wants_findings is None:
            self.wants_findings = LABEL not in self.columns
        if not self.wants_findings and LABEL not in self.columns:
            what = f"{self.path} has no column {LABEL!r}, it has {has}"
            raise DataError("column-missing", f"{what}: write there which class a row has")
        self.of_finding = self._finding_columns(has) if self.wants_findings else {}

    @property
    def base(self) -> Path:
        return self.images or self.path.parent

    def _column(self, cell: str) -> str:
        """A column's name as this module writes it; a finding as the task does."""
        name = "" if _INDEX.fullmatch(cell.strip()) else same_form(cell.strip())
        known = {_compared(each): each for each in self.named_classes or ()}
        if self.wants_findings is not False and _compared(name) in known:
            return known[_compared(name)]
        word, _, rest = name.partition(" ")
        if word.lower() == STRATUM:
            column = f"{STRATUM} {rest.strip()}"
            check_column(column, self.path)
            return column
        word = ALIASES.get(word.lower(), word.lower())
        if word == FILE and rest:
            return f"{FILE} {rest.strip()}"
        return word if not rest and word in (FILE, ID, LABEL, SUBJECT, SPLIT, SITE) else name

    def _finding_columns(self, has: str) -> dict[str, int]:
        """Finding -> the number of its column."""
        reserved = {ID, LABEL, SUBJECT, SPLIT, SITE, *self.files, ""}
        others = [name for name in self.columns if name not in reserved and not is_stratum(name)]
        named = [name for name in others if name in self.named_classes] if self.named_classes is not None else others
        if not named:
            what = f"{self.path} has no column of a finding{nearest('', self.named_classes or ())}; it has {has}"
            raise DataError("column-missing", f"{what}: write a column for each, with 1, 0 or nothing")
        lacking = [name for name in self.named_classes or () if name not in named]
        for name in set(others) - set(named):
            close = difflib.get_close_matches(_compared(name), map(_compared, lacking), n=1, cutoff=ALIKE)
            if close:
                meant = next(each for each in lacking if _compared(each) == close[0])
                what = f"has a column {name!r}, which is no class; did you mean {meant!r}?"
                self.fault("error", "column-unknown", what, "rename it")
        return {name: self.columns.index(name) for name in named}

    def table(self, lines: Sequence[tuple[int, list[str]]], site: str) -> LabelTable:
        rows: list[Labelled] = []
        unlabelled, sites = 0, set()
        first: dict[str, int] = {}
        by_files: dict[tuple[Path, ...], int] = {}
        for number, cells in lines:
            cell_of = dict(zip(self.columns, (cell.strip() for cell in cells), strict=False))
            if any(cell.strip() for cell in cells[len(self.columns) :]):
                what = f"line {number} has {len(cells)} cells, and there are {len(self.columns)} columns"
                remedy = "put cells that hold the separator into quotes, or give each column a name"
                self.row_faults.add(number, "table-cell", what, remedy, f"line {number}", kind=(str(len(cells)),))
                continue
            of_site = cell_of.get(SITE, "")
            sites.add(of_site)
            if site and of_site and as_compared(of_site) != as_compared(site):
                continue
            row = self._row(number, cell_of)
            if (same := by_files.setdefault(row.files, number)) != number and as_compared(row.id) not in first:
                what = f"line {number}: {row.id} is the same file as in line {same}"
                self.row_faults.add(
                    number, "case-twice", what, "remove one of the two", row.id, kind=("file",), cell=row.id
                )
            if (other := first.setdefault(as_compared(row.id), number)) != number:
                what = f"line {number}: {row.id} is in line {other} too"
                self.row_faults.add(number, "case-twice", what, "remove one of the two", row.id, cell=row.id)
            if row.label or row.findings:
                rows.append(row)
            elif self.wants_findings:
                unlabelled += 1
        if not rows and not self.faults:
            if site and sites - {""} and as_compared(site) not in map(as_compared, sites):
                raise DataError("site-unknown", f"{self.path} has no site {site!r}{nearest(site, sites - {''})}")
            raise DataError("table-empty", f"{self.path} has no row with a label below its columns: write them there")
        if unlabelled:
            what = f"has {unlabelled} row(s) of which no finding is known"
            self.fault("warning", "label-missing", what, "they are left out")
        classes = tuple(self.named_classes or (self.of_finding or sorted({row.label for row in rows})))
        without = tuple(name for name in classes if self.wants_findings and name not in self.of_finding)
        if without:
            what = f"has no column {few_names(without)}"
            self.fault("warning", "finding-unknown", what, "it is unknown of all pictures of this site")
        if SITE in self.columns and "" in sites and sites - {""}:
            self.fault("error", "cell-missing", f"has rows without a {SITE}, beside others with one", "write it there")
        self._one_split_each(rows)
        refuse_many(self.path, [row.strata for row in rows])
        self._spelled_alike(rows)
        self.faults += self._without_row(rows)
        self.row_faults.name_rows()
        sequences = tuple(name.partition(" ")[2] for name in self.files) if len(self.files) > 1 else ()
        return LabelTable(
            self.path,
            tuple(rows),
            classes,
            sequences,
            bool(self.wants_findings),
            without,
            self.uncertain,
            unlabelled,
            tuple(self.faults),
        )

    def _row(self, line: int, cell_of: Mapping[str, str]) -> Labelled:
        files = tuple(self._file(line, cell_of, column) for column in self.files) or (self._by_id(line, cell_of),)
        named = cell_of.get(ID) or cell_of.get(self.files[0] if self.files else ID, "")
        case = same_form(named.replace(os.sep, "/"))
        split, subject = cell_of.get(SPLIT, "").lower(), cell_of.get(SUBJECT, "")
        if split and split not in SPLITS:
            what = f"line {line}, column {SPLIT}: {split!r} is no split"
            mend = "write train, val or test, or leave it empty"
            self.row_faults.add(line, "table-cell", what, mend, case, column=SPLIT, cell=split)
        strata, faults = strata_of(cell_of)
        for column, what in faults:
            kind, what = self.row_faults.of_cell(column, what), f"line {line}, column {column}: {what}"
            self.row_faults.add(line, "table-cell", what, REMEDY, case, kind=kind)
        return Labelled(
            case,
            files,
            line,
            label="" if self.wants_findings else self._label(line, cell_of.get(LABEL, ""), case),
            findings=dict(self._known(line, cell_of, case)) if self.wants_findings else {},
            subject="" if subject.lower() in MISSING else subject,
            split=next((known for known in SPLITS if known == split), None),
            strata=strata,
        )

    def _label(self, line: int, text: str, case: str) -> str:
        if self.named_classes is None or not text:
            if not text or text.lower() in MISSING:
                fault = f"{text!r} says that there is none" if text else "the cell is empty"
                what = (
                    f"line {line}, column {LABEL}: {fault}" if line else f"has a folder {text!r}, which names no class"
                )
                mend = f"write the class, or remove the {'row' if line else 'folder'}"
                self.row_faults.add(line, "cell-missing", what, mend, case, column=LABEL, cell=text)
            return self.spelling.setdefault(_compared(text), text)
        known = {_compared(name): name for name in self.named_classes}
        if _compared(text) not in known:
            what = f"line {line}, column {LABEL}: {text!r} is no class{nearest(text, self.named_classes)}"
            self.row_faults.add(line, "table-cell", what, "correct it", case, column=LABEL, cell=text)
        return known.get(_compared(text), "")

    def _known(self, line: int, cell_of: Mapping[str, str], case: str) -> Iterator[tuple[str, bool]]:
        for name in self.of_finding:
            text = cell_of.get(name, "").lower()
            if text not in VALUES:
                what = f"line {line}, column {name}: {cell_of[name]!r} says nothing of a finding"
                mend = "write 1, 0, or nothing or -1 where it is unknown"
                self.row_faults.add(line, "table-cell", what, mend, case, column=name, cell=text)
                continue
            self.uncertain += text in UNCERTAIN
            value = VALUES[text]
            if value is not None:
                yield name, value

    def _file(self, line: int, cell_of: Mapping[str, str], column: str) -> Path:
        named = path_of(cell_of.get(column, ""))
        file = Path(os.path.normpath(self.base / named))
        if not cell_of.get(column):
            what = f"line {line}, column {column}: the cell is empty"
            self.row_faults.add(line, "cell-missing", what, "name the file, or remove the row", kind=(column,))
        elif not (file.exists() or is_broken_link(file) or is_series(file)):
            what = f"line {line}, column {column}: {named} is not in {self.base}"
            alike = self._files_of.get(as_compared(stem(file)), [])
            mend = f"write {alike[0]}" if len(alike) == 1 else "correct the path"
            kind, mend = (column, "" if alike else "path"), f"{mend}, or remove the row"
            self.row_faults.add(line, "file-missing", what, mend, str(named), kind=kind, cell=str(named))
        return file

    def _by_id(self, line: int, cell_of: Mapping[str, str]) -> Path:
        case = same_form(cell_of.get(ID, ""))
        files = self._files_of.get(as_compared(case), [])
        if not case:
            what = f"line {line}, column {ID}: the cell is empty"
            self.row_faults.add(line, "cell-missing", what, "remove the row", kind=(ID,))
        elif len(files) != 1:
            what = f"is the name of {len(files)} files" if files else "is the name of no image"
            remedy = f"name files in a column {FILE!r}" if files else "correct it, or remove the row"
            what = f"line {line}: {case} {what} in {self.base}"
            kind = (ID, "several" if files else "none")
            self.row_faults.add(line, "file-missing", what, remedy, case, kind=kind, cell=case)
        return files[0] if files else self.base / case

    @cached_property
    def _files_of(self) -> dict[str, list[Path]]:
        files: dict[str, list[Path]] = {}
        for file in images_in(self.base):
            files.setdefault(as_compared(stem(file)), []).append(file)
        return files

    def _one_split_each(self, rows: Sequence[Labelled]) -> None:
        first: dict[str, Labelled] = {}
        for row in rows:
            if row.subject and row.split is not None:
                other = first.setdefault(row.subject, row)
                if other.split != row.split:
                    what = f"{row.beginning}{row.subject} is in {row.split}, and in {other.split}{other.place}"
                    mend = "keep all of a person in one split"
                    self.row_faults.add(row.line, "subject-divided", what, mend, row.id, cell=row.subject)

    def _spelled_alike(self, rows: Sequence[Labelled]) -> None:
        """Warn of subjects and images that may be of one person, and of rows without one beside others."""
        without = [row for row in rows if not row.subject]
        ids = [str(Path(row.id).with_name(stem(Path(row.id)))) for row in without if row.id]
        self.faults += sides_of(ids, self.path, f"write whose they are in a column {SUBJECT!r}")
        if without and len(without) < len(rows):
            what = f"has {len(without)} row(s) without a {SUBJECT}, as line {without[0].line}, beside others with one"
            self.fault("warning", "subject-missing", what, "each is taken for a person of its own: write whose it is")
        spelled: dict[str, dict[str, None]] = {}
        for row in rows:
            if row.subject:
                known = _WRITTEN.sub("", as_compared(row.subject)) or row.subject
                spelled.setdefault(known, {})[row.subject] = None
        alike = [list(rows_alike) for rows_alike in spelled.values() if len(rows_alike) > 1]
        if alike:
            what = f"has {len(alike)} subject(s) in several spellings, as {few_names(alike[0])}, taken for other people"
            self.fault("warning", "subject-spelling", what, "write each in one way, if it is one person")

    def _without_row(self, rows: Sequence[Labelled]) -> Iterator[Finding]:
        """Warn of images in the folder that was named, of which the table says nothing."""
        if self.images is None or any(fault.level == "error" for fault in self.faults):
            return
        named = {file for row in rows for file in row.files}
        named |= {folder_and_uid(file)[0] for file in named}
        others = [file for file in images_in(self.images) if file not in named and not named & {*file.parents}]
        if others:
            shown = few_names([str(file.relative_to(self.images)) for file in others])
            what = f"has no row with a label of {len(others)} image(s) in {self.images}: {shown}"
            yield Finding("warning", "image-unlabelled", self.path, what, "they are not used")

    def fault(self, level: str, code: str, what: str, remedy: str, case: str = "") -> None:
        self.faults.append(Finding("error" if level == "error" else "warning", code, self.path, what, remedy, case))


def _compared(name: str) -> str:
    return as_compared(name).replace("_", " ")
