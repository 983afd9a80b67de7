"""A comparison's tables: mean and sample standard deviation over seeds, best in bold, published values in brackets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from rich.table import Table as RichTable
from rich.text import Text

from fedshift.reporting.known_scores import GUESS
from fedshift.reporting.table import title_of
from fedshift.schema.csv_text import csv_text
from fedshift.schema.files import write_text
from fedshift_bench.cell_record import CellRecord
from fedshift_bench.columns import (
    MAX_SITES,
    SUMMARY_HEADINGS,
    Block,
    blocks,
    p_value,
    site_score,
    summary,
)
from fedshift_bench.footnotes import footnotes
from fedshift_bench.guess import below_guess, guess_row
from fedshift_bench.measures import Measure, measure
from fedshift_bench.record import Comparison
from fedshift_bench.significance import paired_tests, printed_p
from fedshift_bench.spec import FULL
from fedshift_bench.verdict import verdict

LAST_ROUND = "average, last round"
"""A column beside the average of the best round: what selecting a round adds, or takes."""
FILES = ("table.md", "table.tex", "table.csv")


@dataclass(frozen=True)
class Entry:
    """One number of a table: ``values`` of the finished seeds, out of ``of`` seeds."""

    values: tuple[float, ...]
    of: int
    published: str = ""
    best: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all seeds have finished."""
        return len(self.values) == self.of

    @property
    def mean(self) -> float | None:
        """The mean over finished seeds."""
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation (n - 1), with more than one seed."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Column:
    """A column: ``heading`` for readers, ``key`` for published values and CSV."""

    key: str
    heading: str


@dataclass(frozen=True)
class Table:
    """A table; each row has one entry per column. The image-free guess is a row too, if it is known."""

    title: str
    columns: list[Column]
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
    return (
        comparison.model == "best"
        and "average" in comparison.summaries
        and any({"best", "last"} <= cell.scores.keys() for cell in comparison.cells)
    )


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
    first, *_ = comparison.axes
    published = {(value.row, value.column): value.text for value in comparison.published}
    columns: list[Column] = []
    entries: list[list[Entry]] = []
    guesses: list[Entry] = []
    for block, keys in parts:
        single = len(keys) == 1 and len(parts) > 1
        for key, heading in keys:
            if len(parts) > 1:
                heading = block.key if single else f"{block.key}: {heading}"
            columns.append(Column(block.name(key), heading))
            column = []
            for row in comparison.axes[first]:
                cells = comparison.of({first: row, **block.labels})
                values = [_value(comparison, cell, key) for cell in cells]
                names = [block.name(key), *([block.key] if block.key and key == "average" else [])]
                printed = next((published[row, name] for name in names if (row, name) in published), "")
                column.append(Entry(tuple(v for v in values if v is not None), len(comparison.seeds), printed))
            ranked = key != "spread" and not below_guess(comparison, block)
            entries.append(_mark_best(column, measure(comparison.metric) if ranked else Measure(better=None)))
            guess = guess_row(comparison, block)
            value = None if guess is None or key == LAST_ROUND else _value(comparison, guess, key)
            guesses.append(Entry(() if value is None else (value,), 1))
    rows = {row: [column[number] for column in entries] for number, row in enumerate(comparison.axes[first])}
    if any(entry.values for entry in guesses):
        rows[GUESS] = guesses
    return Table(title, columns, rows)


def _value(comparison: Comparison, cell: CellRecord, key: str) -> float | None:
    if cell.state != "done":
        return None
    if key == LAST_ROUND:
        return summary(comparison.model_copy(update={"model": "last"}), cell, "average")
    for name in SUMMARY_HEADINGS:
        if name == key:
            return summary(comparison, cell, name)
    return site_score(comparison, cell, key)


def _mark_best(column: list[Entry], of: Measure) -> list[Entry]:
    """Mark the best entries of a column among rows with all seeds; entries with the same printed value are equal."""
    complete = [entry.mean for entry in column if entry.is_complete and entry.mean is not None]
    if of.better is None or len(complete) < 2:
        return column
    best = of.text(max(complete) if of.better == "higher" else min(complete))
    return [
        replace(entry, best=entry.is_complete and entry.mean is not None and of.text(entry.mean) == best)
        for entry in column
    ]


# --- text that all formats share ------------------------------------------------------------------


def heading(comparison: Comparison) -> str:
    """The title with scale, metric, unit and model."""
    metric = " ".join(filter(None, [comparison.metric, measure(comparison.metric).unit_text]))
    model = {
        "best": "of the best round",
        "last": "of the last round",
        "personal": "of sites' own models",
        "own_best": "of each site's own best round",
    }
    which = model[comparison.model]
    if comparison.spec.get("run") == "cross_site":
        which = "of sites' own models of the last round"
    title = f"{title_with_scale(comparison.title, comparison.scale)}: {metric}, {which}"
    return title_of(title, phantom=comparison.is_phantom)


def title_with_scale(title: str, scale: str) -> str:
    """A comparison's title, with its scale if the spec defines scales."""
    return title if scale == FULL else f"{title} ({scale})"


def entry_text(entry: Entry, of: Measure) -> str:
    """An entry as text: ``61.2 ± 0.4``, ``61.2 (1 of 3 seeds)`` or ``-``."""
    if entry.mean is None:
        return "-"
    text = of.text(entry.mean)
    if entry.std is not None:
        text += f" ± {of.text(entry.std)}"
    return text if entry.is_complete else f"{text} ({len(entry.values)} of {entry.of} seeds)"


# --- formats --------------------------------------------------------------------------------------


def rich_tables(comparison: Comparison) -> list[RichTable]:
    """The tables for the terminal."""
    shown, made = measure(comparison.metric), []
    tables = make_tables(comparison)
    for number, table in enumerate(tables):
        last = number == len(tables) - 1
        title = "\n".join(filter(None, [heading(comparison) if not number else "", table.title]))
        rich = RichTable(
            title=Text(title),
            caption=Text("\n".join(filter(None, [verdict(comparison), *footnotes(comparison)]))) if last else None,
            title_justify="left",
            caption_justify="left",
        )
        longest = max(len(row) for row in table.rows)
        rich.add_column(Text(next(iter(comparison.axes))), no_wrap=True, min_width=longest)  # names are never truncated
        for column in table.columns:
            rich.add_column(Text(column.heading), justify="right")
        for row, entries in table.rows.items():
            words = [Text(entry_text(e, shown), style="bold" if e.best else "") for e in entries]
            for text, entry in zip(words, entries, strict=True):
                text.append(f" [{entry.published}]" if entry.published else "", style="dim not bold")
            rich.add_row(Text(row), *words)
        made.append(rich)
    return made


def markdown(comparison: Comparison) -> str:
    """The tables in Markdown."""
    shown = measure(comparison.metric)
    lines = [f"# {_md(heading(comparison))}", ""]
    lines += [f"**{_md(told)}**", ""] if (told := verdict(comparison)) else []
    lines += [_md(" ".join(comparison.what.split())), ""]
    for table in make_tables(comparison):
        if table.title:
            lines += [f"**{_md(table.title)}**", ""]
        lines.append("| " + " | ".join([_md(next(iter(comparison.axes))), *(_md(c.heading) for c in table.columns)]))
        lines[-1] += " |"
        lines.append("|---|" + "---:|" * len(table.columns))
        for row, entries in table.rows.items():
            words = []
            for entry in entries:
                text = entry_text(entry, shown)
                text = f"**{text}**" if entry.best else text
                words.append(text + (f" [{entry.published}]" if entry.published else ""))
            lines.append(f"| {_md(row)} | " + " | ".join(words) + " |")
        lines.append("")
    lines += [f"- {_md(line)}" for line in footnotes(comparison)]
    return "\n".join(lines) + "\n"


def _md(text: str) -> str:
    return re.sub(r"([\\|*_`<>\[\]#])", r"\\\1", text)


def latex(comparison: Comparison) -> str:
    """The tables in LaTeX, with booktabs."""
    shown = measure(comparison.metric)
    lines = [r"% needs \usepackage{booktabs}"]
    for table in make_tables(comparison):
        title = ", ".join(filter(None, [heading(comparison), table.title]))
        lines += [r"\begin{table}", r"\centering", rf"\caption{{{_tex(title)}}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule"]
        head = [next(iter(comparison.axes)), *(column.heading for column in table.columns)]
        lines += [" & ".join(map(_tex, head)) + r" \\", r"\midrule"]
        for row, entries in table.rows.items():
            words = [_tex(row)]
            for entry in entries:
                text = _tex(entry_text(entry, shown))
                text = rf"\textbf{{{text}}}" if entry.best else text
                words.append(text + (rf" {{\scriptsize [{_tex(entry.published)}]}}" if entry.published else ""))
            lines.append(" & ".join(words) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    notes = filter(None, [verdict(comparison), *footnotes(comparison)])
    lines += [rf"\noindent {_tex(line)}\par" for line in notes]
    return "\n".join(lines) + "\n"


_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "°": r"$^\circ$",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)


def long_csv(comparison: Comparison) -> str:
    """The tables in CSV with one number per line: every row, block and column, then each test's difference and p."""
    shown, (first, *further) = measure(comparison.metric), comparison.axes
    unit = shown.unit
    figures = {(figure.row, figure.column): figure for figure in comparison.published}
    numbers_of = ("value", "std", "unit", "n", "of", "published", "published std")
    header = [first, *further, "column", *numbers_of, "data", "initial weights"]
    rows: list[list[object]] = []
    done = [cell for cell in comparison.cells if cell.state == "done"]
    kinds = "+".join(sorted({record.kind for cell in done for record in cell.data.values()}))
    about = [kinds, "; ".join(sorted({cell.initial_weights for cell in done}))]
    for block in blocks(comparison):
        keys = [*block.sites, *comparison.summaries, *([LAST_ROUND] if has_last_round(comparison) else [])]
        table = _table(comparison, "", [(block, [(key, key) for key in keys])])
        for row, entries in table.rows.items():
            for key, entry in zip(keys, entries, strict=True):
                names = [block.name(key), *([block.key] if block.key and key == "average" else [])]
                figure = next((figures[row, name] for name in names if (row, name) in figures), None)
                numbers = ["" if v is None else f"{shown.scaled(v):.6g}" for v in (entry.mean, entry.std)]
                printed = [figure.value, figure.std] if figure else ["", ""]
                rows.append(
                    [row, *block.labels.values(), key, *numbers, unit, len(entry.values), entry.of, *printed, *about]
                )
    for test in paired_tests(comparison):
        labels = next(block.labels for block in blocks(comparison) if block.key == test.block)
        pairs, told = str(test.n), f"difference to {test.against}"
        found: list[tuple[str, float | None, str, str]] = [(told, shown.scaled(test.difference), pairs, "")]
        if test.interval is not None:
            of = pairs if test.over_folds is None else str(len(test.folds))
            low, high = map(shown.scaled, test.interval)
            found += [(f"{told} (low)", low, of, ""), (f"{told} (high)", high, of, "")]
            assert test.smallest is not None
            found.append((f"smallest detectable {told}", shown.scaled(test.smallest), of, ""))
        found.append((p_value(test.against), test.p, pairs, printed_p(test, comparison)))
        if test.over_folds is not None:
            found.append((f"{p_value(test.against)} over folds", test.over_folds.p, str(len(test.folds)), ""))
        if test.over_cases is not None:
            found.append((f"{p_value(test.against)} over cases", test.over_cases.p, str(test.over_cases.n), ""))
        for column, value, n, in_paper in found:
            numbers = ["" if value is None else f"{value:.6g}", "", "", n, n, in_paper, ""]
            rows.append([test.row, *labels.values(), column, *numbers, *about])
    return csv_text(header, rows)


def write_tables(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``table.md``, ``table.tex`` and ``table.csv``.

    Returns:
        The written files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = (markdown(comparison), latex(comparison), long_csv(comparison))
    for name, text in zip(FILES, texts, strict=True):
        write_text(folder / name, text)
    return [folder / name for name in FILES]
