"""The cells of a grid: how settings meet, what makes two cells the same, what is lacking."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from errors import raises
from packagefiles import install

from fedshift import cli
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import read_job
from fedshift_bench.cells import choose

from .made import cells_of, work_of

DOMAINS: dict[str, Any] = {"part": "domains", "metric": "gradient_norm"}
BOTH = {"FedAvg": {"methods": "fedavg"}, "FedProx": {"methods": "fedprox"}}


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
    assert [cell.name for cell in cells] == [f"P, {n}, seed {seed}" for n in ("few", "own") for seed in (3, 5)]
    jobs = [next(iter(work_of(cell).jobs.values())) for cell in cells]
    assert [job.task.schedule.rounds for job in jobs] == [7, 7, 8, 8]
    assert [job.seed for job in jobs] == [3, 5, 3, 5]
    assert {job.task.optimizer.lr for job in jobs} == {0.5} and {job.methods["fedprox"]["mu"] for job in jobs} == {0.1}


def test_an_option_of_a_method_serves_the_rows_that_have_it(home: Path) -> None:
    axes = {"method": BOTH, "mu": {mu: {"options": {"fedprox.mu": float(mu)}} for mu in ("0.1", "1")}}
    keys = [work_of(cell).key for cell in cells_of(home, axes=axes, options={"fedfa.p": 0.3})]
    assert keys[0] == keys[1] and len(set(keys)) == 3


def test_a_row_may_have_a_packages_method_and_its_options(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path / "packages", "acme-row")))
    axes = {"method": {"Half": {"methods": "acme-row:halved"}, "FedAvg": {"methods": "fedavg"}}}
    cells = cells_of(home, axes=axes, options={"acme-row:halved.share": 0.25})
    half, plain = (next(iter(work_of(cell).jobs.values())) for cell in cells)
    assert half.methods["acme-row:halved"] == {"share": 0.25} and list(half.packages) == ["acme-row"]
    assert not plain.packages


def test_a_cell_is_what_it_computes_and_on_which_data(home: Path) -> None:
    axes = {"method": {"one": {"methods": "fedavg"}, "two": {"methods": "fedavg", "options": {"schedule.rounds": 2}}}}
    one, two = map(work_of, cells_of(home, axes=axes))
    assert one.key == two.key
    renamed = one.model_copy(update={"name": "x", "jobs": {"x": one.jobs[one.name].model_copy(update={"name": "x"})}})
    assert renamed.key == one.key
    assert one.model_copy(update={"kind": "cross_site"}).key != one.key
    assert one.model_copy(update={"data": {**one.data, "A": "0"}}).key != one.key
    assert work_of(cells_of(home, axes=axes, seeds=[1])[0]).key != one.key


def test_the_command_of_a_cell_makes_its_job(home: Path) -> None:
    options = {"optimizer.lr": 1e-05, "network.options.width": 8, "network.name": "digits_cnn"}
    axes = {"method": {"P": {"methods": "fedprox", "options": {**options, "network.options.size": 16}}}}
    (cell,) = cells_of(home, axes=axes, held_out=["C"], seeds=[4])
    make, run = cell.commands
    assert cli.main(shlex.split(make)[1:]) == 0
    (written,) = (home / "jobs").glob("*/app/config/fedshift.yaml")
    assert read_job(written) == next(iter(work_of(cell).jobs.values()))
    assert run == f"fedshift run jobs/{cell.plan.name} --in-process"


def test_what_is_lacking_is_said_once_for_all_sites(home: Path) -> None:
    axes = {"method": {"P": {"methods": "fedavg"}}}
    (cell,) = cells_of(home, axes=axes, weights="imagenet.pth")
    assert cell.work is None and "imagenet.pth" in cell.missing_inputs[0]
    torch.save({"w": torch.zeros(1)}, home / "imagenet.pth")
    with pytest.raises(ConfigError, match=r"cell P: .*imagenet\.pth"):
        cells_of(home, axes=axes, weights="imagenet.pth")
    for site in "AB":
        (home / "fedshift" / "phantom" / "shapes" / site / "manifest.json").unlink()
    (cell,) = cells_of(home, axes=axes)
    assert cell.work is None and len(cell.missing_inputs) == 1
    assert " A, B (" in cell.missing_inputs[0]


def test_only_chooses_by_labels_and_knows_them(home: Path) -> None:
    rounds = {n: {"options": {"schedule.rounds": int(n)}} for n in ("1", "2")}
    cells = cells_of(home, axes={"method": BOTH, "rounds": rounds})
    assert [cell.name for cell in choose(cells, ["FedProx"])] == ["FedProx, 1, seed 0", "FedProx, 2, seed 0"]
    assert [cell.name for cell in choose(cells, [*BOTH, "2"])] == ["FedAvg, 2, seed 0", "FedProx, 2, seed 0"]
    for refused, code, name in (
        (([["FedX"]]), "unknown-label", "--only FedX"),
        (([], [7]), "unknown-number", "--seeds 7"),
        (([], [], [1]), "unknown-number", "--folds 1"),
    ):
        with raises(code, naming=name):
            choose(cells, *refused)


@pytest.mark.parametrize(
    ("changes", "code", "names"),
    [
        ({"metric": "acuracy"}, "unknown-metric", ("cell FedAvg", "'acuracy'", "'accuracy'")),
        ({"axes": {"method": {"X": {}}}}, "key-missing", ("cell X", "'methods'")),
        ({"run": "leave_one_out", "sites": ["A"]}, "too-few-sites", ("leave_one_out", "A")),
        (DOMAINS, "domains-missing", "part"),
        (DOMAINS | {"options": {"domains": {"a": ["A"]}}}, "gradient-norms-missing", "evaluation.gradient_norm"),
        (DOMAINS | {"axes": {"m": {"X": {"methods": "all"}}}}, "domains-missing", "cell X"),
        ({"folds": [1]}, "cases-missing", ("cell FedAvg", "task shapes")),
        (
            {"axes": {"method": {"X": {"methods": "fedprox"}}}, "tuning": {"draws": 2, "options": {"fedprox.x": None}}},
            "unknown-option",
            ("method fedprox", "'x'"),
        ),
    ],
)
def test_a_cell_that_does_not_resolve_is_named(
    home: Path, changes: dict[str, Any], code: str, names: str | tuple[str, ...]
) -> None:
    with raises(code, naming=names):
        cells_of(home, **changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"axes": {"method": {"X": {"methods": "fedavgg"}}}}, "cell X: .*'fedavgg'.*'fedavg'"),
        ({"axes": {"method": {"X": {"methods": "fedavg", "options": {"fedprox.mu": 0.1}}}}}, "cell X: .*fedprox"),
        ({"options": {"schedule.round": 3}}, "'schedule.round'"),
        ({"sites": ["Q"]}, "'Q'"),
        ({"axes": {"m": {"X": {"methods": "all"}}}, "run": "cross_site"}, "cell X: .*all"),
    ],
)
def test_a_job_that_is_refused_is_named(home: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        cells_of(home, **changes)


def test_every_row_gets_as_many_settings_of_which_the_first_is_its_own(home: Path) -> None:
    axes = {"method": BOTH, "mu": {"own": {}, "0.5": {"options": {"fedprox.mu": 0.5}}}}
    cells = cells_of(home, axes=axes, seeds=[0, 1], tuning={"draws": 3, "seed": 7})
    assert len(cells) == 2 * 2 * 3 * 2
    names = ["FedAvg, own, seed 0", "FedAvg, own, seed 1", "FedAvg, own, seed 0, draw 1"]
    assert [cell.name for cell in cells[:3]] == names
    drawn = {(*cell.labels.values(), cell.draw): dict(cell.drawn) for cell in cells if cell.seed == 0}
    assert all(bool(options) is (draw > 0) for (*_, draw), options in drawn.items())
    drawn_options = {tuple(options) for (_, _, draw), options in drawn.items() if draw}
    assert drawn_options == {("optimizer.lr",), ("optimizer.lr", "fedprox.mu")}
    assert "fedprox.mu" in drawn["FedProx", "own", 1] and "fedprox.mu" not in drawn["FedProx", "0.5", 1], "it is set"
    rates = {n: {options["optimizer.lr"] for (*_, draw), options in drawn.items() if draw == n} for n in (1, 2)}
    assert all(len(values) == 1 for values in rates.values()) and rates[1] != rates[2], "rows share what they share"
    assert all(0.005 <= rate <= 0.5 for values in rates.values() for rate in values), "around the task's 0.05"
    for cell in cells:
        assert work_of(cell).jobs[cell.plan.job.name].task.optimizer.lr == cell.drawn.get("optimizer.lr", 0.05)
        assert all(f"{key}={value}" in cell.commands[0] for key, value in cell.drawn.items())
    again = cells_of(home, axes=axes, seeds=[0, 1], tuning={"draws": 3, "seed": 8})
    assert again[0].work == cells[0].work and again[2].work != cells[2].work, "another seed, other settings"
    ranges = {"optimizer.lr": None, "schedule.batch_size": {"kind": "choice", "values": [4, 8]}, "fedprox.mu": None}
    row = {"method": {"FedProx": {"methods": "fedprox"}}}
    drawn_keys = [set(cell.drawn) for cell in cells_of(home, axes=row, tuning={"draws": 4, "options": ranges})]
    assert drawn_keys == [set(), *[{"schedule.batch_size"}] * 3], "a spec can change what is drawn"
