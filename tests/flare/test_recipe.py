"""The recipe makes the job that ``fedshift job`` makes, and FLARE's environments run it as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SHAPES, make_image_site
from errors import raises
from modelfiles import assert_same_model
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.recipe import SimEnv

from fedshift import cli
from fedshift.federation.in_process import run_in_process
from fedshift.flare.recipe import FeatureShiftRecipe, as_options
from fedshift.schema.results import BEST, LAST

from .conftest import IMAGE_SHIFTS

pytestmark = pytest.mark.timeout(1200)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("production", [False, True])
def test_the_job_is_that_of_the_command_to_the_byte(production: bool, tmp_path: Path) -> None:
    arguments = ["fedfa+fedrdn", "prostate", "--protocol", "fedfa", "--sites", "BIDMC,HK,UCL", "--seed", "7"]
    options = ["optimizer.lr=1.0e-5", "fedfa.p=0.3", "data.matrix=96", "schedule.rounds=3"]
    command = ["job", *arguments, "--set", *options, "--out", str(tmp_path / "command")]
    assert cli.main([*command, *(["--production"] if production else [])]) == 0
    recipe = FeatureShiftRecipe(
        task="prostate",
        method="fedfa+fedrdn",
        protocol="fedfa",
        sites=["BIDMC", "HK", "UCL"],
        options={"optimizer.lr": 1e-5, "fedfa.p": 0.3, "data.matrix": 96, "schedule.rounds": 3},
        seed=7,
        production=production,
    )
    recipe.export(str(tmp_path / "recipe"))
    assert recipe.name == "fedfa_fedrdn_prostate"
    assert recipe.clients == ["BIDMC", "HK", "UCL"]
    assert files(tmp_path / "recipe") == files(tmp_path / "command")


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (1e-5, "1.0e-05"), ("sgd", "sgd"), ("3", "'3'"), (None, "null"), (True, "true"), (["A", "B"], "[A, B]")],
)
def test_a_setting_is_what_one_would_type(value: Any, text: str) -> None:
    assert as_options({"some.key": value}) == [f"some.key={text}"]


def test_a_setting_that_no_job_can_hold_is_refused() -> None:
    with raises("invalid-value", naming=("optimizer.lr", "Tensor")):
        as_options({"optimizer.lr": torch.tensor(0.1)})


def small(**changes: Any) -> FeatureShiftRecipe:
    return FeatureShiftRecipe(task=str(SHAPES), method="fedfa+fedrdn", options=["schedule.rounds=2"], **changes)


@pytest.mark.parametrize(
    "add",
    [
        lambda recipe: recipe.add_client_output_filter(ExcludeVars()),
        lambda recipe: recipe.add_server_config({"timeout": 3}),
        lambda recipe: recipe.set_per_site_config({"A": {"batch_size": 2}}),
        lambda recipe: recipe.run(SimEnv(clients=recipe.clients), client_exec_params={"timeout": 3}),
    ],
)
def test_what_others_add_to_a_recipe_is_refused_and_not_lost(add: Callable[[FeatureShiftRecipe], object]) -> None:
    with raises("job-fixed"):
        add(small())


def test_other_clients_than_the_jobs_are_refused(tmp_path: Path) -> None:
    for clients in ({"num_clients": 2}, {"clients": ["A", "B", "D"]}):
        with raises("other-site", naming=("fedfa_fedrdn_shapes", "['A', 'B', 'C']")):
            small().run(SimEnv(workspace_root=str(tmp_path), **clients))


@pytest.fixture
def in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recipe's job on three phantom sites, which are also where the simulator looks for them."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    for name in ("FEDSHIFT_DATA", "NVFLARE_SIMULATOR_WORKSPACE_ROOT"):
        monkeypatch.delenv(name, raising=False)
    phantom = tmp_path / "share" / "fedshift" / "phantom"
    data = {s: make_image_site(phantom, s, gain=g, offset=o) for s, (g, o) in IMAGE_SHIFTS.items()}
    run_in_process(small().spec, data, tmp_path / "one")
    return tmp_path / "one"


@pytest.mark.slow
def test_in_the_simulator_the_weights_are_those_of_one_process(
    in_process: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = small()
    run = recipe.run(SimEnv(clients=recipe.clients, workspace_root=str(tmp_path / "w")))
    assert "round 2 of 2 done" in capsys.readouterr().out
    result = run.get_result()
    assert result is not None
    for file in (BEST, LAST):
        assert_same_model(in_process / file, Path(result) / "server" / "simulate_job" / file)
