"""Which classes are taken for which, and whether the model is as often right as it is sure."""

from __future__ import annotations

from fedshift.reporting.report import figures
from fedshift.reporting.report.runs import Run, evaluation
from fedshift.reporting.report.section import Block, Cell, Column, Figure, Figures, Row, Section, Table, Tables, Text
from fedshift.reporting.report.wording import metric, short
from fedshift.schema.evaluation import BINS, Calibration

MOST_SITES = 12
LARGEST = 26
"""Classes of a confusion matrix that is still shown whole."""


def confusion(run: Run) -> Section | None:
    """The matrices, and the share of every class that was recognised."""
    final = run.results.final
    if final is None:
        return None
    told = {
        site: found.confusion
        for site in run.results.data
        if (found := evaluation(final.best, site, "test")) and found.confusion
    }
    if not told:
        return None
    size = max(len(matrix) for matrix in told.values())
    names = _class_names(run, size)
    blocks: list[Block] = [_by_class(told, names)]
    whole = {site: matrix for site, matrix in told.items() if len(matrix) <= LARGEST}
    if whole:
        blocks.append(Tables([_matrix(site, matrix, names) for site, matrix in list(whole.items())[:MOST_SITES]]))
    if len(whole) < len(told):
        blocks.append(Text(f"Matrices of more than {LARGEST} classes are left out; they are in results.json."))
    elif len(whole) > MOST_SITES:
        blocks.append(Text(f"The matrices of {len(whole) - MOST_SITES} more sites are in results.json."))
    return Section(
        "confusion",
        "Classes taken for others",
        "A row is what a test sample is, a column what the model took it for; a good model has its numbers on the "
        "diagonal, and colour beside it is a mistake worth looking into.",
        blocks,
    )


def _class_names(run: Run, size: int) -> list[str]:
    job = None if run.model is None else run.model.job
    if job is not None and len(job.task.classes) == size:
        return list(job.task.classes)
    return [f"class {number}" for number in range(size)]


def _by_class(told: dict[str, list[list[int]]], names: list[str]) -> Table:
    of = metric("accuracy")
    rows: list[Row] = []
    for number, name in enumerate(names):
        cells: list[Cell | str] = [name]
        for matrix in told.values():
            line = matrix[number] if number < len(matrix) else []
            total = sum(line)
            share = line[number] / total if total else None
            cells.append(Cell(of.number(share), f"of {total}" if total else "", shade=share))
        rows.append(cells)
    columns = [Column("Class", numeric=False), *(Column(site) for site in told)]
    return Table(columns, rows, caption="Share of every class that was recognised (%)")


def _matrix(site: str, matrix: list[list[int]], names: list[str]) -> Table:
    columns = [Column("is \\ taken for", numeric=False), *(Column(short(name, 16)) for name in names)]
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
    """A reliability diagram a site."""
    final = run.results.final
    if final is None:
        return None
    told: dict[str, Calibration] = {}
    for site in run.results.data:
        found = evaluation(final.best, site, "test")
        if found is not None and found.calibration is not None and any(found.calibration.counts):
            told[site] = found.calibration
    if not told:
        return None
    drawn: list[Figure] = []
    with figures.style():
        for number, (site, record) in enumerate(list(told.items())[:MOST_SITES]):
            drawn.append(_reliability(f"reliability-{number}", site, record))
    rows = [[site, metric("accuracy").number(record.ece), f"{sum(record.counts):,}"] for site, record in told.items()]
    return Section(
        "calibration",
        "Is it right as often as it is sure?",
        "Where bars reach the diagonal the model's probability can be read as a chance of being right; bars below it "
        "mean that the model is too sure. ECE is the mean gap, 0 being best.",
        [
            Figures(drawn, size="third"),
            Table(
                [Column("Site", numeric=False), Column("ECE (%)"), Column("Samples (pictures or pixels)")],
                rows,
            ),
        ],
    )


def _reliability(key: str, site: str, record: Calibration) -> Figure:
    drawn, (axes,) = figures.drawing(width=300, height=250)
    filled = [number for number in range(BINS) if record.counts[number]]
    share = [100 * record.right[number] / record.counts[number] for number in filled]
    centre = [100 * (number + 0.5) / BINS for number in filled]
    axes.bar(centre, share, width=88 / BINS, color=figures.colour(0), alpha=0.75)
    axes.plot([0, 100], [0, 100], color=figures.INK, linestyle="--", linewidth=1.2)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    axes.set_xlabel("how sure (%)")
    axes.set_ylabel("right (%)")
    said = metric("accuracy").said(record.ece)
    return figures.figure(
        drawn,
        key,
        title=f"{site}: ECE {said}",
        description=f"Reliability diagram of {short(site)}, expected calibration error {said}",
    )
