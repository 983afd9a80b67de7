"""``fedshift data check --explain``: how a file is read, as a table."""

from __future__ import annotations

import argparse

from rich.markup import escape
from rich.table import Table

from fedshift.cli.display import console
from fedshift.cli.prepared import print_findings
from fedshift.data.explain import Explained, How, explain
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import one_line, printable


def run(args: argparse.Namespace) -> int:
    """Print how each file is read; the exit code is 1 if one cannot be.

    Raises:
        ConfigError: options that say what the values of masks mean, which is not asked here.
    """
    for option in ("task", "label", "sequence", "annotated"):
        if getattr(args, option):
            raise ConfigError(
                "options-clash", f"--explain shows a file as it is, whatever the task: leave out --{option}"
            )
    how = How(args.volume, trust_voxels=args.trust_voxels, interpolate=args.interpolate, may_be_empty=args.empty)
    failed = False
    for result in explain(args.dir, args.masks, how):
        console.print(_table(result), markup=False)
        print_findings(result.findings)
        failed = failed or any(finding.level == "error" for finding in result.findings)
    return int(failed)


def _table(result: Explained) -> Table:
    table = Table(title=escape(printable(str(result.path))), title_justify="left", show_header=False)
    record = {} if result.reading is None else result.reading.model_dump()
    remarks = record.pop("remarks", ())
    for name, value in {**record, **result.outcome}.items():
        table.add_row(name.replace("_", " "), escape(one_line(value)))
    for remark in remarks:
        table.add_row("remark", escape(one_line(remark)))
    if result.reading is None:
        table.add_row("not read", "see below")
    return table
