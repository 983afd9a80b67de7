"""The table of a run for the terminal, made from its results alone."""

from __future__ import annotations

from statistics import fmean

from rich.table import Table

from fedshift.errors import ConfigError
from fedshift.reporting.results import FinalScores, Results

PHANTOM = "The data are the phantom: simulated scans, no patients."


def scores_table(results: Results) -> Table:
    """A row a site: samples, the best model's validation and test score, the last model's test score.

    Where sites fine-tune the best model for themselves, a column has their own models' test score. Scores are in
    percent; the last row is their mean over sites.

    Raises:
        ConfigError: the run did not end.
    """
    if results.final is None:
        raise ConfigError(f"job {results.job.name} has no final scores: the run did not end")
    final, metric = results.final, results.job.metric
    best, last = final.best, final.last
    methods = " + ".join(method.name for method in results.job.methods)
    table = Table(
        title=f"{methods} on {results.job.task}, {metric} in percent",
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
    for site, record in results.data.items():
        values = [_score(scores, site, split, metric) for scores, split, _ in shown]
        if final.fine_tuned:
            values.append(final.personal.get(site, {}).get(metric))
        for column, value in zip(columns, values, strict=True):
            if value is not None:
                column.append(value)
        counts = "/".join(str(record.n.get(split, 0)) for split in ("train", "val", "test"))
        table.add_row(site, counts, *map(_percent, values))
    table.add_section()
    table.add_row("mean", "", *(_percent(fmean(column) if column else None) for column in columns))
    return table


def _notes(results: Results) -> list[str]:
    final, notes = results.final, []
    assert final is not None
    if final.personal and not final.fine_tuned:
        notes.append("Every site is scored with a model of its own.")
    if final.newcomers:
        notes.append(f"Had not trained by the best round: {', '.join(final.newcomers)}.")
    return [*notes, *([PHANTOM] if results.is_phantom else [])]


def _score(scores: FinalScores, site: str, split: str, metric: str) -> float | None:
    return scores.sites.get(site, {}).get(split, {}).get(metric)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
