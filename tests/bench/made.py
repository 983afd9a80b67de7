"""Comparisons with numbers made by hand, and specs on the tests' own task."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from conftest import SHAPES

from fedshift.schema.results import DataRecord
from fedshift_bench.cells import Cell, WorkItem, make_cells
from fedshift_bench.record import CellRecord, Comparison
from fedshift_bench.spec import read_spec

Numbers = Mapping[tuple[str, ...], Sequence[Mapping[str, float] | None]]
"""Labels -> for each seed each site's score, or None for a cell that is missing."""


def made(numbers: Numbers, *, axes: Mapping[str, list[str]] | None = None, **changes: Any) -> Comparison:
    """A comparison of accuracies at sites of the test part; ``changes`` are fields of `Comparison`."""
    axes = axes or {"method": [labels[0] for labels in numbers]}
    cells = []
    for labels, seeds in numbers.items():
        sites = list(next(told for told in seeds if told is not None)) if any(seeds) else ["A", "B"]
        for seed, told in enumerate(seeds):
            cells.append(
                CellRecord(
                    labels=dict(zip(axes, labels, strict=True)),
                    seed=seed,
                    state="missing" if told is None else "done",
                    commands=["fedshift job"],
                    shown={"test": sites},
                    scores={} if told is None else {"best": {"test": {s: {"accuracy": v} for s, v in told.items()}}},
                    data={} if told is None else {site: record(site) for site in told},
                    initial_weights="" if told is None else "from scratch",
                    version="0.1",
                    source="abc",
                    device="cpu",
                )
            )
    fields: dict[str, Any] = {
        "name": "made",
        "title": "Made by hand",
        "what": "Numbers.",
        "scale": "quick",
        "axes": dict(axes),
        "seeds": list(range(max(len(seeds) for seeds in numbers.values()))),
        "metric": "accuracy",
        "model": "best",
        "summaries": ["average"],
        "spec": {},
        "cells": cells,
    }
    return Comparison.parse(fields | changes, where="test")


def record(site: str, kind: str = "images") -> DataRecord:
    """A site's data."""
    fingerprint = site.encode().hex()
    return DataRecord.model_validate(
        {"kind": kind, "n": {"train": 4, "val": 1, "test": 1}, "manifest_sha256": fingerprint, "split_rule": "manifest"}
    )


def write_spec(folder: Path, **changes: Any) -> Path:
    """A spec of two methods on the sites of `conftest.make_image_site`; JSON is YAML too."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "name": "small",
        "title": "Two methods",
        "what": "Methods on shapes.",
        "task": str(SHAPES),
        "axes": {"method": {"FedAvg": {"methods": "fedavg"}, "FedProx": {"methods": "fedprox"}}},
    }
    path = folder / "small.yaml"
    path.write_text(json.dumps(content | changes), encoding="utf-8")
    return path


def cells_of(folder: Path, **changes: Any) -> list[Cell]:
    """The cells of a spec by `write_spec`."""
    spec, _ = read_spec(write_spec(folder, **changes))
    return make_cells(spec, folder=folder)


def work_of(cell: Cell) -> WorkItem:
    """What a cell computes, which it can."""
    assert cell.work is not None
    return cell.work


def changed(comparison: Comparison, changes: Callable[[CellRecord], Mapping[str, Any]]) -> Comparison:
    """The comparison with these changes to each of its cells."""
    cells = [cell.model_copy(update=dict(changes(cell))) for cell in comparison.cells]
    return comparison.model_copy(update={"cells": cells})
