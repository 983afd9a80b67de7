"""How finished classifiers rank cases, by class: areas under the ROC curve of a validation, and their differences."""

from __future__ import annotations

from collections.abc import Iterator

from fedshift.reporting.report.section import Block, Cell, Column, Row, Section, Table, paragraph
from fedshift.reporting.report.wording import Metric, counted, interval, metric
from fedshift.schema.validation import ClassArea, PooledArea, Validation

Z = 1.959964
"""Of 95 % of a normal distribution."""


def section(record: Validation) -> Section | None:
    """A table of each class; None if no site tells of one."""
    m, models = metric("auroc"), [model.name for model in record.spec.models]
    others = models[1:] if any(area.against_first for area in _pooled(record)) else []
    columns = [Column("Site", numeric=False), Column("With it"), Column("Without"), *map(Column, models)]
    columns += [Column(f"{model} less {models[0]}") for model in others]
    blocks: list[Block] = []
    for name in record.classes:
        rows = [*_sites(record, name, m, models, others)]
        if rows:
            foot = _foot(record, name, m, models, others)
            blocks.append(Table(columns, rows, foot, caption=f"{m.heading}, {name}"))
    return Section("ranking", "By class", paragraph("validation_areas_how"), blocks) if blocks else None


def _pooled(record: Validation) -> Iterator[PooledArea]:
    for pooled in record.pooled.values():
        yield from pooled.areas.values()


def _sites(record: Validation, name: str, m: Metric, models: list[str], others: list[str]) -> Iterator[Row]:
    for site, answer in record.sites.items():
        areas = {model: scores.areas[name] for model, scores in answer.models.items() if name in scores.areas}
        if not areas:
            continue
        support = next(iter(areas.values()))
        cells = [_area(m, areas.get(model)) for model in models]
        yield [
            site,
            f"{support.positives:,}",
            f"{support.negatives:,}",
            *cells,
            *(_less(m, areas.get(o)) for o in others),
        ]


def _area(m: Metric, area: ClassArea | None) -> Cell:
    if area is None:
        return Cell("–")
    bounds = None
    if area.error:
        bounds = max(0.0, area.area - Z * area.error), min(1.0, area.area + Z * area.error)
    return Cell(m.number(area.area), detail=interval(m, bounds))


def _less(m: Metric, area: ClassArea | None) -> Cell:
    less = None if area is None else area.against_first
    if less is None:
        return Cell("–")
    bounds = None if less.error is None else (less.difference - Z * less.error, less.difference + Z * less.error)
    p = "" if less.p is None else f" p {less.p:.2g}"
    return Cell(m.difference(less.difference), detail=f"{m.points_interval(bounds)}{p}".strip())


def _foot(record: Validation, name: str, m: Metric, models: list[str], others: list[str]) -> list[Row]:
    by_model = {model: record.pooled[model].areas.get(name) for model in models}
    support = next(area for area in by_model.values() if area is not None)
    areas = [Cell(m.number(None if area is None else area.mean), strong=True) for area in by_model.values()]
    against = [None if (area := by_model[model]) is None else area.against_first for model in others]
    less = [Cell("–") if each is None else Cell(m.difference(each.mean)) for each in against]
    foot: list[Row] = [
        [Cell("pairs within sites", strong=True), f"{support.positives:,}", f"{support.negatives:,}", *areas, *less]
    ]
    effects = [
        Cell("–")
        if each is None or each.effect is None
        else Cell(m.difference(each.effect), detail=m.points_interval(each.interval), strong=True)
        for each in against
    ]
    sites = [Cell(m.number(None if area is None else area.of_sites)) for area in by_model.values()]
    sites_told = counted(support.sites, "site")
    return [*foot, [f"mean of {sites_told}; differences by random effects", "", "", *sites, *effects]]
