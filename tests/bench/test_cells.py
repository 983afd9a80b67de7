"""The cells of a grid: how settings meet, what makes two cells the same, what is lacking."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_image_site

from fedshift import cli
from fedshift.schema.errors import ConfigError
from fedshift_bench.cells import Cell, choose, make_cells
from fedshift_bench.spec import read_spec

from .made import write_spec

DOMAINS: dict[str, Any] = {"part": "domains", "metric": "gradient_norm"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An $XDG_DATA_HOME with the three sites of the tests' own task; also the working directory."""
    for site, gain in (("A", 1.0), ("B", 0.5), ("C", 1.3)):
        make_image_site(tmp_path / "fedshift" / "phantom", site, gain=gain)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    monkeypatch.delenv("FEDSHIFT_WEIGHTS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cells_of(folder: Path, **changes: Any) -> list[Cell]:
    spec, _ = read_spec(write_spec(folder, **changes))
    return make_cells(spec, folder=folder)


def test_later_axes_win_and_options_merge_key_by_key(home: Path) -> None:
    cells = cells_of(
        home,
        options={"schedule.rounds": 9, "optimizer.lr": 0.5},
        axes={
            "method": {"P": {"methods": "fedprox", "options": {"fedprox.mu": 0.1, "schedule.rounds": 8}}},
            "rounds": {"few": {"options": {"schedule.rounds": 7}}, "own": {}},
        },
        seeds=[3, 5],
    )
    assert [cell.name for cell in cells] == ["P, few, seed 3", "P, few, seed 5", "P, own, seed 3", "P, own, seed 5"]
    jobs = [next(iter(cell.work.jobs.values())) for cell in cells if cell.work is not None]
    assert [job.task.schedule.rounds for job in jobs] == [7, 7, 8, 8]
    assert [job.seed for job in jobs] == [3, 5, 3, 5]
    assert {job.task.optimizer.lr for job in jobs} == {0.5} and {job.methods["fedprox"]["mu"] for job in jobs} == {0.1}


def test_an_option_of_a_method_serves_the_rows_that_have_it(home: Path) -> None:
    axes = {
        "method": {"FedAvg": {"methods": "fedavg"}, "FedProx": {"methods": "fedprox"}},
        "mu": {"0.1": {"options": {"fedprox.mu": 0.1}}, "1": {"options": {"fedprox.mu": 1}}},
    }
    cells = cells_of(home, axes=axes, options={"fedfa.p": 0.3})
    keys = [cell.work.key for cell in cells if cell.work is not None]
    assert keys[0] == keys[1] and len(set(keys)) == 3


OF_FEDPROX = {"methods": "fedavg", "options": {"fedprox.mu": 0.1}}
TUNED = {"draws": 2, "options": {"fedprox.muu": None}}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"axes": {"method": {"FedAvg": OF_FEDPROX}}}, r"cell FedAvg: --set fedprox\.mu=0\.1: .* method fedprox"),
        ({"axes": {"method": {"X": {"methods": "fedprox"}}}, "tuning": TUNED}, "method fedprox .* 'muu'"),
    ],
    ids=["of another method", "misspelt"],
)
def test_an_option_that_no_method_of_a_row_has_is_refused(changes: dict[str, Any], reason: str, home: Path) -> None:
    with pytest.raises(ConfigError, match=reason):
        cells_of(home, **changes)


def test_a_cell_is_what_it_computes_and_on_which_data(home: Path) -> None:
    axes = {"method": {"one": {"methods": "fedavg"}, "two": {"methods": "fedavg", "options": {"schedule.rounds": 2}}}}
    one, two = (cell.work for cell in cells_of(home, axes=axes))
    assert one is not None and two is not None and one.key == two.key
    renamed = one.model_copy(update={"name": "x", "jobs": {"x": one.jobs[one.name].model_copy(update={"name": "x"})}})
    assert renamed.key == one.key
    assert one.model_copy(update={"kind": "cross_site"}).key != one.key
    assert one.model_copy(update={"data": {**one.data, "A": "0"}}).key != one.key
    (again, _) = (cell.work for cell in cells_of(home, axes=axes, seeds=[1]))
    assert again is not None and again.key != one.key


def test_the_command_of_a_cell_makes_its_job(home: Path) -> None:
    options = {"optimizer.lr": 1e-05, "network.options.width": 8, "network.name": "digits_cnn"}
    axes = {"method": {"P": {"methods": "fedprox", "options": {**options, "network.options.size": 16}}}}
    (cell,) = cells_of(home, axes=axes, held_out=["C"], seeds=[4])
    make, run = cell.commands
    assert cli.main(shlex.split(make)[1:]) == 0
    assert cell.work is not None
    from fedshift.schema.job import read_job

    (written,) = (home / "jobs").glob("*/app/config/fedshift.yaml")
    assert read_job(written) == next(iter(cell.work.jobs.values()))
    assert run == f"fedshift run jobs/{cell.plan.name} --in-process"


def test_what_is_lacking_is_said_once_for_all_sites(home: Path) -> None:
    cells = cells_of(home, axes={"method": {"P": {"methods": "fedavg"}}}, weights="imagenet.pth")
    assert cells[0].work is None
    (weights,) = cells[0].missing_inputs
    assert weights.startswith("starting weights imagenet.pth: put the file into")
    torch.save({"w": torch.zeros(1)}, home / "imagenet.pth")
    with pytest.raises(ConfigError, match=r"cell P: .*imagenet\.pth does not fit"):
        cells_of(home, axes={"method": {"P": {"methods": "fedavg"}}}, weights="imagenet.pth")
    for site in "AB":
        (home / "fedshift" / "phantom" / "shapes" / site / "manifest.json").unlink()
    (cell,) = cells_of(home, axes={"method": {"P": {"methods": "fedavg"}}})
    assert cell.work is None and len(cell.missing_inputs) == 1
    assert cell.missing_inputs[0].startswith("data of shapes at A, B (no shapes data for site A: looked in")


def test_only_chooses_by_labels_and_knows_them(home: Path) -> None:
    axes = {
        "method": {"X": {"methods": "fedavg"}, "Y": {"methods": "fedprox"}},
        "rounds": {n: {"options": {"schedule.rounds": int(n)}} for n in ("1", "2")},
    }
    cells = cells_of(home, axes=axes)
    assert [cell.name for cell in choose(cells, ["Y"])] == ["Y, 1, seed 0", "Y, 2, seed 0"]
    assert [cell.name for cell in choose(cells, ["X", "Y", "2"])] == ["X, 2, seed 0", "Y, 2, seed 0"]
    with pytest.raises(ConfigError, match="--only FedX"):
        choose(cells, ["FedX"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metric": "acuracy"}, "there is no metric 'acuracy'; did you mean 'accuracy'?"),
        ({"axes": {"method": {"X": {}}}}, "cell X: 'methods' is missing"),
        ({"axes": {"method": {"X": {"methods": "fedavgg"}}}}, "cell X: there is no method 'fedavgg'; did you mean"),
        ({"options": {"schedule.round": 3}}, "unknown key 'schedule.round'"),
        ({"run": "leave_one_out", "sites": ["A"]}, "leave_one_out needs at least two"),
        ({"sites": ["Q"]}, "has no site 'Q'"),
        (DOMAINS, "the task has no domains"),
        (DOMAINS | {"options": {"domains": {"a": ["A"]}}}, "set the option evaluation.gradient_norm to true"),
        (DOMAINS | {"axes": {"m": {"X": {"methods": "all"}}}}, "only a federation has gradient norms of domains"),
        ({"axes": {"m": {"X": {"methods": "all"}}}, "run": "cross_site"}, "which no federation has"),
    ],
)
def test_a_cell_that_does_not_resolve_is_named(home: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        cells_of(home, **changes)
    assert said in str(error.value)


def test_every_row_gets_as_many_settings_of_which_the_first_is_its_own(home: Path) -> None:
    axes = {
        "method": {"FedAvg": {"methods": "fedavg"}, "FedProx": {"methods": "fedprox"}},
        "mu": {"own": {}, "0.5": {"options": {"fedprox.mu": 0.5}}},
    }
    cells = cells_of(home, axes=axes, seeds=[0, 1], tuning={"draws": 3, "seed": 7})
    assert len(cells) == 2 * 2 * 3 * 2
    assert [cell.name for cell in cells[:3]] == [
        "FedAvg, own, seed 0",
        "FedAvg, own, seed 1",
        "FedAvg, own, seed 0, draw 1",
    ]
    by_row = {
        (*cell.labels.values(), cell.draw): dict(cell.drawn)
        for cell in cells
        if cell.seed == 0 and cell.work is not None
    }
    assert all(not drawn for (*_, draw), drawn in by_row.items() if draw == 0)
    assert {tuple(drawn) for (row, mu, draw), drawn in by_row.items() if draw} == {
        ("optimizer.lr",),
        ("optimizer.lr", "fedprox.mu"),
    }
    assert "fedprox.mu" in by_row["FedProx", "own", 1] and "fedprox.mu" not in by_row["FedProx", "0.5", 1], "set"
    rates = {number: {drawn["optimizer.lr"] for (*_, n), drawn in by_row.items() if n == number} for number in (1, 2)}
    assert all(len(found) == 1 for found in rates.values()) and rates[1] != rates[2], "rows share what they share"
    assert all(0.005 <= rate <= 0.5 for found in rates.values() for rate in found), "around the task's 0.05"
    for cell in cells:
        assert cell.work is not None
        job = cell.work.jobs[cell.plan.job.name]
        assert job.task.optimizer.lr == cell.drawn.get("optimizer.lr", 0.05)
        assert all(f"{key}={value}" in cell.commands[0] for key, value in cell.drawn.items())
    again = cells_of(home, axes=axes, seeds=[0, 1], tuning={"draws": 3, "seed": 8})
    assert again[0].work == cells[0].work and again[2].work != cells[2].work, "another seed, other settings"


def test_a_spec_can_change_what_is_drawn(home: Path) -> None:
    ranges = {"optimizer.lr": None, "schedule.batch_size": {"kind": "choice", "values": [4, 8]}, "fedprox.mu": None}
    axes = {"method": {"FedProx": {"methods": "fedprox"}}}
    cells = cells_of(home, axes=axes, tuning={"draws": 4, "options": ranges, "remark": "Few."})
    assert [set(cell.drawn) for cell in cells] == [set(), *[{"schedule.batch_size"}] * 3]
