"""``fedshift data check --explain``: how a file is read, as a table."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape
from rich.table import Table

from fedshift.cli.display import console
from fedshift.data.explain import Explained, explain
from fedshift.schema.names import one_line, printable


def run(path: Path, mask: Path | None) -> int:
    """Print how each file is read; the exit code is 1 if one cannot be."""
    failed = False
    for one in explain(path, mask):
        console.print(_table(one), markup=False)
        for finding in one.findings:
            failed = failed or finding.level == "error"
            colour = "red" if finding.level == "error" else "yellow"
            console.print(f"[{colour}]{finding.level}[/{colour}] {escape(finding.sentence())}")
    return int(failed)


def _table(one: Explained) -> Table:
    table = Table(title=escape(printable(str(one.path))), title_justify="left", show_header=False)
    said = {} if one.reading is None else one.reading.model_dump()
    remarks = said.pop("remarks", ())
    for name, value in {**said, **one.outcome}.items():
        table.add_row(name.replace("_", " "), escape(one_line(value)))
    for remark in remarks:
        table.add_row("remark", escape(one_line(remark)))
    if one.reading is None:
        table.add_row("not read", "see below")
    return table
