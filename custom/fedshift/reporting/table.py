"""The table of a run for the terminal, made from its results alone."""

from __future__ import annotations

from statistics import fmean

from rich.table import Table

from fedshift.errors import ConfigError
from fedshift.reporting.results import FinalScores, Results

PHANTOM = "The data are the phantom: simulated scans, no patients."


def scores_table(results: Results, *, metric: str = "dice") -> Table:
    """A row a site: samples, the best model's validation and test score, the last model's test score.

    Scores are in percent; the last row is their mean over sites.

    Raises:
        ConfigError: the run did not end.
    """
    if results.final is None:
        raise ConfigError(f"job {results.job.name} has no final scores: the run did not end")
    best, last = results.final.best, results.final.last
    methods = " + ".join(method.name for method in results.job.methods)
    table = Table(
        title=f"{methods} on {results.job.task}, {metric} in percent",
        caption=phantom_line(results) or None,
        title_justify="left",
        caption_justify="left",
    )
    shown = ((best, "val", "validation"), (best, "test", "test"), (last, "test", "test"))
    table.add_column("site")
    table.add_column("samples\ntrain/val/test", justify="right")
    for scores, _, heading in shown:
        which = "last" if scores is last else "best"
        table.add_column(f"{heading}\n{which} model (round {scores.round})", justify="right")
    columns: list[list[float]] = [[] for _ in shown]
    for site, record in results.data.items():
        values = [_score(scores, site, split, metric) for scores, split, _ in shown]
        for column, value in zip(columns, values, strict=True):
            if value is not None:
                column.append(value)
        counts = "/".join(str(record.n.get(split, 0)) for split in ("train", "val", "test"))
        table.add_row(site, counts, *map(_percent, values))
    table.add_section()
    table.add_row("mean", "", *(_percent(fmean(column) if column else None) for column in columns))
    return table


def phantom_line(results: Results) -> str:
    """A sentence if any data are simulated, else nothing."""
    return PHANTOM if results.is_phantom else ""


def _score(scores: FinalScores, site: str, split: str, metric: str) -> float | None:
    return scores.sites.get(site, {}).get(split, {}).get(metric)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
