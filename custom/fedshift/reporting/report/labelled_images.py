"""A classifier scored on images with a table of labels (``fedshift evaluate``)."""

from __future__ import annotations

from collections.abc import Iterator

from fedshift.reporting.report import by_class, classes, scored_model, scores, summary
from fedshift.reporting.report.section import (
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
from fedshift.reporting.report.wording import metric, ordered
from fedshift.schema.protocol_results import LabelledImages

TITLE = "Evaluation on labelled images"
THIS_SITE = "here"


def about(record: LabelledImages) -> str:
    """The model, and on how many cases it was scored."""
    return scored_model.about(record, _cases(record))


def sections(record: LabelledImages) -> list[Section]:
    """Summary with cautions, what was evaluated, scores, those of each class, and the settings of the training."""
    findings = [*_findings(record)]
    parts = [
        Section("summary", "Summary", "Read this first; the tables below contain the numbers.", [Findings(findings)]),
        _about(record),
        _scores(record),
    ]
    scores_by_class = {
        name: {THIS_SITE: class_scores} for name, class_scores in (record.evaluation.classes or {}).items()
    }
    if scores_by_class:
        parts.append(
            Section("classes", "Scores by class", paragraph("classes_how"), by_class.section_blocks(scores_by_class))
        )
    if record.evaluation.calibration is not None:
        drawn = classes.reliability(
            "reliability", "all cases", record.evaluation.calibration, findings=bool(record.thresholds)
        )
        how = classes.OF_FINDINGS if record.thresholds else classes.OF_CLASSES
        parts.append(Section("calibration", "Calibration", how, [Figures([drawn], size="third")]))
    return [*parts, scored_model.how_it_was_trained(record)]


def _findings(record: LabelledImages) -> Iterator[Finding]:
    name = "auroc" if "auroc" in record.evaluation.scores else "accuracy"
    value, m = record.evaluation.scores.get(name), metric(name)
    if value is not None:
        yield finding("result", "labelled_images", m=m, value=value, cases=_cases(record))
    if record.is_phantom:
        yield finding("caution", "simulated_training")
    if record.cases < summary.MIN_CASES:
        yield finding("caution", "few_labelled_cases", least=summary.MIN_CASES)
    yield finding("note", "patients_unknown")


def _about(record: LabelledImages) -> Section:
    facts = [
        *scored_model.facts(record),
        *([("Thresholds", record.thresholds)] if record.thresholds else []),
        ("Cases", _cases(record)),
        ("Classes", ", ".join(record.classes)),
    ]
    return Section(
        "evaluated", "What was evaluated", "The model file, and the images that it was scored on.", [Facts(facts)]
    )


def _scores(record: LabelledImages) -> Section:
    names = ordered(record.evaluation.scores)
    row: Row = [_cases(record), *(scores.score_cell(name, {}, record.evaluation) for name in names)]
    columns = [Column("Cases", numeric=False), *(Column(metric(name).heading) for name in names)]
    explained = [metric(name) for name in names if metric(name).meaning]
    by_subjects = record.subjects != record.cases
    how = paragraph("labelled_images_how", brackets=scores.shows_interval(row), by_subjects=by_subjects)
    meanings = paragraph("score_meanings", scores=explained, of_classes=False)
    return Section("scores", "Scores", how, [Table(columns, [row]), meanings])


def _cases(record: LabelledImages) -> str:
    return scored_model.cases_of_subjects(record.cases, record.subjects)
