"""What sites tell of each class of a classifier: how many cases have it, its scores, ROC and reliability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedshift.reporting import figures
from fedshift.reporting.figures import Figure
from fedshift.reporting.known_scores import OF_CLASSES
from fedshift.reporting.pooled import Pooled, pool
from fedshift.reporting.report.runs import Run, evaluation
from fedshift.reporting.report.section import (
    Block,
    Cell,
    Column,
    Figures,
    Heading,
    Row,
    Section,
    Table,
    Text,
    paragraph,
)
from fedshift.reporting.report.wording import interval, metric, short
from fedshift.schema.evaluation import ClassScores
from fedshift.schema.paired import SIGNIFICANT

MOST_CLASSES = 30
"""Of figures."""
MOST_SITES = 8
"""Curves of a figure."""
ByClass = Mapping[str, Mapping[str, ClassScores]]
"""Class -> site -> what the site tells of it."""


def of_run(run: Run) -> Section | None:
    """The section; None if no site tells of classes."""
    final = run.results.final
    if final is None:
        return None
    told: dict[str, dict[str, ClassScores]] = {}
    for site in run.results.data:
        part = "all" if site in run.results.job.held_out else "test"
        result = evaluation(final.best, site, part)
        for name, one in (result.classes if result is not None and result.classes else {}).items():
            told.setdefault(name, {})[site] = one
    if not told:
        return None
    by_threshold = any(one.threshold is not None for sites in told.values() for one in sites.values())
    thresholds = paragraph("classes_thresholds", specificity=_specificity(run), by_threshold=by_threshold)
    blocks = section_blocks(told, thresholds=thresholds)
    comparison = _against_local(run)
    if comparison is not None:
        blocks += [Heading("Beside the sites' own models"), paragraph("delong"), comparison]
    return Section("classes", "Scores by class", paragraph("classes_how"), blocks)


def section_blocks(told: ByClass, *, thresholds: Text | None = None) -> list[Block]:
    """Tables and figures of what sites tell of each class; of one site in one table."""
    of_sites = dict.fromkeys(site for sites in told.values() for site in sites)
    blocks: list[Block]
    if len(of_sites) == 1:
        blocks = [_table("Class", {name: one for name, sites in told.items() for one in sites.values()})]
    else:
        blocks = [_table("Site", sites, caption=name) for name, sites in told.items()]
        blocks += [Heading("All sites together"), paragraph("classes_pooled"), _pooled(told)]
    blocks += [] if thresholds is None else [thresholds]
    if unscored := sorted(name for name, sites in told.items() if not any(one.scores for one in sites.values())):
        blocks.append(paragraph("classes_of_one_kind", classes=unscored))
    curves = [_roc(name, sites) for name, sites in told.items() if any(one.roc for one in sites.values())]
    if curves:
        names = [short(name, 16) for name in of_sites][:MOST_SITES]
        legend = figures.legend(names) if len(of_sites) > 1 else ()
        blocks += [
            Heading("ROC"),
            paragraph("classes_roc", several=len(of_sites) > 1),
            Figures(curves[:MOST_CLASSES], legend, size="third"),
        ]
    return blocks


def _specificity(run: Run) -> str:
    settings = run.results.job.settings.get("evaluation", {})
    return f"{100 * float(settings.get('specificity', 0.9)):g} %"


def _table(what: str, rows_of: Mapping[str, ClassScores], *, caption: str = "") -> Table:
    """A row for each site, or for each class of one site."""
    columns = [Column(what, numeric=False), Column("Cases", detail="with / without")]
    columns += [Column(metric(score).heading) for score in OF_CLASSES] + [Column("Threshold")]
    rows: list[Row] = []
    for name, one in rows_of.items():
        cells: list[Cell | str] = [name, f"{one.positives:,} / {one.negatives:,}"]
        cells += [
            Cell(metric(score).number(one.scores.get(score)), interval(metric(score), one.intervals.get(score)))
            for score in OF_CLASSES
        ]
        rows.append([*cells, _threshold(one)])
    return Table(columns, rows, caption=caption)


def _threshold(one: ClassScores) -> Cell:
    if one.threshold is None:
        return Cell("–", "most likely")
    return Cell(f"{one.threshold:.3g}", "" if one.chosen else "not chosen")


def _pooled(told: ByClass) -> Table:
    columns = [Column("Class", numeric=False), Column("Sites"), Column("With it"), Column("Without")]
    columns += [Column(metric(score).heading) for score in ("auroc", "f1", "balanced_accuracy")]
    rows: list[Row] = []
    for name, sites in told.items():
        one: Pooled = pool(sites.values())
        counts = [f"{one.sites} of {one.of}", f"{one.positives:,}", f"{one.negatives:,}"]
        values = ((score, getattr(one, score)) for score in ("auroc", "f1", "balanced_accuracy"))
        rows.append([name, *counts, *(metric(score).number(value) for score, value in values)])
    return Table(columns, rows)


def _roc(name: str, sites: Mapping[str, ClassScores]) -> Figure:
    with figures.drawing(width=300, height=270) as (drawn, (axes,)):
        axes.plot([0, 100], [0, 100], color=figures.FAINT, linewidth=1)
        said: list[str] = []
        for number, (site, one) in enumerate(list(sites.items())[:MOST_SITES]):
            if one.roc is None:
                continue
            wrong, right = zip(*one.roc, strict=True)
            axes.plot(
                [100 * value for value in wrong],
                [100 * value for value in right],
                color=figures.colour(number),
                linestyle=figures.dashes(number),
            )
            area = metric("auroc").with_unit(one.scores.get("auroc"))
            said.append(f"{short(site)} {area} of {one.positives} with and {one.negatives} without")
        axes.set_xlim(-1, 101)
        axes.set_ylim(-1, 101)
        axes.set_xlabel("100 - specificity (%)")
        axes.set_ylabel("sensitivity (%)")
        described = f"ROC curves of {short(name)}: area {'; '.join(said)}"
        return figures.figure(drawn, f"roc-{name}", title=short(name), description=described)


def _against_local(run: Run) -> Table | None:
    """The areas of the federated and the sites' own models, with DeLong's p."""
    final = run.results.final
    assert final is not None
    rows: list[Row] = []
    area = metric("auroc")
    for site, comparison in final.against_local.items():
        for name, one in comparison.classes.items():
            p = "–" if one.p is None else f"{one.p:.3f}" if one.p >= 0.001 else "< 0.001"
            rows.append(
                [
                    site,
                    name,
                    f"{one.positives:,}",
                    f"{one.negatives:,}",
                    area.number(one.federated),
                    area.number(one.local),
                    area.difference(one.federated - one.local),
                    Cell(p, strong=one.p is not None and one.p < SIGNIFICANT),
                ]
            )
    if not rows:
        return None
    headings: Sequence[str] = ("With it", "Without", f"{area.heading}, federated", "Own model", "Difference", "p")
    columns = [Column("Site", numeric=False), Column("Class", numeric=False), *map(Column, headings)]
    return Table(columns, rows)
