"""The specs of FL-MedSegBench's tasks: every row resolves at both scales, and what differs is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedshift_bench.cells import make_cells
from fedshift_bench.spec import read_spec

FOLDER = Path(__file__).parents[2] / "benchmarks" / "medsegbench"
SPECS = sorted(FOLDER.glob("*.yaml"))


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What lies on the machine must not matter."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)


@pytest.mark.parametrize("scale", ["paper", "quick"])
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_method_of_the_benchmark_resolves(path: Path, scale: str) -> None:
    spec, _ = read_spec(path, scale)
    cells = make_cells(spec, folder=path.parent)
    assert spec.name == path.stem and len(cells) == len(spec.rows) * 3
    assert {"FedAvg", "FedBN", "SiloBN", "PN", "Ditto", "FedPer", "FedRDN", "FedAWA", "FedLWS"} <= set(spec.rows)
    assert spec.tuning and spec.differences
    rounds = {cell.plan.job.task.schedule.rounds for cell in cells}
    assert len(rounds) == 1 and (min(rounds) >= 50) is (scale == "paper")


def test_all_nine_tasks_have_a_spec() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| Fe")]
    assert len(rows) == 9
    for row in rows:
        named = [path.name for path in SPECS if f"`{path.name}`" in row]
        assert len(named) == 1
