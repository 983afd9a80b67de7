"""Terminal tables of leave-one-site-out and cross-site runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from fedshift.reporting.table import PHANTOM_NOTE, counting, counts, departure_notes, lineage_notes, scored_on, title_of
from fedshift.schema.protocol_results import CrossSite, LeaveOneOut, mean_metrics
from fedshift.schema.results import DataRecord, Metrics


def leave_one_out_table(record: LeaveOneOut) -> Table:
    """One row per held-out site: scores of the other sites' best and last model on all cases and on the test part."""
    notes = lineage_notes(record.job, list(record.sites))
    table = _table(record, "each site held out in turn", [site.data for site in record.sites.values()], notes)
    table.add_column("held out")
    data = [site.data for site in record.sites.values()]
    table.add_column(counting(data), justify="right")
    for which in ("best", "last"):
        for part in ("all", "test"):
            table.add_column(f"{which} model\n{part} {scored_on(data)}", justify="right")
    metric = record.job.metric
    for name, site in record.sites.items():
        metrics_of_cells = [model.scores.get(part, {}) for model in (site.best, site.last) for part in ("all", "test")]
        table.add_row(
            name, str(sum(counts(site.data).values())), *(_percent(metrics, metric) for metrics in metrics_of_cells)
        )
    table.add_section()
    means = [record.mean[which].get(part, {}) for which in ("best", "last") for part in ("all", "test")]
    table.add_row("mean", "", *(_percent(metrics, metric) for metrics in means))
    return table


def best_unseen_round(record: LeaveOneOut) -> str:
    """A sentence: the round that is best at sites that took no part, beside the last one and each run's own choice."""
    means, chosen = record.by_round, record.chosen_round
    assert chosen is not None
    last = max(means)
    return (
        f"round {chosen} is the best at sites that took no part: mean validation {record.job.metric} "
        f"{100 * means[chosen]:.1f} over {len(record.sites)} sites held out (round {last}, the last: "
        f"{100 * means[last]:.1f}; rounds chosen by the sites that train: {100 * record.by_own_choice:.1f})"
    )


def cross_site_table(record: CrossSite) -> Table:
    """Scores of every site's own model (rows) on every site's test part (columns), then own site and mean elsewhere."""
    table = _table(record, "every site's own model", record.data.values())
    table.add_column("trained at")
    for name in record.data:
        table.add_column(f"tested at\n{name}", justify="right")
    table.add_column("own\nsite", justify="right")
    table.add_column("mean\nelsewhere", justify="right")
    metric = record.job.metric
    for name, row in record.scores.items():
        elsewhere = mean_metrics(metrics for site, metrics in row.items() if site != name)
        shown = [*(row.get(site, {}) for site in record.data), row.get(name, {}), elsewhere]
        table.add_row(name, *(_percent(metrics, metric) for metrics in shown))
    table.add_section()
    means = [_percent(metrics, metric) for metrics in (record.mean_at_home, record.mean_elsewhere)]
    table.add_row("mean", *[""] * len(record.data), *means)
    return table


def _table(record: LeaveOneOut | CrossSite, what: str, data: Iterable[DataRecord], more: Sequence[str] = ()) -> Table:
    """An empty table with its title, and notes below; ``more`` are further notes."""
    job = record.job
    phantom = any(site.kind == "phantom" for site in data)
    notes = [
        f"Initial weights: {job.initial_weights}.",
        *departure_notes(job),
        *more,
        *([PHANTOM_NOTE] if phantom else []),
    ]
    methods = " + ".join(method.name for method in job.methods)
    return Table(
        title=title_of(f"{methods} on {job.task}, {what}, {job.metric} in percent", phantom=phantom),
        caption="\n".join(notes),
        title_justify="left",
        caption_justify="left",
    )


def _percent(metrics: Metrics, name: str) -> str:
    return f"{100 * metrics[name]:.1f}" if name in metrics else "-"
