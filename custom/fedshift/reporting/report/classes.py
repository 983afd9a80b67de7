"""Confusion matrices and calibration of classifiers, and calibration of segmentation models."""

from __future__ import annotations

from fedshift.reporting import figures
from fedshift.reporting.figures import Figure
from fedshift.reporting.report.runs import Run, evaluation
from fedshift.reporting.report.section import Block, Cell, Column, Figures, Row, Section, Table, Tables, Text
from fedshift.reporting.report.wording import metric, short
from fedshift.schema.evaluation import BINS, Calibration, Evaluation

MAX_SITES = 12
MAX_CLASSES = 26
"""Larger confusion matrices are not shown."""


def confusion(run: Run) -> Section | None:
    """Confusion matrices, and the fraction of each class that was recognised; None if there are no matrices."""
    final = run.results.final
    if final is None:
        return None
    matrices = {
        site: result.confusion
        for site in run.results.data
        if (result := evaluation(final.best, site, "test")) and result.confusion
    }
    if not matrices:
        return None
    size = max(len(matrix) for matrix in matrices.values())
    names = _class_names(run, size)
    blocks: list[Block] = [_by_class(matrices, names)]
    shown = {site: matrix for site, matrix in matrices.items() if len(matrix) <= MAX_CLASSES}
    if shown:
        blocks.append(Tables([_matrix(site, matrix, names) for site, matrix in list(shown.items())[:MAX_SITES]]))
    if len(shown) < len(matrices):
        blocks.append(Text(f"Matrices of more than {MAX_CLASSES} classes are left out; they are in results.json."))
    elif len(shown) > MAX_SITES:
        blocks.append(Text(f"The matrices of {len(shown) - MAX_SITES} more sites are in results.json."))
    return Section(
        "confusion",
        "Confusion matrices",
        "Rows are true classes, columns are predicted classes, numbers are test samples. A good model has its "
        "numbers on the diagonal; colour off the diagonal marks frequent mistakes.",
        blocks,
    )


def _class_names(run: Run, size: int) -> list[str]:
    job = None if run.model is None else run.model.job
    if job is not None and len(job.task.classes) == size:
        return list(job.task.classes)
    return [f"class {number}" for number in range(size)]


def _by_class(matrices: dict[str, list[list[int]]], names: list[str]) -> Table:
    accuracy = metric("accuracy")
    rows: list[Row] = []
    for number, name in enumerate(names):
        cells: list[Cell | str] = [name]
        for matrix in matrices.values():
            row = matrix[number] if number < len(matrix) else []
            total = sum(row)
            share = row[number] / total if total else None
            cells.append(Cell(accuracy.number(share), f"of {total}" if total else "", shade=share))
        rows.append(cells)
    columns = [Column("Class", numeric=False), *(Column(site) for site in matrices)]
    return Table(columns, rows, caption="Recognised samples of each class (%)")


def _matrix(site: str, matrix: list[list[int]], names: list[str]) -> Table:
    columns = [Column("true \\ predicted", numeric=False), *(Column(short(name, 16)) for name in names)]
    rows: list[Row] = []
    for number, counts in enumerate(matrix):
        total = sum(counts)
        rows.append(
            [
                names[number],
                *(
                    Cell(str(count), strong=number == place, shade=count / total if total else None)
                    for place, count in enumerate(counts)
                ),
            ]
        )
    return Table(columns, rows, caption=site)


def calibration(run: Run) -> Section | None:
    """A reliability diagram for each site; None if no site reported calibration."""
    final = run.results.final
    if final is None:
        return None
    by_site: dict[str, Calibration] = {}
    for site in run.results.data:
        result = evaluation(final.best, site, "test")
        if result is not None and result.calibration is not None and any(result.calibration.counts):
            by_site[site] = result.calibration
    if not by_site:
        return None
    findings = any(result.classes and result.confusion is None for result in _test_results(run))
    shown = list(by_site.items())[:MAX_SITES]
    drawn = [
        reliability(f"reliability-{number}", site, record, findings=findings)
        for number, (site, record) in enumerate(shown)
    ]
    rows = [
        [site, metric("accuracy").number(record.ece), f"{sum(record.counts):,}"] for site, record in by_site.items()
    ]
    return Section(
        "calibration",
        "Calibration",
        OF_FINDINGS if findings else OF_CLASSES,
        [
            Figures(drawn, size="third"),
            Table(
                [
                    Column("Site", numeric=False),
                    Column("ECE (%)"),
                    Column("Samples (findings)" if findings else "Samples (images or pixels)"),
                ],
                rows,
            ),
        ],
    )


OF_CLASSES = (
    "Bars on the diagonal mean that predicted probabilities equal the fraction of correct predictions. Bars below it "
    "mean that the model is overconfident. ECE is the mean gap; 0 is best."
)
OF_FINDINGS = (
    "Of all known findings of all cases. Bars on the diagonal mean that of the cases with such a probability as many "
    "have the finding. Bars below it mean that the model says too often that it is there. ECE is the mean gap; 0 is "
    "best."
)


def _test_results(run: Run) -> list[Evaluation]:
    """The evaluations of training sites on their test parts."""
    assert run.results.final is not None
    results = (evaluation(run.results.final.best, site, "test") for site in run.results.data)
    return [result for result in results if result is not None]


def reliability(key: str, site: str, record: Calibration, *, findings: bool) -> Figure:
    """A reliability diagram; ``findings``: whether the probability is that of a finding, and not of being right."""
    with figures.drawing(width=300, height=250) as (drawn, (axes,)):
        filled = [number for number in range(BINS) if record.counts[number]]
        share = [100 * record.right[number] / record.counts[number] for number in filled]
        centre = [100 * (number + 0.5) / BINS for number in filled]
        axes.bar(centre, share, width=88 / BINS, color=figures.colour(0), alpha=0.75)
        axes.plot([0, 100], [0, 100], color=figures.INK, linestyle="--", linewidth=1.2)
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 100)
        axes.set_xlabel("predicted probability (%)")
        axes.set_ylabel("have the finding (%)" if findings else "correct (%)")
        ece = metric("accuracy").with_unit(record.ece)
        return figures.figure(
            drawn,
            key,
            title=f"{site}: ECE {ece}",
            description=f"Reliability diagram of {short(site)}, expected calibration error {ece}",
        )
