"""Models at sites that they were not trained at: the matrix of all sites, and every site held out in turn."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedshift.reporting.report import curves, findings, repeat, scores, setup, traffic
from fedshift.reporting.report.runs import Transfer
from fedshift.reporting.report.section import Block, Cell, Column, Row, Section, Table, Text
from fedshift.reporting.report.wording import listed, metric, ordered, short
from fedshift.schema.protocol_results import CrossSite, LeaveOneOut
from fedshift.schema.results import TRAINED_BEFORE, Metrics

_PARTS = ("all", "test")


def heading(given: Transfer) -> tuple[str, str]:
    """A chapter's key, which is also the command that made it, and its title."""
    if isinstance(given.record, CrossSite):
        return repeat.CROSS_SITE, "Cross-site"
    return "leave-one-out", "Leave one site out"


def sections(given: Transfer, pictures: Sequence[Section] = ()) -> list[Section]:
    """What to be careful about, the scores, then what a run's report says of data, settings and how to repeat it.

    ``pictures`` stand before the last.
    """
    record, run = given.record, given.run
    name, sites = metric(record.job.metric), len(run.results.data)
    has_rounds = bool(run.results.rounds)
    found: list[Section | None]
    if isinstance(record, CrossSite):
        own, elsewhere = (name.said(mean.get(record.job.metric)) for mean in (record.mean_own, record.mean_elsewhere))
        told = f"Own models of {sites} sites, mean test {name.word}: {own} at home, {elsewhere} elsewhere."
        found = [findings.of_many_models(run, told), cross_site(record)]
        found += [scores.per_site(run), curves.over_rounds(run), setup.data(run)]
    else:
        mean = name.said(record.mean["best"].get("all", {}).get(record.job.metric))
        before = record.job.trained_before(list(record.sites))
        but = f", but {listed(before)} {TRAINED_BEFORE}" if before else ""
        told = (
            f"{sites} sites held out in turn: mean {name.word} {mean} on all samples of a site that did not train{but}."
        )
        found = [findings.of_many_models(run, told), leave_one_out(record), setup.data(run, role="held out in turn")]
    found += [setup.what_was_run(run, has_rounds=has_rounds), traffic.cost(run), traffic.faults(run)]
    found += [*pictures, repeat.again(run, command=heading(given)[0])]
    return [section for section in found if section is not None]


def cross_site(record: CrossSite) -> Section:
    """A coloured table: where a model was trained, and where it is scored."""
    name = record.job.metric
    of = metric(name)
    found = [row[name] for by_site in record.scores.values() for row in by_site.values() if name in row]
    finite = [value for value in found if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)

    def cell(metrics: Metrics, *, own: bool) -> Cell:
        value = metrics.get(name)
        shade = None
        if value is not None and math.isfinite(value):
            shade = (value - low) / (high - low) if high > low else 1.0
            shade = shade if of.higher_is_better else 1 - shade
        return Cell(of.number(value), strong=own, shade=shade)

    rows: list[Row] = [
        [trained, *(cell(row.get(tested, {}), own=trained == tested) for tested in record.data)]
        for trained, row in record.scores.items()
    ]
    columns = [
        Column("Trained at", numeric=False),
        *(Column(short(site, 16), detail="tested here") for site in record.data),
    ]
    own, elsewhere = (of.said(mean.get(name)) for mean in (record.mean_own, record.mean_elsewhere))
    return Section(
        "cross-site",
        "Every site's own model at every site",
        "The stronger the colour the better; a row with colour in one cell only is a model that works at home, which "
        "is what feature shift "
        "looks like.",
        [
            Table(columns, rows, caption=f"Test {of.heading}; bold: at home"),
            Text(f"Mean at home {own}, elsewhere {elsewhere}."),
        ],
    )


def leave_one_out(record: LeaveOneOut) -> Section:
    """A row a site that was held out."""
    names = ordered(name for site in record.sites.values() for told in site.best.scores.values() for name in told)
    columns = [Column("Held out", numeric=False), Column("Samples")]
    columns += [Column(f"{which} model", detail=f"{part} samples") for which in ("best", "last") for part in _PARTS]
    blocks: list[Block] = []
    for name in names:
        of = metric(name)
        rows: list[Row] = []
        for site, told in record.sites.items():
            cells = [
                scores.score_cell(name, model.scores.get(part, {}), model.evaluations.get(part))
                for model in (told.best, told.last)
                for part in _PARTS
            ]
            rows.append([site, f"{sum(told.data.n.values()):,}", *cells])
        means = [mean.get(part, {}).get(name) for mean in (record.mean["best"], record.mean["last"]) for part in _PARTS]
        foot: Row = [Cell("mean", strong=True), "", *(Cell(of.number(value), strong=True) for value in means)]
        blocks.append(Table(columns, rows, [foot], caption=of.heading))
    return Section(
        "leave-one-out",
        "Every site held out in turn",
        "What a hospital that takes no part can expect of the model: each row is scored by a model that the other "
        "sites trained. In brackets the 95 % interval over other cases of the same site (bootstrap), "
        f"from {scores.FEWEST_FOR_INTERVAL} cases on.",
        blocks,
    )
