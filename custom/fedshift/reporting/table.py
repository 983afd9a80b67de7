"""The table of a run for the terminal, made from its results alone."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from rich.table import Table

from fedshift.schema.errors import ConfigError
from fedshift.schema.results import TRAINED_BEFORE, DataRecord, FinalScores, JobRecord, Results

SPLITS = ("train", "val", "test")
MOST_ROWS = 20
"""With more sites than this, a table has a few rows in place of one per site."""
PHANTOM = "The data are the phantom: simulated scans, no patients."


def scores_table(results: Results) -> Table:
    """A row a site: samples, the best model's validation and test score, the last model's test score.

    Of more than `MOST_ROWS` sites there are the worst, the median and the best of each column.

    Where sites fine-tune the best model for themselves, a column has their own models' test score. Scores are in
    percent, in brackets the 95 % interval over cases; after the sites that train comes their mean, then those that are
    held out, scored on all their samples.

    Raises:
        ConfigError: the run did not end.
    """
    if results.final is None:
        raise ConfigError(f"job {results.job.name} has no final scores: the run did not end")
    final, metric = results.final, results.job.metric
    best, last = final.best, final.last
    methods = " + ".join(method.name for method in results.job.methods)
    table = Table(
        title=title_of(f"{methods} on {results.job.task}, {metric} in percent", phantom=results.is_phantom),
        caption="\n".join(_notes(results)) or None,
        title_justify="left",
        caption_justify="left",
    )
    shown = ((best, "val", "validation"), (best, "test", "test"), (last, "test", "test"))
    table.add_column("site")
    table.add_column("samples\ntrain/val/test", justify="right")
    for scores, _, heading in shown:
        which = "last" if scores is last else "best"
        table.add_column(f"{heading}\n{which} model (round {scores.round})", justify="right")
    if final.fine_tuned:
        table.add_column(f"test\nsites' own models (from round {best.round})", justify="right")
    columns: list[list[float]] = [[] for _ in range(len(shown) + final.fine_tuned)]
    trained = {site: record for site, record in results.data.items() if site not in results.job.held_out}
    for site, record in trained.items():
        values = [_score(scores, site, split, metric) for scores, split, _ in shown]
        if final.fine_tuned:
            values.append(final.personal.get(site, {}).get(metric))
        for column, value in zip(columns, values, strict=True):
            if value is not None:
                column.append(value)
        if len(trained) <= MOST_ROWS:
            cells = [_percent(value) for value in values]
            cells[1] += _interval(best, site, metric)
            table.add_row(site, _counts(record), *cells)
    if len(trained) > MOST_ROWS:
        together = DataRecord.model_construct(n={s: sum(r.n[s] for r in trained.values()) for s in SPLITS})
        table.add_row(f"{len(trained)} sites", _counts(together))
        for name, of in (("worst", min), ("median", median), ("best", max)):
            table.add_row(name, "", *(_percent(of(column) if column else None) for column in columns))
    table.add_section()
    table.add_row("mean", "", *(_percent(fmean(column) if column else None) for column in columns))
    if results.job.held_out:
        table.add_section()
        table.add_row("held out:")
    for site in results.job.held_out:
        found = [scores.held_out.get(site, {}).get("all", {}).get(metric) for scores in (best, last)]
        counts = _counts(results.data[site]) if site in results.data else ""
        table.add_row(site, counts, "", *map(_percent, found))
    return table


def title_of(title: str, *, phantom: bool) -> str:
    """A table's title, which says so if the data are simulated."""
    return f"PHANTOM, no patients: {title}" if phantom else title


def lineage_notes(job: JobRecord, sites: Sequence[str]) -> list[str]:
    """A sentence about those of ``sites``, which the run does not train, that trained what it started from."""
    before = job.trained_before(sites)
    return [f"{several(before)} {TRAINED_BEFORE}: no new site to this model."] if before else []


def several(sites: Sequence[str]) -> str:
    """The sites by name, or how many there are if there are more than `MOST_ROWS`."""
    return ", ".join(sites) if len(sites) <= MOST_ROWS else f"{len(sites)} sites, {sites[0]} to {sites[-1]}"


def _counts(record: DataRecord) -> str:
    return "/".join(str(record.n.get(split, 0)) for split in SPLITS)


def _notes(results: Results) -> list[str]:
    final, notes = results.final, [f"Initial weights: {results.job.initial_weights}."]
    assert final is not None
    if final.personal and not final.fine_tuned:
        notes.append("Every site is scored with a model of its own.")
    if results.job.held_out:
        notes.append("Sites that are held out did not train: their score is over all their samples.")
    if final.newcomers:
        notes.append(f"Had not trained by the best round: {several(final.newcomers)}.")
    notes += lineage_notes(results.job, [*results.job.held_out, *final.newcomers])
    return [*notes, *([PHANTOM] if results.is_phantom else [])]


def _score(scores: FinalScores, site: str, split: str, metric: str) -> float | None:
    return scores.sites.get(site, {}).get(split, {}).get(metric)


def _interval(scores: FinalScores, site: str, metric: str) -> str:
    told = scores.evaluations.get(site, {}).get("test")
    spread = None if told is None else told.distributions.get(metric)
    if spread is None or spread.interval is None:
        return ""
    low, high = spread.interval
    return f" ({100 * low:.0f} to {100 * high:.0f})"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
