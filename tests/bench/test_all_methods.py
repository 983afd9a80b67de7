"""Rows for every method that a task takes, and rows of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedshift.methods import method_set
from fedshift.schema.errors import ConfigError
from fedshift_bench.cells import REFERENCE, add_rows, expand, make_cells
from fedshift_bench.spec import Spec, read_spec

from .made import write_spec

FEW = ["fedavg", "fedprox", "fedrdn", "fednova", "all"]
ONE: dict[str, Any] = {"method": {"average": {"methods": "fedavg"}}}


@pytest.fixture(autouse=True)
def _few_methods(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A new method takes part without an edit; to try all that there are would take long."""
    monkeypatch.setattr(method_set, "available", lambda: FEW)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)


def expanded(folder: Path, **changes: Any) -> tuple[Spec, dict[str, str]]:
    spec, _ = read_spec(write_spec(folder, **{"axes": ONE, "every_method": {}, **changes}))
    return expand(spec, folder=folder)


def test_every_method_that_the_task_takes_has_a_row(tmp_path: Path) -> None:
    spec, left_out = expanded(tmp_path, options={"optimizer.name": "adam", "fedprox.mu": 0.3})
    assert spec.rows == ["average", "fedprox", "fedrdn"], "the spec's own row is not there twice"
    assert left_out["all"] == REFERENCE and "adam" in left_out["fednova"]
    cells = make_cells(spec, folder=tmp_path)
    assert [cell.labels["method"] for cell in cells] == spec.rows
    assert cells[1].plan.job.methods["fedprox"]["mu"] == 0.3, "an option of one method is for its row"


def test_a_spec_leaves_methods_out_with_its_reason(tmp_path: Path) -> None:
    spec, left_out = expanded(tmp_path, every_method={"without": {"fedprox": "as printed"}})
    assert left_out["fedprox"] == "as printed" and "fedprox" not in spec.rows


def test_without_the_key_a_spec_has_its_own_rows_only(tmp_path: Path) -> None:
    spec, left_out = expanded(tmp_path, every_method=None)
    assert spec.rows == ["average"] and left_out == {}


def test_rows_of_ones_own_are_found_or_added(tmp_path: Path) -> None:
    spec = expanded(tmp_path)[0]
    same, labels = add_rows(spec, ["FedProx", "average"], {})
    assert same.rows == spec.rows and labels == ["fedprox", "average"]
    more, labels = add_rows(spec, ["FedRDN+FedProx"], {})
    assert labels == ["fedrdn+fedprox"] and more.rows == [*spec.rows, "fedrdn+fedprox"]
    with_options, labels = add_rows(spec, ["fedprox"], {"fedprox.mu": 0.5, "schedule.rounds": 3})
    assert labels == ["fedprox (fedprox.mu=0.5, schedule.rounds=3)"]
    mine = make_cells(with_options, folder=tmp_path)[-1].plan.job
    assert mine.methods["fedprox"]["mu"] == 0.5 and mine.task.schedule.rounds == 3


def test_what_a_spec_leaves_out_is_a_method(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'fedproxx'.* 'fedprox'"):
        expanded(tmp_path, every_method={"without": {"fedproxx": "x"}})
