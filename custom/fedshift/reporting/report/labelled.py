"""A model file scored on scans with masks (``fedshift evaluate``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fedshift.reporting import figures
from fedshift.reporting.report import distributions, findings, scores, setup
from fedshift.reporting.report.runs import Run
from fedshift.reporting.report.section import (
    Block,
    Cell,
    Column,
    Facts,
    Figures,
    Finding,
    Findings,
    Row,
    Section,
    Table,
    Text,
)
from fedshift.reporting.report.wording import counted, listed, metric, one_sided_sentence, ordered
from fedshift.schema.evaluation import Evaluation
from fedshift.schema.protocol_results import LabelledScans
from fedshift.schema.results import Results

TITLE = "Evaluation on labelled scans"
MOST_CLASSES = 8
"""With more classes the table of cases has only the means over classes."""


def about(record: LabelledScans) -> str:
    """The model, and on how many cases it was scored."""
    return f"{record.model} ({_methods(record)} on {record.job.task}) on {_cases(record)}"


def sections(record: LabelledScans) -> list[Section]:
    """Summary with cautions, what was evaluated, scores of each class, cases, and the settings of the training."""
    results = Results(job=record.job, versions=record.versions)
    trained = setup.what_was_run(Run(Path(record.FILE_NAME), results), has_rounds=False)
    made = [_summary(record), _what(record)]
    if record.cases:
        made += [_scores(record), _distributions(record), _each_case(record)]
    return [
        *made,
        replace(
            trained,
            title="How the model was trained",
            how="The job in the model file. The versions are those that scored.",
        ),
    ]


def _summary(record: LabelledScans) -> Section:
    return Section(
        "summary", "Summary", "Read this first; the tables below contain the numbers.", [Findings([*_findings(record)])]
    )


def _findings(record: LabelledScans) -> Iterator[Finding]:
    n, of = len(record.cases), metric("dice")
    if not n:
        yield Finding("result", f"None of {counted(len(record.not_scored), 'case')} could be scored.")
    else:
        dice = record.scores["dice"]
        cell = scores.score_cell("dice", {}, _evaluation(record))
        span = f", 95 % interval {cell.detail}" if cell.detail else ""
        over = f", mean over {len(record.classes)} classes" if len(record.classes) > 1 else ""
        yield Finding("result", f"Mean {of.word} over {_cases(record)}{over}: {of.with_unit(dice.mean)}{span}.")
    if record.is_phantom:
        yield Finding(
            "caution", "The model was trained on simulated scans: the scores say nothing about models for patients."
        )
    if 0 < n < findings.MIN_CASES:
        yield Finding("caution", f"Fewer than {findings.MIN_CASES} cases: a single case can change these scores a lot.")
    for name, told in record.one_sided.items():
        yield Finding("caution", f"{one_sided_sentence(name, told, n=n)}.")
    if record.without_spacing:
        yield Finding(
            "caution",
            f"{listed(record.without_spacing)}: no voxel size in the header (1 x 1 x 1 mm is a placeholder), so that "
            "surface Dice, distances and volumes mean nothing there.",
        )
    if n and record.not_scored:
        yield Finding("caution", f"Not scored, as they could not be read: {listed(record.not_scored)}.")
    yield Finding(
        "note",
        "A model file does not know which patients trained it: that these cases are new to it is not checked here.",
    )


def _what(record: LabelledScans) -> Section:
    facts = [
        ("Model", record.model),
        ("SHA-256", record.sha256),
        ("Task", record.job.task),
        ("Methods", _methods(record)),
        ("Round", str(record.round)),
        ("Trained at", f"{counted(len(record.sites), 'site')}: {', '.join(record.sites)}"),
        ("Trained on", findings.KINDS[record.kind]),
        ("Statistics", record.statistics),
        ("Cases", _cases(record)),
        ("Classes", ", ".join(record.classes)),
        ("Tolerance of surface Dice", f"{record.tolerance:g} mm"),
    ]
    return Section(
        "evaluated", "What was evaluated", "The model file, and the scans that it was scored on.", [Facts(facts)]
    )


def _scores(record: LabelledScans) -> Section:
    told, names = _evaluation(record), _plain(record)
    rows: list[Row] = [[row, *(scores.score_cell(f"{n}{of}", {}, told) for n in names)] for row, of in _rows(record)]
    foot: list[Row] = []
    if len(rows) > 1:
        means = [scores.score_cell(name, {}, told) for name in names]
        foot = [[Cell("mean", strong=True), *(replace(cell, strong=True) for cell in means)]]
    columns = [Column("Class", numeric=False), *(Column(metric(name).heading) for name in names)]
    how = "The mean score over the cases, on each scan's own grid."
    if any(map(scores.shows_interval, rows)):
        drawn = "" if record.subjects == len(record.cases) else ", drawn by subjects"
        how += f" Brackets show the 95 % interval over other cases of the same place (bootstrap{drawn})."
    else:
        how += f" There is no interval with fewer than {scores.MIN_CASES_FOR_INTERVAL} subjects."
    said = "; ".join(f"{metric(name).title}: {metric(name).meaning}" for name in names if metric(name).meaning)
    blocks: list[Block] = [Table(columns, rows, foot), Text(f"{said}.")]
    return Section("scores", "Scores", how, blocks)


def _distributions(record: LabelledScans) -> Section:
    with figures.style():
        drawn = [
            distributions.strip(name, {row: record.scores[f"{name}{of}"] for row, of in _rows(record)})
            for name in _plain(record)
        ]
    box = distributions.BOX if distributions.has_box(record.scores["dice"]) else ""
    return Section(
        "distributions",
        "Scores over cases",
        f"Every dot is a case. {box}Unlike a mean, this shows single cases that failed.",
        [Figures(drawn)],
    )


def _each_case(record: LabelledScans) -> Section:
    several = 1 < len(_rows(record)) <= MOST_CLASSES
    names = ["dice", *(f"dice{of}" for _, of in _rows(record) if several), *_plain(record)[1:]]
    columns = [Column("Case", numeric=False), *(Column(metric(name).heading) for name in names)]
    apart = bool(record.one_sided_cases)
    columns += [Column("In one mask only", numeric=False)] if apart else []
    values = [record.scores[name].cases or [] for name in names]
    rows: list[Row] = []
    for number in sorted(range(len(record.cases)), key=lambda number: (values[0][number], number)):
        case = record.cases[number]
        cells: list[Cell | str] = [metric(name).number(of[number]) for name, of in zip(names, values, strict=True)]
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
    found = [(name, f" {name}") for name in record.classes if f"dice {name}" in record.scores]
    return found or [(listed(record.classes), "")]


def _evaluation(record: LabelledScans) -> Evaluation:
    """As of a site of a run."""
    return Evaluation(scores={name: of.mean for name, of in record.scores.items()}, distributions=record.scores)


def _cases(record: LabelledScans) -> str:
    n = len(record.cases)
    return (
        counted(n, "case") if record.subjects == n else f"{counted(n, 'case')} of {counted(record.subjects, 'subject')}"
    )


def _methods(record: LabelledScans) -> str:
    return " + ".join(method.name for method in record.job.methods)
