"""Columns ``stratum NAME`` of a site's tables: what cases are grouped by when scores are told of groups.

They are kept with the cases in the manifest, which stays at the site (`fedshift.schema.validation`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedshift.schema.errors import DataError
from fedshift.schema.names import Name, Stratum
from fedshift.schema.strict import first_fault
from fedshift.schema.validation import MOST_COLUMNS, MOST_VALUES

STRATUM = "stratum"
"""A column's name begins with it."""
REMEDY = "shorten it, or leave it empty"
"""For a value that cannot be one."""
_VALUE: TypeAdapter[str] = TypeAdapter(Stratum)
_NAME: TypeAdapter[str] = TypeAdapter(Name)


def is_stratum(column: str) -> bool:
    return column.partition(" ")[0] == STRATUM


def check_column(column: str, path: Path) -> None:
    """Refuse a column of a stratum whose name cannot be one (`DataError`)."""
    try:
        _NAME.validate_python(column.partition(" ")[2])
    except ValidationError:
        what = f"{path} has a column {column!r}: name what it is of in letters, digits and _ . -"
        raise DataError("column-unknown", f"{what}, as in 'stratum vendor'") from None


def strata_of(cells: Mapping[str, str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """What a row says by the name of each such column that is not empty; and columns with what is wrong there."""
    strata: dict[str, str] = {}
    faults: list[tuple[str, str]] = []
    for column, value in cells.items():
        if is_stratum(column) and value:
            try:
                strata[column.partition(" ")[2]] = _VALUE.validate_python(value)
            except ValidationError as error:
                faults.append((column, first_fault(error)))
    return strata, faults


def refuse_many(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Refuse columns that make too many groups, such as ages in years (`DataError`)."""
    values: dict[str, set[str]] = {}
    for row in rows:
        for column, value in row.items():
            values.setdefault(column, set()).add(value)
    if len(values) > MOST_COLUMNS:
        raise DataError(
            "too-many-strata",
            f"{path} has {len(values)} columns of strata, {MOST_COLUMNS} are the most: leave some out",
        )
    for column, cells in values.items():
        if len(cells) > MOST_VALUES:
            raise DataError(
                "too-many-strata",
                f"{path}: column '{STRATUM} {column}' has {len(cells)} different values, {MOST_VALUES} are the most: "
                "write ranges, such as 60-69",
            )
