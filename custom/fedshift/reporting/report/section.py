"""The content of a report: sections with text, tables, figures and commands, which the templates render.

No text here is HTML: the templates escape it. Only `Figure.svg` is markup, made by `fedshift.reporting.figures`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedshift.reporting.figures import Figure, LegendEntry
from fedshift.reporting.report.wording import say

MAX_ROWS_SHOWN = 30
"""A table with more rows is scrolled instead of shown in full."""

Tone = Literal["result", "good", "caution", "note"]


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    ``detail`` is shown below the text in small print, such as an interval. ``shade`` (0 to 1) is the colour intensity.
    """

    text: str
    detail: str = ""
    strong: bool = False
    shade: float | None = None


@dataclass(frozen=True)
class Column:
    """A column's heading; ``numeric`` columns are right-aligned with digits of equal width."""

    text: str
    numeric: bool = True
    detail: str = ""


Row = Sequence[Cell | str]


@dataclass(frozen=True)
class Table:
    """A table. The first cell of a row is its name; ``foot`` has the summary rows."""

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
        """The summary rows, every cell with its column."""
        return self._with_columns(self.foot)

    @property
    def long(self) -> bool:
        """Whether the table is scrolled instead of shown in full."""
        return len(self.rows) > MAX_ROWS_SHOWN

    def _with_columns(self, rows: Sequence[Row]) -> list[list[tuple[Column, Cell]]]:
        cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
        return [list(zip(self.columns, row, strict=True)) for row in cells]


@dataclass(frozen=True)
class Tables:
    """Small tables, shown side by side."""

    tables: Sequence[Table]

    kind = "tables"


@dataclass(frozen=True)
class Figures:
    """Drawings with a shared legend, as many side by side as fit."""

    figures: Sequence[Figure]
    legend: Sequence[LegendEntry] = ()
    size: Literal["half", "third", "small"] = "half"

    kind = "figures"


@dataclass(frozen=True)
class Text:
    """A paragraph: plain, or the one that ``sentences.j2`` calls ``key`` with these facts."""

    plain: str = ""
    key: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    kind = "text"

    @property
    def text(self) -> str:
        return say(self.key, **self.facts) if self.key else self.plain


def paragraph(key: str, **facts: Any) -> Text:
    """A paragraph of ``sentences.j2``."""
    return Text(key=key, facts=facts)


@dataclass(frozen=True)
class Finding:
    """A sentence of the summary."""

    tone: Tone
    sentence: Text


def finding(tone: Tone, key: str, **facts: Any) -> Finding:
    """A sentence of ``sentences.j2``."""
    return Finding(tone, paragraph(key, **facts))


@dataclass(frozen=True)
class Findings:
    """The sentences of the summary."""

    findings: Sequence[Finding]

    kind = "findings"


@dataclass(frozen=True)
class Facts:
    """Names with their values."""

    facts: Sequence[tuple[str, str]]

    kind = "facts"


@dataclass(frozen=True)
class Commands:
    """Command lines."""

    lines: Sequence[str]

    kind = "commands"


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str

    kind = "heading"


Block = Table | Tables | Figures | Findings | Facts | Commands | Text | Heading


@dataclass(frozen=True)
class Section:
    """A section of a chapter; ``how`` explains how to read it."""

    id: str
    title: str
    how: str | Text
    blocks: Sequence[Block]

    @property
    def guide(self) -> Text:
        """``how`` as a paragraph."""
        return self.how if isinstance(self.how, Text) else Text(self.how)


@dataclass(frozen=True)
class Chapter:
    """All sections on one run, or on several runs together; ``of_site``: a site's page of the run before it."""

    id: str
    title: str
    sections: Sequence[Section]
    about: str = ""
    phantom: bool = False
    images: bool = False
    notices: Sequence[str] = field(default=())
    of_site: bool = False
