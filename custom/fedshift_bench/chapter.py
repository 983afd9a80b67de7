"""A comparison as a chapter of ``fedshift report``: its tables, and the commands that repeat its cells."""

from __future__ import annotations

from pathlib import Path

from fedshift.reporting.report.section import (
    Block,
    Cell,
    Chapter,
    Column,
    Commands,
    Finding,
    Findings,
    Heading,
    Row,
    Section,
    Table,
    Text,
)
from fedshift.reporting.report.wording import counted
from fedshift_bench import tables
from fedshift_bench.footnotes import footnotes
from fedshift_bench.measures import measure
from fedshift_bench.record import FILE_NAME, Comparison, read_comparison
from fedshift_bench.verdict import verdict

MAX_COMMANDS = 40
"""Number of cells whose commands are shown."""


def recognises(path: Path) -> bool:
    """Whether this is a comparison's folder, or its record."""
    return path.name == FILE_NAME or (path / FILE_NAME).is_file()


def read_chapter(path: Path) -> Chapter:
    """The chapter of a comparison's folder or record.

    Raises:
        ConfigError: it cannot be read.
    """
    return make_chapter(read_comparison(path))


def make_chapter(comparison: Comparison) -> Chapter:
    """The chapter of a comparison."""
    return Chapter(
        "grid",
        tables.title_with_scale(comparison.title, comparison.scale),
        sections(comparison),
        f"{len(comparison.cells)} cells of a comparison",
        phantom=any(record.kind == "phantom" for cell in comparison.cells for record in cell.data.values()),
    )


def sections(comparison: Comparison) -> list[Section]:
    """The summary, the tables, and the commands that repeat the cells."""
    done = sum(cell.state == "done" for cell in comparison.cells)
    told = verdict(comparison)
    findings = [Finding("result", told)] if told else []
    findings += [
        Finding("result", f"{' '.join(comparison.what.split())} {done} of {len(comparison.cells)} cells are done.")
    ]
    findings += [Finding("caution", note) for note in comparison.notes]
    findings += [
        Finding("caution", f"{cell.name} failed: {cell.reason}.") for cell in comparison.cells if cell.state == "failed"
    ]
    return [
        Section("summary", "Summary", "Read this first; the tables below contain the numbers.", [Findings(findings)]),
        _tables(comparison),
        _repeat(comparison),
    ]


def _tables(comparison: Comparison) -> Section:
    of = measure(comparison.metric)
    blocks: list[Block] = []
    for table in tables.make_tables(comparison):
        columns = [Column(next(iter(comparison.axes)), numeric=False), *(Column(one.heading) for one in table.columns)]
        rows: list[Row] = [
            [name, *(Cell(tables.entry_text(entry, of), _printed(entry), strong=entry.best) for entry in entries)]
            for name, entries in table.rows.items()
        ]
        blocks.append(Table(columns, rows, caption=table.title))
    blocks += [Text(line) for line in footnotes(comparison) if line not in comparison.notes]
    return Section(
        "tables",
        "Tables",
        f"{tables.heading(comparison)}. The best value of a column is bold; this does not mean that the difference is "
        "significant.",
        blocks,
    )


def _printed(entry: tables.Entry) -> str:
    return f"[{entry.published}]" if entry.published else ""


def _repeat(comparison: Comparison) -> Section:
    blocks: list[Block] = []
    for cell in comparison.cells[:MAX_COMMANDS]:
        blocks += [Heading(cell.name), Commands(cell.commands)]
    if len(comparison.cells) > MAX_COMMANDS:
        left = counted(len(comparison.cells) - MAX_COMMANDS, "more cell")
        blocks.append(Text(f"The commands of {left} are in cells.json."))
    return Section(
        "again", "How to repeat a cell", "Commands for single cells; 'fedshift compare' runs all of them.", blocks
    )
