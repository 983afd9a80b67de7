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
from fedshift_bench.columns import Measure, measure
from fedshift_bench.notes import claims_sentence, footnotes, notes
from fedshift_bench.record import FILE_NAME, Comparison, read_comparison

MAX_COMMANDS = 40
"""Number of cells whose commands are shown."""


def recognises(path: Path) -> bool:
    """Whether this is a comparison's folder, or its record."""
    return path.name == FILE_NAME or (path / FILE_NAME).is_file()


def read_chapter(path: Path) -> Chapter:
    """The chapter of a comparison's folder or record."""
    comparison = read_comparison(path)
    return Chapter(
        "grid",
        tables.title_with_scale(comparison.title, comparison.scale),
        [_summary(comparison), _tables(comparison), _repeat(comparison)],
        f"{len(comparison.cells)} cells of a comparison",
        phantom=comparison.is_phantom,
    )


def _summary(comparison: Comparison) -> Section:
    claims = claims_sentence(comparison)
    n_done = f"{len(comparison.finished)} of {len(comparison.cells)} cells are done."
    failed = [cell for cell in comparison.cells if cell.state == "failed"]
    findings = [Finding("result", Text(claims))] if claims else []
    findings += [Finding("result", Text(f"{' '.join(comparison.what.split())} {n_done}"))]
    findings += [Finding("caution", Text(note)) for note in notes(comparison)]
    findings += [Finding("caution", Text(f"{cell.name} failed: {cell.reason}.")) for cell in failed]
    how = "Read this first; the tables below contain the numbers."
    return Section("summary", "Summary", how, [Findings(findings)])


def _tables(comparison: Comparison) -> Section:
    shown = measure(comparison.metric)
    blocks: list[Block] = []
    for table in tables.make_tables(comparison):
        columns = [Column(comparison.row_axis, numeric=False), *map(Column, table.columns.values())]
        rows: list[Row] = [[name, *(_cell(entry, shown) for entry in entries)] for name, entries in table.rows.items()]
        blocks.append(Table(columns, rows, caption=table.title))
    above = notes(comparison)
    blocks += [Text(line) for line in footnotes(comparison) if line not in above]
    how = "The best value of a column is bold; this does not mean that the difference is significant."
    return Section("tables", "Tables", f"{tables.heading(comparison)}. {how}", blocks)


def _cell(entry: tables.Entry, shown: Measure) -> Cell:
    published = f"[{entry.published}]" if entry.published else ""
    return Cell(tables.entry_text(entry, shown), published, strong=entry.best)


def _repeat(comparison: Comparison) -> Section:
    blocks: list[Block] = []
    for cell in comparison.cells[:MAX_COMMANDS]:
        blocks += [Heading(cell.name), Commands(cell.commands)]
    if len(comparison.cells) > MAX_COMMANDS:
        more_cells = counted(len(comparison.cells) - MAX_COMMANDS, "more cell")
        blocks.append(Text(f"The commands of {more_cells} are in cells.json."))
    how = "Commands for single cells; 'fedshift compare' runs all of them."
    return Section("again", "How to repeat a cell", how, blocks)
