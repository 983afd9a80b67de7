"""What a report is made of: sections of sentences, tables, figures, commands. Modules fill them, templates draw them.

Nothing here is HTML: whatever text comes out of a file is escaped where it is drawn. Only `Figure.svg` is markup, and
`fedshift.reporting.report.figures` is what makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from markupsafe import Markup

LONG = 30
"""Rows."""

Tone = Literal["result", "good", "caution", "note"]


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    ``detail`` stands below the text in small print, such as an interval. ``shade`` from 0 to 1 colours the cell.
    """

    text: str
    detail: str = ""
    strong: bool = False
    shade: float | None = None


@dataclass(frozen=True)
class Column:
    """A heading; ``numeric`` columns are set to the right, in figures of equal width."""

    text: str
    numeric: bool = True
    detail: str = ""


Row = Sequence[Cell | str]


@dataclass(frozen=True)
class Table:
    """Rows below their headings. The first cell of a row names it; ``foot`` holds rows that sum up."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    foot: Sequence[Row] = ()
    caption: str = ""

    kind = "table"

    @property
    def body(self) -> list[list[tuple[Column, Cell]]]:
        """The rows, every cell with its column."""
        return self._with_columns(self.rows)

    @property
    def sums(self) -> list[list[tuple[Column, Cell]]]:
        """Those of the foot."""
        return self._with_columns(self.foot)

    @property
    def long(self) -> bool:
        """Whether it is better scrolled than shown whole."""
        return len(self.rows) > LONG

    def _with_columns(self, rows: Sequence[Row]) -> list[list[tuple[Column, Cell]]]:
        cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
        return [list(zip(self.columns, row, strict=True)) for row in cells]


@dataclass(frozen=True)
class LegendEntry:
    """A name, and how it is drawn: ``mark`` is a small drawing."""

    text: str
    mark: Markup


@dataclass(frozen=True)
class Tables:
    """Small tables side by side."""

    tables: Sequence[Table]

    kind = "tables"


@dataclass(frozen=True)
class Figure:
    """A drawing. ``description`` says in words what it shows, for those who do not see it."""

    title: str
    svg: Markup
    description: str
    legend: Sequence[LegendEntry] = ()


@dataclass(frozen=True)
class Figures:
    """Drawings side by side, as many of their size as there is room for, which share a legend."""

    figures: Sequence[Figure]
    legend: Sequence[LegendEntry] = ()
    size: Literal["half", "third", "small"] = "half"

    kind = "figures"


@dataclass(frozen=True)
class Finding:
    """One plain sentence of the summary."""

    tone: Tone
    text: str


@dataclass(frozen=True)
class Findings:
    """What there is to know before anything else."""

    findings: Sequence[Finding]

    kind = "findings"


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    facts: Sequence[tuple[str, str]]

    kind = "facts"


@dataclass(frozen=True)
class Commands:
    """Lines for a terminal."""

    lines: Sequence[str]

    kind = "commands"


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str

    kind = "text"


@dataclass(frozen=True)
class Heading:
    """Of a part of a section."""

    text: str

    kind = "heading"


Block = Table | Tables | Figures | Findings | Facts | Commands | Text | Heading


@dataclass(frozen=True)
class Section:
    """A part of the report; ``how`` is one sentence on how to read it."""

    id: str
    title: str
    how: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Chapter:
    """All that is said of one run, or of several together."""

    id: str
    title: str
    sections: Sequence[Section]
    about: str = ""
    phantom: bool = False
    images: bool = False
    notices: Sequence[str] = field(default=())
