"""Errors of the rows of a table: what many rows share is one error, which names the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedshift.data.scan_file import Finding
from fedshift.schema.names import also_in

MOST_CELLS = 12
"""Different cells of a column that have an error each; those beyond share one."""


@dataclass
class _Repeated:
    """An error of several rows: its ``number`` among the faults, the cell of the first row, and the other rows."""

    number: int
    cell: str
    rows: list[str] = field(default_factory=list)


@dataclass
class RowFaults:
    """Adds errors of rows to ``faults``, those of the table ``path``."""

    path: Path
    faults: list[Finding]
    _repeated: dict[tuple[str, ...], _Repeated] = field(default_factory=dict)
    _cells: dict[str, set[str]] = field(default_factory=dict)
    """Column -> its cells that have an error each."""

    def of_cell(self, column: str, cell: str) -> tuple[str, ...]:
        """What errors of a column have in common: the cell, or, beyond `MOST_CELLS` different ones, the column only."""
        cells = self._cells.setdefault(column, set())
        if len(cells) < MOST_CELLS:
            cells.add(cell)
        return (column, cell) if cell in cells else (column,)

    def add(
        self,
        line: int,
        code: str,
        what: str,
        remedy: str,
        case: str = "",
        *,
        kind: Sequence[str] = (),
        column: str = "",
        cell: str = "",
    ) -> None:
        """Add the error of a row, once for all rows of one ``code`` and ``kind``.

        ``column``: in place of ``kind`` that of its cell, `of_cell`. ``cell``: shown where it differs.
        """
        kind = self.of_cell(column, cell) if column else kind
        first = self._repeated.get((code, *kind))
        if first is None:
            self._repeated[code, *kind] = _Repeated(len(self.faults), cell)
            self.faults.append(Finding("error", code, self.path, what, remedy, case))
            return
        row = f"line {line}" if line else case
        first.rows.append(row if cell in ("", first.cell, row) else f"{row} ({cell})")

    def name_rows(self) -> None:
        """Say in each error of several rows which others have it."""
        for error in self._repeated.values():
            fault = self.faults[error.number]
            self.faults[error.number] = replace(fault, message=f"{fault.message}{also_in('row(s)', error.rows)}")
