"""The leaderboard's specs: every scale resolves, with a row for whatever method there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedshift.methods import method_set
from fedshift_bench.cells import expand, make_cells
from fedshift_bench.spec import read_spec

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPECS = sorted((BENCHMARKS / "leaderboard").glob("*.yaml"))
SOME = ["all", "augmentation", "fedavg", "fedbn", "fedfa", "fedproto", "fedrdn"]
"""Some of the methods: all that there are take a minute a spec."""


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What lies on the machine must not matter."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_task_has_a_full_scale_with_equal_budgets_and_a_small_one(path: Path) -> None:
    full, quick = read_spec(path, "paper")[0], read_spec(path)[0]
    assert full.name == path.stem and full.draws > 1 and len(full.seeds) == len(quick.seeds) == 3
    for spec in (full, quick):
        assert spec.every_method is not None and spec.ranking is not None and spec.ranking.against == "fedavg"
        assert (path.parent / spec.finished).resolve() == BENCHMARKS / "results" / "leaderboard"
        assert spec.tuning and spec.metric in (None, "dice_papers")


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_row_resolves(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = [name for name in method_set.available() if name in {*SOME, "fednova", "fpl", "scaffold"}]
    monkeypatch.setattr(method_set, "available", lambda: methods)
    spec, _ = read_spec(path)
    expanded, left_out = expand(spec, folder=path.parent)
    assert {"fedavg", "fedfa", "fedbn", "fedrdn", "fedfa+fedrdn"} <= set(expanded.rows) and "all" in left_out
    dense = path.stem.startswith(("prostate", "hippocampus", "nuclei"))
    assert ("fedproto" in left_out) is dense
    cells = make_cells(expanded, folder=path.parent)
    assert len(cells) == 3 * len(expanded.rows)
    assert {cell.plan.job.task.schedule.precision for cell in cells} == {"fp32"}, "the same on every processor"
