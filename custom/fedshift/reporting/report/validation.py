"""Finished models that sites have scored on their own cases (``fedshift job --evaluate``)."""

from __future__ import annotations

from collections.abc import Iterator

from fedshift.reporting.report.section import (
    Block,
    Cell,
    Column,
    Facts,
    Finding,
    Findings,
    Heading,
    Row,
    Section,
    Table,
    Text,
    Tone,
    finding,
    paragraph,
)
from fedshift.reporting.report.summary import KINDS
from fedshift.reporting.report.validation_areas import section as areas
from fedshift.reporting.report.wording import Metric, counted, interval, listed, metric, ordered, say
from fedshift.schema.evaluation import Distribution
from fedshift.schema.validation import PooledDifference, Validation

TITLE = "Validation"


def about(record: Validation) -> str:
    """What was asked."""
    spec = record.spec
    return f"{counted(len(spec.models), 'model')} on {spec.dataset} at {counted(len(record.sites), 'site')}"


def sections(record: Validation) -> list[Section]:
    """Summary with cautions, scores by site, differences to the first model, areas by class, strata, what was asked."""
    parts = [_summary(record)]
    if record.sites:
        parts.append(_scores(record))
    if any(pooled.against_first for pooled in record.pooled.values()):
        parts.append(_differences(record))
    of_classes = areas(record)
    if of_classes is not None:
        parts.append(of_classes)
    if any(pooled.strata for pooled in record.pooled.values()):
        parts.append(_strata(record))
    return [*parts, _asked(record)]


# --- the summary ----------------------------------------------------------------------------------------


def _summary(record: Validation) -> Section:
    return Section(
        "summary", "Summary", "Read this first; the tables below contain the numbers.", [Findings([*_findings(record)])]
    )


def _findings(record: Validation) -> Iterator[Finding]:
    name, m = record.metric, metric(record.metric)
    for model, pooled in record.pooled.items():
        whole = pooled.scores.get(name)
        if whole is None:
            yield finding("caution", "validation_not_scored", model=model)
        else:
            yield finding("result", "validation_mean", m=m, model=model, pooled=whole, part=record.spec.part)
    for model, pooled in record.pooled.items():
        against = pooled.against_first.get(name)
        if against is not None:
            facts = {"m": m, "model": model, "first": record.spec.first, "pooled": against}
            yield finding(_tone(m, against), "validation_difference", **facts)
    for model, about in record.models.items():
        if about.seen_at:
            yield finding("caution", "validation_seen", model=model, sites=about.seen_at)
        if about.adapted_on:
            yield finding("caution", "validation_adapted", model=model, cases=about.adapted_on)
    if record.is_phantom:
        yield finding("caution", "validation_phantom")
    for site, reason in record.refused.items():
        yield finding("caution", "validation_refused", site=site, reason=reason)
    for site, answer in record.sites.items():
        for model, reason in answer.refused.items():
            yield finding("caution", "validation_model_refused", site=site, model=model, reason=reason)
    noisy = [site for site, answer in record.sites.items() if answer.noise is not None]
    if noisy:
        yield finding("caution", "validation_noise", sites=noisy)
    unknown = [site for site, answer in record.sites.items() if answer.unknown_spacing]
    if unknown:
        yield finding("caution", "validation_spacing", sites=unknown)
    for site, answer in record.sites.items():
        for what, reason in answer.withheld.items():
            yield finding("note", "validation_withheld", site=site, what=what, reason=reason)


def _tone(m: Metric, pooled: PooledDifference) -> Tone:
    low, high = pooled.interval or (0.0, 0.0)
    better = low > 0 if m.higher_is_better else high < 0
    return "good" if better else "result"


# --- the tables -----------------------------------------------------------------------------------------


def _scores(record: Validation) -> Section:
    blocks: list[Block] = []
    for name in _names(record):
        m = metric(name)
        rows: list[Row] = []
        for site, answer in record.sites.items():
            models = map(answer.models.get, _models(record))
            spreads = [None if scores is None else scores.scores.get(name) for scores in models]
            if any(spreads):
                rows.append([site, _n(spreads), *(_cell(m, spread) for spread in spreads)])
        if not rows:
            continue
        pooled = [record.pooled[model].scores.get(name) for model in _models(record)]
        n = max((each.n for each in pooled if each is not None), default=0)
        foot: list[Row] = [
            [
                Cell("all cases", strong=True),
                f"{n:,}",
                *(Cell(m.number(None if each is None else each.mean), strong=True) for each in pooled),
            ],
            ["mean of sites", "", *(m.number(None if each is None else each.of_sites) for each in pooled)],
        ]
        columns = [Column("Site", numeric=False), Column("Cases"), *map(Column, _models(record))]
        blocks.append(Table(columns, rows, foot, caption=m.heading))
    return Section("scores", "Scores by site", paragraph("validation_scores_how"), blocks)


def _differences(record: Validation) -> Section:
    others = [model for model in _models(record) if record.pooled[model].against_first]
    blocks: list[Block] = []
    for name in ordered({name for model in others for name in record.pooled[model].against_first}):
        m = metric(name)
        rows: list[Row] = []
        for site, answer in record.sites.items():
            cells = []
            for scores in map(answer.models.get, others):
                paired = None if scores is None else scores.against_first.get(name)
                if paired is None:
                    cells.append(Cell("–"))
                    continue
                p = "" if paired.p is None else f" p {paired.p:.2g}"
                bounds = m.points_interval(paired.difference.interval)
                cells.append(Cell(m.difference(paired.difference.mean), detail=f"{bounds}{p}".strip()))
            rows.append([site, *cells])
        pooled = [record.pooled[model].against_first.get(name) for model in others]
        effects = [
            Cell("–")
            if each is None or each.effect is None
            else Cell(m.difference(each.effect), detail=m.points_interval(each.interval), strong=True)
            for each in pooled
        ]
        means = [Cell("–" if each is None else m.difference(each.mean)) for each in pooled]
        columns = [Column("Site", numeric=False), *(Column(model) for model in others)]
        foot: list[Row] = [[Cell("random effects", strong=True), *effects], ["mean of all cases", *means]]
        blocks.append(Table(columns, rows, foot, caption=f"{m.heading}, less that of {record.spec.first}"))
    return Section("against", f"Against {record.spec.first}", paragraph("validation_differences_how"), blocks)


def _strata(record: Validation) -> Section:
    blocks: list[Block] = []
    name, m = record.metric, metric(record.metric)
    for column in dict.fromkeys(column for pooled in record.pooled.values() for column in pooled.strata):
        rows: list[Row] = []
        values = sorted({value for pooled in record.pooled.values() for value in pooled.strata.get(column, {})})
        for value in values:
            over = [record.pooled[model].strata.get(column, {}).get(value, {}).get(name) for model in _models(record)]
            n, sites = (max((getattr(each, key) for each in over if each), default=0) for key in ("n", "sites"))
            means = (Cell(m.number(None if each is None else each.mean), strong=True) for each in over)
            rows.append([Cell(value, strong=True), counted(sites, "site"), f"{n:,}", *means])
            for site, answer in record.sites.items():
                spreads = [
                    None if scores is None else scores.strata.get(column, {}).get(value, {}).get(name)
                    for scores in map(answer.models.get, _models(record))
                ]
                if any(spreads) and sites > 1:
                    rows.append(["", site, _n(spreads), *(_cell(m, spread) for spread in spreads)])
        columns = [Column(column, numeric=False), Column("Site", numeric=False), Column("Cases")]
        blocks += [Heading(column), Table([*columns, *map(Column, _models(record))], rows, caption=m.heading)]
    return Section("strata", "By group", paragraph("validation_strata_how"), blocks)


def _asked(record: Validation) -> Section:
    spec, blocks = record.spec, list[Block]()
    facts = [
        ("Data set", spec.dataset),
        ("Task", spec.task),
        ("Cases", say("validation_part", part=spec.part)),
        ("Structures", ", ".join(record.classes)),
        ("Asked", listed(spec.sites, most=20)),
        ("Statistics", spec.statistics or "the models' own"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in record.versions.items())),
    ]
    blocks.append(Facts(facts))
    for name, model in record.models.items():
        blocks += [
            Heading(name),
            Facts(
                [
                    ("File", model.file),
                    ("SHA-256 of the file", model.file_sha256),
                    ("Task", model.task),
                    ("Methods", " + ".join(model.methods) or "–"),
                    ("Round", "–" if model.round is None else str(model.round)),
                    ("Trained at", listed(model.sites) or "not known"),
                    ("Trained on", KINDS.get(model.kind, "not known")),
                ]
            ),
        ]
    return Section("asked", "What was asked", Text("The models, and on which cases they were scored."), blocks)


def _models(record: Validation) -> list[str]:
    return [model.name for model in record.spec.models]


def _names(record: Validation) -> list[str]:
    """Scores, the one that models are compared by first."""
    names = ordered({name for pooled in record.pooled.values() for name in pooled.scores})
    return sorted(names, key=lambda name: name != record.metric)


def _n(spreads: list[Distribution | None]) -> str:
    return f"{next(spread.n for spread in spreads if spread is not None):,}"


def _cell(m: Metric, spread: Distribution | None) -> Cell:
    return Cell("–") if spread is None else Cell(m.number(spread.mean), detail=interval(m, spread.interval))
