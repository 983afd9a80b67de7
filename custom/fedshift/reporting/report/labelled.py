"""A model file scored on scans with masks (``fedshift evaluate``)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from fedshift.reporting import false_positives
from fedshift.reporting.report import distributions, scored_model, scores, summary
from fedshift.reporting.report.section import (
    Cell,
    Column,
    Facts,
    Figures,
    Finding,
    Findings,
    Row,
    Section,
    Table,
    finding,
    paragraph,
)
from fedshift.reporting.report.wording import listed, metric, ordered
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.protocol_results import LabelledScans

TITLE = "Evaluation on labelled scans"
MOST_CLASSES = 8
"""With more classes the table of cases has only the means over classes."""


def about(record: LabelledScans) -> str:
    """The model, and on how many cases it was scored."""
    return scored_model.about(record, _cases(record))


def sections(record: LabelledScans) -> list[Section]:
    """Summary with cautions, what was evaluated, scores of each class, cases, and the settings of the training."""
    parts = [_summary(record), _about(record)]
    if record.cases:
        parts += [_scores(record), _distributions(record), _each_case(record)]
    return [*parts, scored_model.how_it_was_trained(record)]


def _summary(record: LabelledScans) -> Section:
    return Section(
        "summary", "Summary", "Read this first; the tables below contain the numbers.", [Findings([*_findings(record)])]
    )


def _findings(record: LabelledScans) -> Iterator[Finding]:
    n = len(record.cases)
    yield _result(record) if n else finding("result", "nothing_scored", cases=len(record.not_scored))
    if record.is_phantom:
        yield finding("caution", "simulated_training")
    for model, cases in record.adapted.items():
        yield finding("caution", "labelled_adapted", model=model, cases=cases)
    if 0 < n < summary.MIN_CASES:
        yield finding("caution", "few_labelled_cases", least=summary.MIN_CASES)
    for name, sides in record.one_sided.items():
        yield finding("caution", "labelled_class_in_one_mask", name=name, sides=sides, cases=n)
    for sentence in false_positives.sentences(_evaluation(record)):
        yield finding("note", "labelled_cases_without", sentence=sentence)
    if record.without_spacing:
        yield finding("caution", "labelled_without_spacing", cases=record.without_spacing)
    if n and record.not_scored:
        yield finding("caution", "not_scored", cases=record.not_scored)
    yield finding("note", "patients_unknown")


def _result(record: LabelledScans) -> Finding:
    m, dice, cases = metric("dice"), record.scores.get("dice"), _cases(record)
    if dice is None:
        return finding("result", "no_dice", m=m, cases=cases, classes=record.classes)
    interval = scores.score_cell("dice", {}, _evaluation(record)).detail
    among = None if dice.n == len(record.cases) else dice.n
    facts = {"classes": len(record.classes), "mean": dice.mean, "interval": interval}
    return finding("result", "mean_dice", m=m, among=among, cases=cases, **facts)


def _about(record: LabelledScans) -> Section:
    facts = [
        *scored_model.facts(record),
        ("Cases", _cases(record)),
        ("Classes", ", ".join(record.classes)),
        ("Tolerance of surface Dice", f"{record.tolerance:g} {_unit(record)}"),
    ]
    return Section(
        "evaluated", "What was evaluated", "The model file, and the scans that it was scored on.", [Facts(facts)]
    )


def _unit(record: LabelledScans) -> str:
    """Of lengths: pixels of pictures without a pixel size."""
    units = [unit for score, unit in (("asd", "mm"), ("asd_px", "pixels")) if score in record.scores]
    return " or ".join(units) or "mm"


def _scores(record: LabelledScans) -> Section:
    evaluation, names = _evaluation(record), _plain(record)
    rows: list[Row] = [
        [row, *(scores.score_cell(f"{name}{ending}", {}, evaluation) for name in names)]
        for row, ending in _rows(record)
    ]
    foot: list[Row] = []
    if len(rows) > 1:
        means = [scores.score_cell(name, {}, evaluation) for name in names]
        foot = [[Cell("mean", strong=True), *(replace(cell, strong=True) for cell in means)]]
    columns = [Column("Class", numeric=False), *(Column(metric(name).heading) for name in names)]
    how = paragraph(
        "labelled_scores_how",
        brackets=any(map(scores.shows_interval, rows)),
        by_subjects=record.subjects != len(record.cases),
        fewest=scores.MIN_CASES_FOR_INTERVAL,
    )
    explained = [metric(name) for name in names if metric(name).meaning]
    meanings = paragraph("score_meanings", scores=explained, of_classes=False)
    return Section("scores", "Scores", how, [Table(columns, rows, foot), meanings])


def _distributions(record: LabelledScans) -> Section:
    drawn = [
        distributions.strip(
            name,
            {row: record.scores[key] for row, ending in _rows(record) if (key := f"{name}{ending}") in record.scores},
        )
        for name in _plain(record)
    ]
    boxes = any(map(distributions.has_box, record.scores.values()))
    how = paragraph("distribution_how", dots="case", boxes=boxes)
    return Section("distributions", "Scores over cases", how, [Figures(drawn)])


def _each_case(record: LabelledScans) -> Section:
    several = 1 < len(_rows(record)) <= MOST_CLASSES
    names = [*(f"dice{ending}" for _, ending in _rows(record) if several), *_plain(record)]
    names = sorted((name for name in names if name in record.scores), key=lambda name: name != "dice")
    columns = [Column("Case", numeric=False), *(Column(metric(name).heading) for name in names)]
    apart = bool(record.one_sided_cases)
    columns += [Column("In one mask only", numeric=False)] if apart else []
    values = {name: dict(zip(record.cases_of(name), record.scores[name].cases or (), strict=True)) for name in names}
    dice = values.get("dice", {})
    rows: list[Row] = []
    for case in sorted(record.cases, key=lambda case: dice.get(case, math.inf)):
        cells: list[Cell | str] = [metric(name).number(by_case.get(case)) for name, by_case in values.items()]
        sides = record.one_sided_cases.get(case, {})
        cells += [", ".join(f"{name} ({side})" for name, side in sides.items())] if apart else []
        rows.append([case, *cells])
    over = " Scores without a class are means over the classes." if len(_rows(record)) > 1 else ""
    return Section("cases", "Every case", f"The case with the lowest Dice first.{over}", [Table(columns, rows)])


def _plain(record: LabelledScans) -> list[str]:
    """The scores of the mean over classes, Dice first."""
    return ordered(name for name in record.scores if " " not in name)


def _rows(record: LabelledScans) -> list[tuple[str, str]]:
    """What a row of classes is called, and how its scores' names end."""
    named = any(" " in name for name in record.scores)
    rows = [(name, f" {name}") for name in record.outlined if named]
    return rows or [(listed(record.classes), "")]


def _evaluation(record: LabelledScans) -> Evaluation:
    """As of a site of a run."""
    means = {name: spread.mean for name, spread in record.scores.items()}
    return Evaluation(scores=means, distributions=record.scores, one_sided=record.one_sided)


def _cases(record: LabelledScans) -> str:
    return scored_model.cases_of_subjects(len(record.cases), record.subjects)
