"""The specs that test a paper's claim, or a recipe: every row resolves, with seeds enough for a test."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

from fedshift_bench.cells import make_cells
from fedshift_bench.collect import FinishedCells
from fedshift_bench.record import FILE_NAME, read_comparison
from fedshift_bench.significance import FEWEST
from fedshift_bench.spec import read_spec

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPECS = sorted(path for folder in ("claims", "recipes") for path in (BENCHMARKS / folder).glob("*.yaml"))


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_row_resolves_and_is_run_often_enough_for_a_test(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    spec, _ = read_spec(path)
    assert spec.name == path.stem and len(spec.seeds) >= FEWEST and spec.tests and spec.tuning and spec.differences
    settings = prod(len(values) for values in spec.axes.values())
    assert len(make_cells(spec, folder=path.parent)) == len(spec.seeds) * len(spec.folds or (None,)) * settings


@pytest.mark.parametrize(
    "folder", ["prostate", "prostate_fold", "hippocampus", "hippocampus_ablation", "hippocampus_mirror"]
)
def test_finished_cells_of_a_recipe_need_not_run_again(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So the seeds that a scale leaves out can be added to them."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    comparison = read_comparison(BENCHMARKS / "results" / "recipes" / folder / FILE_NAME)
    (spec_path,) = (one for one in SPECS if one.stem == comparison.name)
    spec, _ = read_spec(spec_path, comparison.scale)
    kept = FinishedCells([comparison])
    assert {cell.name for cell in comparison.cells} == {
        cell.name for cell in make_cells(spec, folder=spec_path.parent) if kept.find(cell) is not None
    }
