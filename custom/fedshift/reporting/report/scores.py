"""The scores of every site, with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from fedshift.reporting import false_positives
from fedshift.reporting.known_scores import GUESS, GUESS_NOTE, OF_CLASSES
from fedshift.reporting.report.runs import Run, evaluation, guess_mean, personal_evaluation
from fedshift.reporting.report.section import Block, Cell, Column, Heading, Row, Section, Table, paragraph
from fedshift.reporting.report.summary import (
    mean_with_interval,
    scored_classes,
    scores_of_voxel_size,
    sites_without_voxel_sizes,
)
from fedshift.reporting.report.wording import Metric, interval, listed, metric, ordered, printed
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.results import TRAINED_BEFORE, FinalScores, Metrics

MIN_CASES_FOR_INTERVAL = 5
"""With fewer cases no interval is shown, because the bootstrap interval would be too narrow."""
PRINTED_HEADING = "Only to compare with papers"


def per_site(run: Run) -> Section | None:
    """Test scores of the best model, then best, last and personal models side by side; None without final scores."""
    final, job = run.results.final, run.results.job
    if final is None:
        return None
    names = _names(final.best, run.trained, "test")
    plain = [name for name in names if not printed(name)]
    of_papers = [name for name in names if printed(name)]
    tables = [_best(run, final.best, plain)] if plain else []
    selecting = [_other_scores(run), *([_held_out(run)] if job.held_out else [])]
    papers = [_best(run, final.best, of_papers)] if of_papers else []
    (papers if printed(job.metric) else tables).extend(selecting)
    norms = _gradient_norms(run)
    if norms is not None:
        tables.append(norms)
    blocks: list[Block] = [*tables]
    explained = [metric(name) for name in names if metric(name).meaning and not printed(name)]
    if explained:
        blocks.append(paragraph("score_meanings", scores=explained, of_classes=any(" " in name for name in plain)))
    averages = [metric(name).word for name in names if name in OF_CLASSES]
    if averages and len(run.trained) > 1:
        blocks.append(paragraph("classes_average", scores=averages, sites=scored_classes(run)))
    unknown = sites_without_voxel_sizes(run)
    if unknown and (of_size := scores_of_voxel_size(run)):
        blocks.append(paragraph("placeholder_voxel_size", scores=of_size, sites=unknown))
    if not any(evaluation(final.best, site, "test") for site in run.results.data):
        blocks.append(paragraph("no_single_cases"))
    if run.has_guess:
        blocks.append(paragraph("image_free_guess", note=GUESS_NOTE))
    if papers:
        blocks += [Heading(PRINTED_HEADING), paragraph("papers_only"), *papers]
    brackets = any(_brackets(table) for table in [*tables, *papers])
    how = paragraph("scores_how", counted=run.counted, brackets=brackets, fewest=MIN_CASES_FOR_INTERVAL)
    return Section("scores", "Scores of every site", how, blocks)


def shows_interval(cells: Iterable[Cell | str]) -> bool:
    """Whether a cell has an interval."""
    return any(isinstance(cell, Cell) and cell.detail.startswith("[") for cell in cells)


def _brackets(table: Table) -> bool:
    return any(shows_interval(row) for row in [*table.rows, *table.foot])


def _names(scores: FinalScores, sites: Sequence[str], part: str) -> list[str]:
    """All score names of a part, in table order."""
    names: set[str] = set()
    for site in sites:
        names |= scores.sites.get(site, {}).get(part, {}).keys()
        result = evaluation(scores, site, part)
        if result is not None:
            names |= result.scores.keys()
    return ordered(names)


def _best(run: Run, scores: FinalScores, names: Sequence[str]) -> Table:
    sites = run.trained
    with_cases = any(evaluation(scores, site, "test") is not None for site in sites)
    rows: list[Row] = []
    for site in sites:
        result = evaluation(scores, site, "test")
        metrics = scores.sites.get(site, {}).get("test", {})
        n = [_cases(run, site, result)] if with_cases else []
        rows.append([site, *n, *(score_cell(name, metrics, result) for name in names)])
    foot: list[Row] = []
    means: list[Cell | str] = []
    for name in names:
        values = [value for site in sites if (value := _value(scores, site, name)) is not None]
        with_score = [site for site in sites if name in scores.sites.get(site, {}).get("test", {})]
        if len(with_score) == len(values) == len(sites) and values:
            mean, bounds = mean_with_interval(scores, sites, name)
            means.append(Cell(metric(name).number(mean), interval(metric(name), bounds), strong=True))
        else:
            means.append(_mean_cell(metric(name), values, len(sites)))
    if len(sites) > 1:
        foot.append([Cell("mean", strong=True), *([""] if with_cases else []), *means])
    if guesses := [guess_mean(run, sites, "test", name) for name in names if run.has_guess]:
        cells = [Cell(metric(name).number(guess)) for name, guess in zip(names, guesses, strict=True)]
        foot.append([GUESS, *([""] if with_cases else []), *cells])
    columns = [Column("Site", numeric=False), *([Column("Test cases")] if with_cases else [])]
    columns += [Column(metric(name).heading) for name in names]
    return Table(columns, rows, foot, caption=f"Best aggregated model (round {scores.round}), test part")


def _mean_cell(m: Metric, values: Sequence[float], n_sites: int) -> Cell:
    """The mean over the sites that have a value, and how many these are if not all."""
    some = f"of {len(values)} sites" if 0 < len(values) < n_sites else ""
    return Cell(m.number(fmean(values) if values else None), some, strong=True)


def _cases(run: Run, site: str, result: Evaluation | None) -> Cell:
    """How many test cases a site has, and how many of them lack a class."""
    counts = {} if result is None else {name: spread.n for name, spread in result.distributions.items()}
    without = false_positives.without(counts)
    n = run.results.data[site].cases.get("test") if without else max(counts.values(), default=None)
    return Cell("–" if n is None else f"{n:,}", f"{without:,} without" if without else "")


def _value(scores: FinalScores, site: str, name: str) -> float | None:
    result = evaluation(scores, site, "test")
    value = scores.sites.get(site, {}).get("test", {}).get(name)
    if value is None and result is not None:
        value = result.scores.get(name)
    return value if value is not None and math.isfinite(value) else None


def score_cell(name: str, metrics: Metrics, result: Evaluation | None) -> Cell:
    """A score with its interval, if there is one.

    ``metrics`` are the part's scores, ``result`` is its evaluation; a score in ``metrics`` takes precedence.
    """
    value = metrics.get(name)
    spread = None
    if result is not None:
        value = result.scores.get(name) if value is None else value
        spread = result.distributions.get(name)
    detail = ""
    if spread is not None and spread.n >= MIN_CASES_FOR_INTERVAL:
        detail = interval(metric(name), spread.interval)
    elif result is not None:
        detail = interval(metric(name), result.intervals.get(name))
    return Cell(metric(name).number(value), detail)


def _other_scores(run: Run) -> Table:
    final, name = run.results.final, run.results.job.metric
    assert final is not None
    m = metric(name)
    shown = [
        ("validation", f"best model (round {final.best.round})", final.best, "val"),
        ("test", f"best model (round {final.best.round})", final.best, "test"),
        ("test", f"last model (round {final.last.round})", final.last, "test"),
    ]
    columns = [Column("Site", numeric=False), *(Column(part, detail=model) for part, model, _, _ in shown)]
    if final.personal:
        columns.append(Column("test", detail="site's own model"))
    values: list[list[float]] = [[] for _ in columns[1:]]
    rows: list[Row] = []
    for site in run.trained:
        cells = [
            score_cell(name, scores.sites.get(site, {}).get(part, {}), evaluation(scores, site, part))
            for _, _, scores, part in shown
        ]
        scored = [scores.sites.get(site, {}).get(part, {}).get(name) for _, _, scores, part in shown]
        if final.personal:
            cells.append(score_cell(name, final.personal.get(site, {}), personal_evaluation(run.results, site)))
            scored.append(final.personal.get(site, {}).get(name))
        for column, value in zip(values, scored, strict=True):
            if value is not None and math.isfinite(value):
                column.append(value)
        rows.append([site, *cells])
    means = [_mean_cell(m, column, len(rows)) for column in values]
    foot: list[Row] = [[Cell("mean", strong=True), *means]] if len(rows) > 1 else []
    return Table(columns, rows, foot, caption=f"{m.heading}: best and last model side by side")


def _held_out(run: Run) -> Table:
    final, job = run.results.final, run.results.job
    assert final is not None
    m = metric(job.metric)
    shown = [
        (which, scores, part)
        for which, scores in (("best", final.best), ("last", final.last))
        for part in ("all", "test")
    ]
    columns = [Column("Held out", numeric=False)]
    columns += [Column(f"{which} model", detail=f"{part} {run.counted}") for which, _, part in shown]
    rows: list[Row] = [
        [
            site,
            *(
                score_cell(job.metric, scores.held_out.get(site, {}).get(part, {}), evaluation(scores, site, part))
                for _, scores, part in shown
            ),
        ]
        for site in job.held_out
    ]
    trained_before = job.trained_before(job.held_out)
    lineage = f"; {listed(trained_before)} {TRAINED_BEFORE}" if trained_before else ""
    guess = guess_mean(run, job.held_out, "all", job.metric)
    foot: list[Row] = [] if guess is None else [[GUESS, Cell(m.number(guess)), "", "", ""]]
    return Table(columns, rows, foot, caption=f"{m.heading} at sites that did not train in this run{lineage}")


def _gradient_norms(run: Run) -> Table | None:
    """Gradient norms at the best and last model; None if the job did not ask for them."""
    final = run.results.final
    assert final is not None
    rows: list[Row] = []
    for site in run.results.data:
        part = "all" if site in run.results.job.held_out else "val"
        evaluations = [evaluation(scores, site, part) for scores in (final.best, final.last)]
        norms = [None if result is None else result.gradient_norm for result in evaluations]
        if any(norm is not None for norm in norms):
            cells = [f"{norm:.3g}" if norm is not None else "–" for norm in norms]
            squares = [f"{norm**2:.3g}" if norm is not None else "–" for norm in norms]
            rows.append([site, cells[0], squares[0], cells[1], squares[1]])
    if not rows:
        return None
    columns = [Column("Site", numeric=False)]
    columns += [Column(text, detail=f"{which} model") for which in ("best", "last") for text in ("Norm", "Squared")]
    return Table(columns, rows, caption="Norm of the loss gradient: how far the model is from the site's own optimum")
