"""A comparison's tables: mean and sample standard deviation over seeds, best in bold, published values in brackets."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from rich.table import Table as RichTable
from rich.text import Text

from fedshift.data.splits import FOLDS
from fedshift.reporting.comparison.columns import (
    MAX_SITES,
    SUMMARY_HEADINGS,
    Block,
    blocks,
    p_value,
    site_score,
    summary,
)
from fedshift.reporting.comparison.guess import ROW, below_guess, guess_row
from fedshift.reporting.comparison.measures import Measure, measure
from fedshift.reporting.comparison.record import CellRecord, Comparison
from fedshift.reporting.comparison.significance import CONFIDENCE, FEWEST, Paired, paired_tests, printed_p
from fedshift.reporting.comparison.spec import FULL, Pairs
from fedshift.reporting.comparison.verdict import verdict
from fedshift.reporting.differences import points
from fedshift.reporting.p_values import exact_p
from fedshift.reporting.table import title_of
from fedshift.schema.files import write_text

PAIRS: dict[Pairs, str] = {
    "seeds": "a pair is a seed: the averages over sites of the two rows.",
    "sites_and_seeds": "a pair is a site and a seed. Those of one seed share their models and are not independent, so "
    "p tends to be too small and the interval too narrow.",
    "sites_and_folds": "a pair is a site's test part of one fold, averaged over seeds; by Wilcoxon's signed-rank test. "
    "Those of one fold share their model, and folds share training cases, so p tends to be too small; p over folds and "
    "the interval are of a paired t-test whose pairs are the folds' averages over sites.",
}
"""What a pair of a test is, as a footnote says it."""
SMALLEST = (
    "The smallest detectable difference is the true one that the t-test finds (p < 0.05) in four of five repetitions."
)
OVER_CASES = (
    "p over cases is of Wilcoxon's signed-rank test, a pair being a case and each score the mean over seeds: it says "
    "whether other patients at these sites would show the same of these models."
)
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
        rows[ROW] = guesses
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


def footnotes(comparison: Comparison) -> list[str]:
    """The notes below the tables."""
    seeds = len(comparison.seeds)
    lines = [f"One seed ({comparison.seeds[0]})."]
    if seeds > 1:
        seed_list = ", ".join(map(str, comparison.seeds))
        lines = [
            f"Mean ± sample standard deviation (n - 1) over {seeds} seeds ({seed_list}); averages over sites are "
            "computed for each seed first."
        ]
    if comparison.folds:
        lines.append(_cross_validation(comparison.folds))
    if comparison.average == "samples":
        lines.append("Averages over sites weigh each site by the samples that it is scored on.")
    if comparison.published:
        lines.append("In brackets: the values published in the paper.")
    if any(guess_row(comparison, block) for block in blocks(comparison)):
        lines.append(
            f"The {ROW} looks at no image: it is where the structure is in the mean of the training masks, by relative "
            "place in the stack and in the slice."
        )
    lines += [why for block in blocks(comparison) if (why := below_guess(comparison, block))]
    tests = paired_tests(comparison)
    lines += [test_line(test, comparison) for test in tests]
    if comparison.tests:
        lines.append(f"Tests are paired and two-sided; {PAIRS[comparison.pairs]}")
    if any(test.smallest is not None for test in tests):
        lines.append(SMALLEST)
    if any(test.over_cases is not None for test in tests):
        lines.append(OVER_CASES)
    lines += comparison.notes
    if comparison.differences:
        lines.append(f"Differences from the paper: {' '.join(comparison.differences.split())}")
    return lines + tuning_lines(comparison)


def _cross_validation(folds: Sequence[int]) -> str:
    if len(folds) == FOLDS:
        return f"Cross-validation over {FOLDS} folds: a site's score is over all its cases, each tested once."
    named = ", ".join(map(str, folds))
    return f"Cross-validation, of {FOLDS} folds only {named}: a site's score is over the test cases of these."


def tuning_lines(comparison: Comparison) -> list[str]:
    """What was tuned: a remark, or the budget of every row, its chosen setting and the spread over its settings."""
    tuning, shown = comparison.tuning, measure(comparison.metric)
    if isinstance(tuning, str):
        return [f"Tuning: {' '.join(tuning.split())}"] if tuning else []
    runs = tuning.draws * len(comparison.seeds) * max(len(comparison.folds), 1)
    lines = [
        f"Tuning: {tuning.draws} settings for every row, its own and others drawn by seed {tuning.seed}, {runs} cells "
        "in all; shown is the one with the highest mean validation score. Test scores choose nothing."
    ]
    lines += [" ".join(tuning.remark.split())] if tuning.remark else []
    first, *_ = comparison.axes
    for block in blocks(comparison):
        for row in comparison.axes[first]:
            labels = {first: row, **block.labels}
            draws, chosen = comparison.draws(labels), comparison.chosen_draw(labels)
            name = f"{row}{f' ({block.key})' if block.key else ''}"
            if chosen is None:
                if all(cell.state != "missing" for cells in draws.values() for cell in cells):
                    lines.append(f"{name}: no setting is chosen: each failed or lacks a site's validation score.")
                continue
            means = {
                draw: fmean(values)
                for draw, cells in draws.items()
                if (values := [v for cell in cells if (v := summary(comparison, cell, "average")) is not None])
            }
            options = ", ".join(f"{key}={value}" for key, value in draws[chosen][0].drawn.items()) or "its own"
            text = f"{name}: setting {chosen + 1} of {len(draws)} ({options})"
            if len(means) > 1:
                text += (
                    f"; averages over settings {shown.text(min(means.values()))} to {shown.text(max(means.values()))}"
                )
                text += f", standard deviation {shown.text(stdev(means.values()))}"
            failed = sum(any(cell.state == "failed" for cell in cells) for cells in draws.values())
            done = [cells for cells in draws.values() if all(cell.state == "done" for cell in cells)]
            lacking = sum(any(cell.validation is None for cell in cells) for cells in done)
            text += f"; {failed} failed" if failed else ""
            lines.append(f"{text}{f'; {lacking} without the validation score of a site' if lacking else ''}.")
    return lines


def test_line(test: Paired, comparison: Comparison) -> str:
    """A test as a sentence."""
    shown = measure(comparison.metric)
    block = f" ({test.block})" if test.block else ""
    difference = shown.difference(test.difference)
    if test.over_pairs is not None:
        statistics = f"t = {test.over_pairs.t:.2f}, p = {exact_p(test.over_pairs.p)}{over_cases(test)}"
        statistics += interval_text(test, shown)
    elif test.p is not None:
        statistics = f"p = {exact_p(test.p)}{over_folds(test)}{over_cases(test)}{interval_text(test, shown)}"
    elif test.n < FEWEST:
        statistics = "too few pairs for a test"
    elif test.folds:  # a signed-rank test, to which equal pairs tell nothing
        statistics = f"fewer than {FEWEST} pairs differ, so there is no test"
    else:
        statistics = "all differences are equal, so there is no test"
    printed = printed_p(test, comparison)
    some = 0 < len(test.folds) < len(comparison.folds)
    ended = f", of folds {', '.join(map(str, test.folds))} only" if some else ""
    details = f"n = {test.n}{ended}" + (f"; in the paper p = {printed}" if printed else "")
    return f"{test.row} against {test.against}{block}: {difference}, {statistics} ({details})."


def over_folds(test: Paired) -> str:
    """``, over 5 folds p = 0.0540``; empty without such a test."""
    return "" if test.over_folds is None else f", over {len(test.folds)} folds p = {exact_p(test.over_folds.p)}"


def over_cases(test: Paired) -> str:
    """``, over 31 cases p = 0.0540``; empty without such a test."""
    if test.over_cases is None or test.over_cases.p is None:
        return ""
    return f", over {test.over_cases.n} cases p = {exact_p(test.over_cases.p)}"


def interval_text(test: Paired, of: Measure) -> str:
    """``, 95 % interval −1.0 to +1.3, smallest detectable difference 1.6``: by the t-test; or empty."""
    if test.interval is None or test.smallest is None:
        return ""
    low, high = map(of.difference, test.interval)
    seen = f"smallest detectable difference {points(of.scaled(test.smallest), decimals=of.decimals)}"
    return f", {100 * CONFIDENCE:.0f} % interval {low} to {high}, {seen}"


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
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    numbers_of = ("value", "std", "unit", "n", "of", "published", "published std")
    write.writerow([first, *further, "column", *numbers_of, "data", "initial weights"])
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
                write.writerow(
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
            write.writerow([test.row, *labels.values(), column, *numbers, *about])
    return out.getvalue()


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
