"""Score the image-free guess for the cells of a comparison whose data are on this machine.

The guess (`fedshift.tasks.evaluation.image_free`) knows the training masks of the sites that a cell trains on, and is
scored as the cell is. It is kept in ``cells.json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from fedshift.federation.image_free import can_guess, score_guess
from fedshift.schema.job import JobSpec
from fedshift.schema.results import Metrics
from fedshift.tasks.base import Subset
from fedshift_bench.cells import Cell
from fedshift_bench.record import IMAGE_FREE, CellRecord, Comparison
from fedshift_bench.spec import PAIR_SEPARATOR, ScoredPart

SUBSETS: dict[ScoredPart, Subset] = {"test": "test", "val": "val", "held_out": "all"}
Guess = dict[str, dict[str, Metrics]]
"""Scored part -> site, or pair of sites -> metrics."""


def with_guess(comparison: Comparison, cells: Sequence[Cell]) -> Comparison:
    """Add the guess to finished cells that lack it and whose data are here; ``cells`` are in the record's order."""
    guesses: dict[str, Guess] = {}
    records = []
    for record, cell in zip(comparison.cells, cells, strict=True):
        if record.is_done and cell.work is not None and IMAGE_FREE not in record.scores:
            key = _key(cell)
            if key not in guesses:
                guesses[key] = _guess(cell, record) if can_guess(cell.plan.job) else {}
            if guesses[key]:
                record = record.model_copy(update={"scores": {**record.scores, IMAGE_FREE: guesses[key]}})
        records.append(record)
    return comparison.model_copy(update={"cells": records})


def _key(cell: Cell) -> str:
    """All that the guess and its scores depend on."""
    jobs = [
        {"task": job.task.model_dump(mode="json", include={"kind", "sites", "held_out", "classes", "data"})}
        | {"evaluation": job.evaluation.model_dump(mode="json")}
        for job in cell.plan.jobs.values()
    ]
    assert cell.work is not None
    return json.dumps([cell.plan.kind, jobs, cell.work.data], sort_keys=True)


def _guess(cell: Cell, record: CellRecord) -> Guess:
    guess: Guess = {}
    for job, trained, columns in _trainings(cell, record):
        scored = {column: (site, SUBSETS[part]) for (part, column), site in columns.items()}
        scores = score_guess(job, cell.data, trained=trained, scored=list(scored.values()))
        for part, column in columns:
            if scored[column] in scores:
                guess.setdefault(part, {})[column] = dict(scores[scored[column]].scores)
    return guess


def _trainings(
    cell: Cell, record: CellRecord
) -> Iterator[tuple[JobSpec, tuple[str, ...], dict[tuple[ScoredPart, str], str]]]:
    """Of each model of a cell its job, the sites that train it, and the site that each of its columns is scored at."""
    shown = [(part, column) for part, columns in record.shown.items() if part in SUBSETS for column in columns]
    if cell.plan.kind == "leave_one_out":
        for site, job in cell.plan.jobs.items():
            yield job, job.task.sites, {place: site for place in shown if place[1] == site}
    elif cell.plan.kind == "cross_site":
        for site in cell.plan.job.task.sites:
            pairs = {place: place[1].split(PAIR_SEPARATOR) for place in shown}
            yield cell.plan.job, (site,), {place: at for place, (trained, at) in pairs.items() if trained == site}
    else:
        yield cell.plan.job, cell.plan.job.task.sites, {place: place[1] for place in shown}
