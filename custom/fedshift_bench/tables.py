"""A comparison's tables: mean and sample standard deviation over seeds, best in bold, published values in brackets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

from rich.table import Table as RichTable
from rich.text import Text

from fedshift.reporting.known_scores import GUESS
from fedshift.reporting.table import title_of
from fedshift.schema.files import csv_text
from fedshift_bench.columns import (
    MAX_SITES,
    SUMMARY_HEADINGS,
    Block,
    Measure,
    below_guess,
    blocks,
    guess_cell,
    measure,
    p_value,
    site_scores,
    summary,
)
from fedshift_bench.notes import claims_sentence, footnotes
from fedshift_bench.record import CellRecord, Comparison
from fedshift_bench.significance import Paired, paired_tests, printed_p
from fedshift_bench.spec import FULL
from fedshift_bench.templates import render, write_files

LAST_ROUND = "average, last round"
"""A column beside the average of the best round: what selecting a round adds, or takes."""
MODELS = {
    "best": "of the best round",
    "last": "of the last round",
    "personal": "of sites' own models",
    "site_best": "of each site's own best round",
}


@dataclass(frozen=True)
class Entry:
    """One number of a table: ``values`` of the finished seeds, out of ``n_seeds``."""

    values: tuple[float, ...]
    n_seeds: int
    published: str = ""
    best: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all seeds have finished."""
        return len(self.values) == self.n_seeds

    @property
    def mean(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation (n - 1), with more than one seed."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Table:
    """A table; each row has one entry per column. The image-free guess is a row too, if it is known."""

    title: str
    columns: dict[str, str]
    """Headings by keys, as published values and CSV have them."""
    rows: dict[str, list[Entry]]


def make_tables(comparison: Comparison) -> list[Table]:
    """The tables: one of all sites with one axis; with more axes first the summaries, then one of sites per block."""
    all_blocks = blocks(comparison)
    if len(comparison.axes) == 1:
        return [_table(comparison, "", [(all_blocks[0], _columns(comparison, all_blocks[0]))])]
    axes = " and ".join(list(comparison.axes)[1:])
    overview = [(block, _summary_columns(comparison, block, alone=True)) for block in all_blocks]
    tables = [_table(comparison, f"by {axes}", overview)]
    for block in all_blocks:
        columns = _columns(comparison, block)
        if len(columns) > len(comparison.summaries):
            title = ", ".join(f"{axis} {label}" for axis, label in block.labels.items())
            tables.append(_table(comparison, title, [(block, columns)]))
    return tables


def has_last_round(comparison: Comparison) -> bool:
    """Whether the best round is shown, and cells have scores of the last one too."""
    shows_best = comparison.model == "best" and "average" in comparison.summaries
    return shows_best and any({"best", "last"} <= cell.scores.keys() for cell in comparison.cells)


def _columns(comparison: Comparison, block: Block) -> list[tuple[str, str]]:
    """Keys and headings of a block's columns: sites, unless there are too many, and summaries."""
    sites = [(site, site) for site in block.sites] if len(block.sites) <= MAX_SITES else []
    return [*sites, *_summary_columns(comparison, block, alone=not sites)]


def _summary_columns(comparison: Comparison, block: Block, *, alone: bool) -> list[tuple[str, str]]:
    """Keys and headings of the summaries. Unless ``alone``, the mean of a single held-out site is omitted."""
    shown: list[tuple[str, str]] = [
        (what, SUMMARY_HEADINGS[what])
        for what in comparison.summaries
        if alone or what != "held_out" or len(block.held_out) != 1
    ]
    return [*shown, (LAST_ROUND, LAST_ROUND)] if has_last_round(comparison) else shown


def _table(comparison: Comparison, title: str, parts: Sequence[tuple[Block, list[tuple[str, str]]]]) -> Table:
    """A table of the given blocks, each with its columns as (key, heading)."""
    columns: dict[str, str] = {}
    rows: dict[str, list[Entry]] = {row: [] for row in comparison.rows}
    guesses: list[Entry] = []
    for block, keys in parts:
        may_be_best = measure(comparison.metric).better is not None and not below_guess(comparison, block)
        guess = guess_cell(comparison, block)
        for key, heading in keys:
            if len(parts) > 1:
                heading = block.key if len(keys) == 1 else f"{block.key}: {heading}"
            columns[block.name(key)] = heading
            entries = [_entry(comparison, block, row, key) for row in rows]
            if may_be_best and key != "spread":
                entries = _mark_best(entries, measure(comparison.metric))
            for row, entry in zip(rows, entries, strict=True):
                rows[row].append(entry)
            value = None if guess is None or key == LAST_ROUND else _value(comparison, guess, key)
            guesses.append(Entry(() if value is None else (value,), 1))
    if any(entry.values for entry in guesses):
        rows[GUESS] = guesses
    return Table(title, columns, rows)


def _entry(comparison: Comparison, block: Block, row: str, key: str) -> Entry:
    values = [_value(comparison, cell, key) for cell in comparison.row_cells(row, block.labels)]
    known = tuple(value for value in values if value is not None)
    return Entry(known, len(comparison.seeds), _published(comparison, block, row, key)[0])


def _published(comparison: Comparison, block: Block, row: str, key: str) -> tuple[str, str, str]:
    """The published value as text, its number and its standard deviation; all empty without one."""
    names = [block.name(key), *([block.key] if block.key and key == "average" else [])]
    values = {(value.row, value.column): value for value in comparison.published}
    value = next((values[row, name] for name in names if (row, name) in values), None)
    return ("", "", "") if value is None else (value.text, value.value, value.std)


def _value(comparison: Comparison, cell: CellRecord, key: str) -> float | None:
    if not cell.is_done:
        return None
    if key == LAST_ROUND:
        return summary(comparison.model_copy(update={"model": "last"}), cell, "average")
    what = next((name for name in SUMMARY_HEADINGS if name == key), None)
    return site_scores(comparison, cell).get(key) if what is None else summary(comparison, cell, what)


def _mark_best(column: list[Entry], shown: Measure) -> list[Entry]:
    """Mark the best entries of a column among rows with all seeds; entries with the same printed value are equal."""
    complete = [entry.mean for entry in column if entry.is_complete and entry.mean is not None]
    if len(complete) < 2:
        return column
    best = shown.text(max(complete) if shown.better == "higher" else min(complete))
    return [
        replace(entry, best=entry.is_complete and entry.mean is not None and shown.text(entry.mean) == best)
        for entry in column
    ]


def heading(comparison: Comparison) -> str:
    """The title with scale, metric, unit and model."""
    metric = " ".join(filter(None, [comparison.metric, measure(comparison.metric).unit_text]))
    is_cross_site = comparison.spec.get("run") == "cross_site"
    which = "of sites' own models of the last round" if is_cross_site else MODELS[comparison.model]
    title = f"{title_with_scale(comparison.title, comparison.scale)}: {metric}, {which}"
    return title_of(title, phantom=comparison.is_phantom)


def title_with_scale(title: str, scale: str) -> str:
    """A comparison's title, with its scale if the spec defines scales."""
    return title if scale == FULL else f"{title} ({scale})"


def entry_text(entry: Entry, shown: Measure) -> str:
    """An entry as text: ``61.2 ± 0.4``, ``61.2 (1 of 3 seeds)`` or ``-``."""
    if entry.mean is None:
        return "-"
    text = shown.text(entry.mean)
    if entry.std is not None:
        text += f" ± {shown.text(entry.std)}"
    return text if entry.is_complete else f"{text} ({len(entry.values)} of {entry.n_seeds} seeds)"


def _render(template: str, comparison: Comparison) -> str:
    return render(
        template,
        tables=make_tables(comparison),
        row_axis=comparison.row_axis,
        heading=heading(comparison),
        what=comparison.what,
        claims=claims_sentence(comparison),
        notes=footnotes(comparison),
        text=partial(entry_text, shown=measure(comparison.metric)),
    )


def markdown(comparison: Comparison) -> str:
    return _render("table.md.j2", comparison)


def latex(comparison: Comparison) -> str:
    """The tables in LaTeX, with booktabs."""
    return _render("table.tex.j2", comparison)


def rich_tables(comparison: Comparison) -> list[RichTable]:
    """The tables for the terminal."""
    shown, tables = measure(comparison.metric), []
    for number, table in enumerate(make_tables(comparison)):
        title = "\n".join(filter(None, [heading(comparison) if not number else "", table.title]))
        rich = RichTable(title=Text(title), title_justify="left", caption_justify="left")
        longest = max(map(len, table.rows))
        rich.add_column(Text(comparison.row_axis), no_wrap=True, min_width=longest)  # names are never truncated
        for name in table.columns.values():
            rich.add_column(Text(name), justify="right")
        for row, entries in table.rows.items():
            words = [Text(entry_text(entry, shown), style="bold" if entry.best else "") for entry in entries]
            for text, entry in zip(words, entries, strict=True):
                text.append(f" [{entry.published}]" if entry.published else "", style="dim not bold")
            rich.add_row(Text(row), *words)
        tables.append(rich)
    tables[-1].caption = Text("\n".join(filter(None, [claims_sentence(comparison), *footnotes(comparison)])))
    return tables


def long_csv(comparison: Comparison) -> str:
    """The tables in CSV with one number per line: every row, block and column, then each test's difference and p."""
    shown, (first, *further) = measure(comparison.metric), comparison.axes
    numbers_of = ("value", "std", "unit", "n", "of", "published", "published std")
    kinds = "+".join(sorted({record.kind for cell in comparison.finished for record in cell.data.values()}))
    about = [kinds, "; ".join(sorted({cell.initial_weights for cell in comparison.finished}))]
    rows: list[list[object]] = []
    for block in blocks(comparison):
        keys = [*block.sites, *comparison.summaries, *([LAST_ROUND] if has_last_round(comparison) else [])]
        for row, entries in _table(comparison, "", [(block, [(key, key) for key in keys])]).rows.items():
            for key, entry in zip(keys, entries, strict=True):
                numbers = ["" if v is None else f"{shown.scaled(v):.6g}" for v in (entry.mean, entry.std)]
                counts = [shown.unit, len(entry.values), entry.n_seeds]
                printed = _published(comparison, block, row, key)[1:]
                rows.append([row, *block.labels.values(), key, *numbers, *counts, *printed, *about])
    for test in paired_tests(comparison):
        labels = next(block.labels for block in blocks(comparison) if block.key == test.block)
        for column, value, n, printed_value in _test_lines(test, shown, printed_p(test, comparison)):
            numbers = ["" if value is None else f"{value:.6g}", "", "", str(n), str(n), printed_value, ""]
            rows.append([test.row, *labels.values(), column, *numbers, *about])
    return csv_text([first, *further, "column", *numbers_of, "data", "initial weights"], rows)


def _test_lines(test: Paired, shown: Measure, printed: str) -> Iterator[tuple[str, float | None, int, str]]:
    """A test's columns: name, number, pairs, and the published number."""
    difference, p = f"difference to {test.against}", p_value(test.against)
    yield difference, shown.scaled(test.difference), test.n, ""
    if test.interval is not None and test.smallest is not None:
        n = test.n if test.over_folds is None else len(test.folds)
        low, high = map(shown.scaled, test.interval)
        yield f"{difference} (low)", low, n, ""
        yield f"{difference} (high)", high, n, ""
        yield f"smallest detectable {difference}", shown.scaled(test.smallest), n, ""
    yield p, test.p, test.n, printed
    if test.over_folds is not None:
        yield f"{p} over folds", test.over_folds.p, len(test.folds), ""
    if test.over_cases is not None:
        yield f"{p} over cases", test.over_cases.p, test.over_cases.n, ""


def write_tables(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``table.md``, ``table.tex`` and ``table.csv``, and return their paths."""
    texts = {"table.md": markdown(comparison), "table.tex": latex(comparison), "table.csv": long_csv(comparison)}
    return write_files(folder, texts)
