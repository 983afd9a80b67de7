"""Models evaluated at sites where they were not trained: cross-site and leave-one-site-out records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedshift.reporting.report import curves, repeat, scores, setup, summary, traffic
from fedshift.reporting.report.runs import Transfer
from fedshift.reporting.report.section import (
    Block,
    Cell,
    Column,
    Heading,
    Row,
    Section,
    Table,
    Text,
    finding,
    paragraph,
)
from fedshift.reporting.report.wording import metric, ordered, printed, short
from fedshift.reporting.table import counting, counts, scored_on
from fedshift.schema.protocol_results import CrossSite, LeaveOneOut
from fedshift.schema.results import TRAINED_BEFORE, Metrics

_PARTS = ("all", "test")


def heading(transfer: Transfer) -> tuple[str, str]:
    """The chapter's key, which is also the command that made the record, and its title."""
    if isinstance(transfer.record, CrossSite):
        return repeat.CROSS_SITE, "Cross-site"
    return "leave-one-out", "Leave one site out"


def sections(transfer: Transfer, pictures: Sequence[Section] = ()) -> list[Section]:
    """Summary with cautions, scores, data, settings, and the commands that repeat the record.

    ``pictures`` are inserted before the commands.
    """
    record, run = transfer.record, transfer.run
    name, sites = metric(record.job.metric), len(run.results.data)
    has_rounds = bool(run.results.rounds)
    parts: list[Section | None]
    if isinstance(record, CrossSite):
        own_mean, elsewhere = (mean.get(record.job.metric) for mean in (record.mean_at_home, record.mean_elsewhere))
        result = finding("result", "cross_site_means", m=name, sites=sites, own=own_mean, elsewhere=elsewhere)
        parts = [summary.multi_model_summary(run, result), cross_site(record)]
        parts += [scores.per_site(run), curves.over_rounds(run), setup.data(run)]
    else:
        mean = record.mean["best"].get("all", {}).get(record.job.metric)
        before = record.job.trained_before(list(record.sites))
        facts = {"mean": mean, "counted": run.counted, "before": before, "trained": TRAINED_BEFORE}
        result = finding("result", "held_out_in_turn", m=name, sites=sites, **facts)
        parts = [
            summary.multi_model_summary(run, result),
            leave_one_out(record),
            setup.data(run, role="held out in turn"),
        ]
    parts += [setup.what_was_run(run, has_rounds=has_rounds), traffic.cost(run), traffic.faults(run)]
    parts += [*pictures, repeat.repeat_section(run, command=heading(transfer)[0])]
    return [section for section in parts if section is not None]


def cross_site(record: CrossSite) -> Section:
    """A coloured table: rows are training sites, columns are test sites."""
    name = record.job.metric
    m = metric(name)
    values = [row[name] for by_site in record.scores.values() for row in by_site.values() if name in row]
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)

    def cell(metrics: Metrics, *, at_home: bool) -> Cell:
        value = metrics.get(name)
        shade = None
        if value is not None and math.isfinite(value):
            shade = (value - low) / (high - low) if high > low else 1.0
            shade = shade if m.higher_is_better else 1 - shade
        return Cell(m.number(value), strong=at_home, shade=shade)

    rows: list[Row] = [
        [trained, *(cell(row.get(tested, {}), at_home=trained == tested) for tested in record.data)]
        for trained, row in record.scores.items()
    ]
    columns = [
        Column("Trained at", numeric=False),
        *(Column(short(site, 16), detail="tested here") for site in record.data),
    ]
    at_home, elsewhere = (m.with_unit(mean.get(name)) for mean in (record.mean_at_home, record.mean_elsewhere))
    return Section(
        "cross-site",
        "Every site's own model at every site",
        "Stronger colour is better. A row with colour in only one cell is a model that works only at its own site: the "
        "effect of feature shift.",
        [
            Table(columns, rows, caption=f"Test {m.heading}; bold: own site"),
            paragraph("own_and_elsewhere", own=at_home, elsewhere=elsewhere),
        ],
    )


def leave_one_out(record: LeaveOneOut) -> Section:
    """One row per held-out site, one table per score."""
    data = [site.data for site in record.sites.values()]
    names = ordered(name for site in record.sites.values() for part in site.best.scores.values() for name in part)
    columns = [Column("Held out", numeric=False), Column(counting(data).capitalize())]
    columns += [
        Column(f"{which} model", detail=f"{part} {scored_on(data)}") for which in ("best", "last") for part in _PARTS
    ]
    blocks: list[Block] = []
    intervals = False
    for name in [*(name for name in names if not printed(name)), *filter(printed, names)]:
        m = metric(name)
        if printed(name):
            blocks += [Heading(scores.PRINTED_HEADING), paragraph("papers_only")]
        rows: list[Row] = []
        for site, site_record in record.sites.items():
            cells = [
                scores.score_cell(name, model.scores.get(part, {}), model.evaluations.get(part))
                for model in (site_record.best, site_record.last)
                for part in _PARTS
            ]
            intervals = intervals or scores.shows_interval(cells)
            rows.append([site, f"{sum(counts(site_record.data).values()):,}", *cells])
        means = [mean.get(part, {}).get(name) for mean in (record.mean["best"], record.mean["last"]) for part in _PARTS]
        foot: Row = [Cell("mean", strong=True), "", *(Cell(m.number(value), strong=True) for value in means)]
        blocks.append(Table(columns, rows, [foot], caption=m.heading))
    if record.chosen_round is not None:
        blocks.append(_best_unseen_round(record, record.chosen_round))
    return Section(
        "leave-one-out",
        "Every site held out in turn",
        paragraph("held_out_how", brackets=intervals, fewest=scores.MIN_CASES_FOR_INTERVAL),
        blocks,
    )


def _best_unseen_round(record: LeaveOneOut, chosen: int) -> Text:
    """The round that is best where nobody trained."""
    means = record.by_round
    facts = {"round": chosen, "mean": means[chosen], "last": max(means), "last_mean": means[max(means)]}
    m, sites = metric(record.job.metric), len(record.sites)
    return paragraph("unseen_round", m=m, sites=sites, own=record.by_own_choice, **facts)
