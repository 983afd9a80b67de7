"""The committed specs of the papers' tables and figures, and the printed numbers beside them."""

from __future__ import annotations

import copy
import csv
import functools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fedshift import methods, networks, resolve
from fedshift.comparison.cells import Cell, make_cells
from fedshift.comparison.collect import collect
from fedshift.comparison.published import COLUMNS
from fedshift.comparison.spec import Spec, read_spec
from fedshift.comparison.store import Store
from fedshift.job import TaskSpec
from fedshift.tasks import Task

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SPECS = sorted((BENCHMARKS / "papers").glob("*.yaml"))
PUBLISHED = sorted((BENCHMARKS / "published").glob("*.csv"))
SCALES = ("paper", "quick")
SHOWN = (
    [f"fedfa_table{number}" for number in (*range(1, 9), 16)]
    + [f"fedfa_figure{number}" for number in (1, 2, 3)]
    + [f"fedrdn_table{number}" for number in (1, 2, 3, 4, 5, 7, 8)]
    + [f"fedrdn_figure{number}" for number in (1, 2, 3)]
    + [f"fraug_table{number}" for number in (1, 2, 3)]
    + ["fraug_figure2"]
    + [f"augmentation_table{number}" for number in range(3, 10)]
    + [f"augmentation_figure{number}" for number in (3, 4, 5)]
)
"""Tables and figures of the four papers that the project repeats."""


@pytest.fixture(scope="module")
def _made_once() -> Iterator[None]:
    """A network is built and tried once, a task read once: over a thousand cells differ in little else."""
    read, try_, build, available = resolve._read_task, resolve._try, networks.build, methods.available
    tasks = functools.cache(read)
    tried: set[str] = set()
    nets: dict[str, nn.Module] = {}

    def try_once(net: nn.Module, task: Task, spec: TaskSpec) -> None:
        key = json.dumps([spec.kind, spec.network.model_dump(mode="json"), task.sizes], sort_keys=True)
        if key not in tried:
            try_(net, task, spec)
            tried.add(key)

    def build_once(name: str, options: Any, **sizes: Any) -> nn.Module:
        key = json.dumps([name, dict(options), {**sizes, "seed": 0}], sort_keys=True)
        if key not in nets:
            nets[key] = build(name, options, **sizes)
        return nets[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolve, "_read_task", lambda task: copy.deepcopy(tasks(task)))
        patch.setattr(resolve, "_try", try_once)
        patch.setattr(networks, "build", build_once)
        patch.setattr(methods, "available", functools.cache(available))
        yield


@pytest.fixture(scope="module")
def cells_of(_made_once: None) -> Callable[[Path, str], tuple[Spec, list[Cell]]]:
    """A spec at a scale and its cells, made once."""

    @functools.cache
    def make(path: Path, scale: str) -> tuple[Spec, list[Cell]]:
        spec, _ = read_spec(path, scale)
        return spec, make_cells(spec, folder=path.parent)

    return make


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What lies on the machine must not matter."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    monkeypatch.delenv("FEDSHIFT_WEIGHTS", raising=False)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_papers_spec_resolves_and_finds_the_printed_numbers(
    path: Path, scale: str, cells_of: Callable[[Path, str], tuple[Spec, list[Cell]]], tmp_path: Path
) -> None:
    """All cells, and without any data on this machine."""
    spec, cells = cells_of(path, scale)
    assert spec.name == path.stem
    assert len(cells) == math.prod(len(values) for values in spec.axes.values()) * len(spec.seeds)
    assert spec.tuning, "says nothing of the rows' tuning budget"
    assert spec.differences, "says nothing of what differs from the paper"
    comparison = collect(spec, scale, cells, Store(tmp_path), folder=path.parent)
    assert bool(comparison.published) is (spec.published is not None)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_quick_scale_is_less_work_than_the_papers(
    path: Path, cells_of: Callable[[Path, str], tuple[Spec, list[Cell]]]
) -> None:
    """In rounds of all cells."""

    def rounds(scale: str) -> int:
        return sum(job.task.schedule.rounds for cell in cells_of(path, scale)[1] for job in cell.plan.jobs.values())

    assert rounds("quick") < rounds("paper")


@pytest.mark.parametrize("shown", SHOWN)
def test_a_table_or_figure_of_the_papers_has_a_spec(shown: str) -> None:
    """One, or one for each part (``fedfa_table1_office``)."""
    assert [path for path in SPECS if path.stem == shown or path.stem.startswith(f"{shown}_")]


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_published_table_has_each_number_once(path: Path) -> None:
    """Long form, numbers that are numbers, labels without stray blanks, and no row shorter than the others."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    assert tuple(header) == COLUMNS
    assert all(len(line) == len(COLUMNS) for line in lines)
    places = [(row, column) for row, column, *_ in lines]
    assert len(places) == len(set(places))
    for line in lines:
        assert all(text == text.strip() for text in line)
        for number in line[2:4]:
            assert not number or math.isfinite(float(number))


@pytest.mark.parametrize(
    "path", [p for p in PUBLISHED if p.stem.startswith(("fedfa", "fraug"))], ids=lambda path: path.stem
)
def test_a_printed_average_fits_its_columns_or_a_note_says_that_it_does_not(path: Path) -> None:
    """Within what rounding of the average and of its columns can explain."""
    rows: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            block, _, column = line["column"].rpartition("/")
            rows.setdefault((line["row"], block), {})[column] = line["value"], line["note"]
    for place, columns in rows.items():
        for name in columns.keys() & {"Average", "Avg", "avg"}:
            printed, note = columns[name]
            mean = sum(float(value) for key, (value, _) in columns.items() if key != name) / (len(columns) - 1)
            step = 10.0 ** -len(printed.partition(".")[2])
            fits = abs(mean - float(printed)) <= step + 1e-9
            assert fits is ("the columns' mean is" not in note), (place, printed, mean)
