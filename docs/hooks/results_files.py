"""Committed results, and tables of them in Markdown."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
NONE = "–"


def load(name: str) -> Any:
    """The content of a JSON file below ``benchmarks/results``."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def link(name: str, words: str = "figures and command") -> str:
    """A link to a results file from a page."""
    return f"[{words}](../benchmarks/results/{name})"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, words: int = 1) -> str:
    """A table; the first ``words`` columns are text, the others are numbers."""
    lines = [line(head), "|" + "---|" * words + "---:|" * (len(head) - words)]
    return "\n".join([*lines, *map(line, rows)])


def line(cells: Sequence[object]) -> str:
    """A row of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def spread(values: Mapping[str, float] | None, digits: int, times: float = 1) -> str:
    """A median with the smallest and the largest in brackets."""
    if values is None:
        return ""
    middle, low, high = (f"{times * values[key]:.{digits}f}" for key in ("median", "low", "high"))
    return f"{middle} ({low}-{high})"


def percent(share: float, digits: int = 1) -> str:
    """A share in percent."""
    return f"{100 * share:.{digits}f} %"


def compared(folder: str, key: str = "value") -> dict[tuple[str, str], float]:
    """A comparison's figures by (row, column)."""
    with (RESULTS / folder / "table.csv").open(encoding="utf-8", newline="") as file:
        return {(row["method"], row["column"]): float(row[key]) for row in csv.DictReader(file) if row[key]}


def copied(path: str, begins: str = "|", at: int = 0) -> str:
    """The ``at``-th table of a Markdown file below ``benchmarks/results``, from its first line that begins so."""
    blocks: list[list[str]] = [[]]
    for row in (RESULTS / path).read_text(encoding="utf-8").splitlines():
        if row.startswith("|"):
            blocks[-1].append(row)
        elif blocks[-1]:
            blocks.append([])
    tables = [block for block in blocks if block and block[0].startswith(begins)]
    return "\n".join(tables[at])
