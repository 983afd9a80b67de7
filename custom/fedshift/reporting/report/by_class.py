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
    by_class: dict[str, dict[str, ClassScores]] = {}
    for site in run.results.data:
        part = "all" if site in run.results.job.held_out else "test"
        result = evaluation(final.best, site, part)
        for name, class_scores in (result.classes if result is not None and result.classes else {}).items():
            by_class.setdefault(name, {})[site] = class_scores
    if not by_class:
        return None
    by_threshold = any(
        class_scores.threshold is not None for sites in by_class.values() for class_scores in sites.values()
    )
    thresholds = paragraph("classes_thresholds", specificity=_specificity(run), by_threshold=by_threshold)
    blocks = section_blocks(by_class, thresholds=thresholds)
    comparison = _against_local(run)
    if comparison is not None:
        blocks += [Heading("Beside the sites' own models"), paragraph("delong"), comparison]
    return Section("classes", "Scores by class", paragraph("classes_how"), blocks)


def section_blocks(by_class: ByClass, *, thresholds: Text | None = None) -> list[Block]:
    """Tables and figures of what sites tell of each class; of one site in one table."""
    of_sites = dict.fromkeys(site for sites in by_class.values() for site in sites)
    blocks: list[Block]
    if len(of_sites) == 1:
        blocks = [
            _table("Class", {name: class_scores for name, sites in by_class.items() for class_scores in sites.values()})
        ]
    else:
        blocks = [_table("Site", sites, caption=name) for name, sites in by_class.items()]
        blocks += [Heading("All sites together"), paragraph("classes_pooled"), _pooled(by_class)]
    blocks += [] if thresholds is None else [thresholds]
    if unscored := sorted(
        name for name, sites in by_class.items() if not any(class_scores.scores for class_scores in sites.values())
    ):
        blocks.append(paragraph("classes_of_one_kind", classes=unscored))
    curves = [
        _roc(name, sites)
        for name, sites in by_class.items()
        if any(class_scores.roc for class_scores in sites.values())
    ]
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
    for name, class_scores in rows_of.items():
        cells: list[Cell | str] = [name, f"{class_scores.positives:,} / {class_scores.negatives:,}"]
        cells += [
            Cell(
                metric(score).number(class_scores.scores.get(score)),
                interval(metric(score), class_scores.intervals.get(score)),
            )
            for score in OF_CLASSES
        ]
        rows.append([*cells, _threshold(class_scores)])
    return Table(columns, rows, caption=caption)


def _threshold(class_scores: ClassScores) -> Cell:
    if class_scores.threshold is None:
        return Cell("–", "most likely")
    return Cell(f"{class_scores.threshold:.3g}", "" if class_scores.chosen else "not chosen")


def _pooled(by_class: ByClass) -> Table:
    columns = [Column("Class", numeric=False), Column("Sites"), Column("With it"), Column("Without")]
    columns += [Column(metric(score).heading) for score in ("auroc", "f1", "balanced_accuracy")]
    rows: list[Row] = []
    for name, sites in by_class.items():
        pooled: Pooled = pool(sites.values())
        counts = [f"{pooled.sites} of {pooled.all_sites}", f"{pooled.positives:,}", f"{pooled.negatives:,}"]
        values = ((score, getattr(pooled, score)) for score in ("auroc", "f1", "balanced_accuracy"))
        rows.append([name, *counts, *(metric(score).number(value) for score, value in values)])
    return Table(columns, rows)


def _roc(name: str, sites: Mapping[str, ClassScores]) -> Figure:
    with figures.drawing(width=300, height=270) as (drawn, (axes,)):
        axes.plot([0, 100], [0, 100], color=figures.FAINT, linewidth=1)
        areas: list[str] = []
        for number, (site, class_scores) in enumerate(list(sites.items())[:MOST_SITES]):
            if class_scores.roc is None:
                continue
            wrong, right = zip(*class_scores.roc, strict=True)
            axes.plot(
                [100 * value for value in wrong],
                [100 * value for value in right],
                color=figures.colour(number),
                linestyle=figures.dashes(number),
            )
            area = metric("auroc").with_unit(class_scores.scores.get("auroc"))
            areas.append(f"{short(site)} {area} of {class_scores.positives} with and {class_scores.negatives} without")
        axes.set_xlim(-1, 101)
        axes.set_ylim(-1, 101)
        axes.set_xlabel("100 - specificity (%)")
        axes.set_ylabel("sensitivity (%)")
        described = f"ROC curves of {short(name)}: area {'; '.join(areas)}"
        return figures.figure(drawn, f"roc-{name}", title=short(name), description=described)


def _against_local(run: Run) -> Table | None:
    """The areas of the federated and the sites' own models, with DeLong's p."""
    final = run.results.final
    assert final is not None
    rows: list[Row] = []
    area = metric("auroc")
    for site, comparison in final.against_local.items():
        for name, pair in comparison.classes.items():
            p = "–" if pair.p is None else f"{pair.p:.3f}" if pair.p >= 0.001 else "< 0.001"
            rows.append(
                [
                    site,
                    name,
                    f"{pair.positives:,}",
                    f"{pair.negatives:,}",
                    area.number(pair.federated),
                    area.number(pair.local),
                    area.difference(pair.federated - pair.local),
                    Cell(p, strong=pair.p is not None and pair.p < SIGNIFICANT),
                ]
            )
    if not rows:
        return None
    headings: Sequence[str] = ("With it", "Without", f"{area.heading}, federated", "Own model", "Difference", "p")
    columns = [Column("Site", numeric=False), Column("Class", numeric=False), *map(Column, headings)]
    return Table(columns, rows)
