"""A paper's figures, to stand beside ours: ``row,column,value,std,unit,note``."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from pydantic import field_validator

from fedshift.reporting.comparison.spec import Published
from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import Strict, nearest

FOLDER = "published"
COLUMNS = ("row", "column", "value", "std", "unit", "note")


class Figure(Strict):
    """A figure as it is printed, under our row and column."""

    row: str
    column: str
    value: str
    std: str = ""
    unit: str = ""
    note: str = ""

    @field_validator("value", "std")
    @classmethod
    def _number(cls, text: str) -> str:
        if text and not math.isfinite(float(text)):
            raise ValueError("is no number")
        return text

    @property
    def text(self) -> str:
        """With its deviation, if it has one."""
        return f"{self.value} ± {self.std}" if self.std else self.value


def read_figures(published: Published, *, folder: Path, rows: Sequence[str], columns: Sequence[str]) -> list[Figure]:
    """The figures that stand beside our rows and columns.

    Args:
        published: the file, and its labels for ours; the same label where nothing is said.
        folder: the spec's.
        rows: our rows.
        columns: keys of our columns.

    Raises:
        ConfigError: no such file or label, or a line that does not fit.
    """
    found = [path for path in (folder.parent / FOLDER / published.file, folder / published.file) if path.is_file()]
    if not found:
        raise ConfigError(f"published: there is no {published.file} in {folder.parent / FOLDER} or {folder}")
    printed = _read(found[0])
    for what, labels, theirs in (
        ("rows", published.rows, {row for row, _ in printed}),
        ("columns", published.columns, {column for _, column in printed}),
    ):
        for label in labels.values():
            if label not in theirs:
                raise ConfigError(f"published.{what}: {found[0]} has no {label!r}{nearest(label, theirs)}")
    return [
        figure.model_copy(update={"row": row, "column": column})
        for row in rows
        for column in columns
        if (figure := printed.get((published.rows.get(row, row), published.columns.get(column, column)))) is not None
    ]


def _read(path: Path) -> dict[tuple[str, str], Figure]:
    figures: dict[tuple[str, str], Figure] = {}
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        try:
            header = next(lines, [])
            if tuple(header) != COLUMNS:
                raise ConfigError(f"{path}: the first line must be {','.join(COLUMNS)}")
            for line in lines:
                where = f"{path}, line {lines.line_num}"
                if len(line) != len(COLUMNS):
                    raise ConfigError(f"{where}: {len(line)} columns in place of {len(COLUMNS)}")
                figure = Figure.parse(dict(zip(COLUMNS, line, strict=True)), where=where)
                if (figure.row, figure.column) in figures:
                    raise ConfigError(f"{where}: {figure.row}, {figure.column} is there twice")
                figures[figure.row, figure.column] = figure
        except (UnicodeDecodeError, csv.Error) as error:
            raise ConfigError(f"{path} is no CSV file in UTF-8 ({error})") from None
    return figures
