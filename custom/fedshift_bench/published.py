"""Values published in a paper, shown next to ours: CSV files with ``row,column,value,std,unit,note``."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from pydantic import field_validator

from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import Strict, nearest
from fedshift_bench.spec import Published

FOLDER = "published"
COLUMNS = ("row", "column", "value", "std", "unit", "note")


class PublishedValue(Strict):
    """A published value as printed in the paper, with our labels of its row and column."""

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
            raise ValueError("is not a number")
        return text

    @property
    def text(self) -> str:
        """The value with its standard deviation, if it has one."""
        return f"{self.value} ± {self.std}" if self.std else self.value


def read_published(
    published: Published, *, folder: Path, rows: Sequence[str], columns: Sequence[str]
) -> list[PublishedValue]:
    """Read the published values of our rows and columns (their keys); ``folder`` is the spec's.

    Raises:
        ConfigError: the file or a label does not exist, or a line is invalid.
    """
    paths = [path for path in (folder.parent / FOLDER / published.file, folder / published.file) if path.is_file()]
    if not paths:
        where = f"{folder.parent / FOLDER} or {folder}"
        raise ConfigError("published-missing", f"published: there is no {published.file} in {where}")
    printed = _read(paths[0])
    for what, labels, theirs in (
        ("rows", published.rows, {row for row, _ in printed}),
        ("columns", published.columns, {column for _, column in printed}),
    ):
        for label in labels.values():
            if label not in theirs:
                known = nearest(label, theirs)
                raise ConfigError("unknown-label", f"published.{what}: {paths[0]} has no {label!r}{known}")
    return [
        value.model_copy(update={"row": row, "column": column})
        for row in rows
        for column in columns
        if (value := printed.get((published.rows.get(row, row), published.columns.get(column, column)))) is not None
    ]


def _read(path: Path) -> dict[tuple[str, str], PublishedValue]:
    values: dict[tuple[str, str], PublishedValue] = {}
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        try:
            if tuple(next(lines, [])) != COLUMNS:
                raise ConfigError("published-line", f"{path}: the first line must be {','.join(COLUMNS)}")
            for line in lines:
                where = f"{path}, line {lines.line_num}"
                if len(line) != len(COLUMNS):
                    what = f"has {len(line)} columns, but {len(COLUMNS)} are needed"
                    raise ConfigError("published-line", f"{where}: {what}")
                value = PublishedValue.parse(dict(zip(COLUMNS, line, strict=True)), where=where)
                if (value.row, value.column) in values:
                    raise ConfigError("published-line", f"{where}: {value.row}, {value.column} appears twice")
                values[value.row, value.column] = value
        except (UnicodeDecodeError, csv.Error) as error:
            raise ConfigError("published-line", f"{path} is not a CSV file in UTF-8 ({error})") from None
    return values
