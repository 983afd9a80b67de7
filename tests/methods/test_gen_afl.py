"""Gen-AFL: the wider set of weights, what lies at its ends, and variances that must not turn negative."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import GOLDEN, Sent, server_context, small_image_job

from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import load_checkpoint
from fedshift.methods import afl, gen_afl
from fedshift.schema.errors import ConfigError
from fedshift.schema.results import LAST

TABLE = json.loads((GOLDEN / "afl_projection.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", TABLE["lambda_update"])
def test_a_step_of_lambda_is_exact(case: dict[str, list[float] | float]) -> None:
    start, losses = np.array(case["lambda"]), np.array(case["losses"])
    new = afl.next_weights(start, losses, eta=case["eta"], lowest=case["lambda_min"])
    np.testing.assert_allclose(new, case["exact_new_lambda"], rtol=1e-10, atol=1e-12)


def test_the_projection_is_proposition_one() -> None:
    rng = np.random.default_rng(0)
    for lowest in (-1.0, -0.1, 0.05, 0.2):
        y, room = rng.normal(0, 2, 4), 1 - 4 * lowest
        reduced = room * afl.project((y - lowest) / room) + lowest
        np.testing.assert_allclose(afl.project(y, lowest=lowest), reduced, rtol=1e-12, atol=1e-12)


def sent(site: str, w: float, loss: float, *, variance: float = 1.0, n: int = 1) -> Sent:
    weights = {"w": np.float64([w]), "bn.running_var": np.float64([variance])}
    return Sent(site, weights, n, arrays={"gen_afl": {"loss": np.asarray(loss)}})


def started(lambda_min: float, eta: float = 0.1) -> gen_afl.Server:
    server = gen_afl.Server(gen_afl.Config(lambda_min=lambda_min, eta=eta))
    server.receive([sent(site, 0, 0) for site in "ABC"], server_context(round=0))
    return server


def close(server: gen_afl.Server, updates: list[Sent], round_: int) -> dict[str, np.ndarray]:
    ctx = server_context("w", round=round_)
    server.receive(updates, ctx)
    return server.combine({"w": np.float64([0]), "bn.running_var": np.float64([1])}, updates, ctx)


def test_weights_of_three_and_minus_one_extrapolate_parameters_and_leave_variances_positive() -> None:
    server = started(-1.0, eta=1.0)
    updates = [sent("A", 1, 50, variance=0.1), sent("B", 10, 0, variance=1), sent("C", 20, 0, variance=2)]
    out = close(server, updates, 2)
    np.testing.assert_allclose(server.state["lambda"], [3, -1, -1])
    assert out["w"] == pytest.approx(3 - 10 - 20)
    assert 3 * 0.1 - 1 - 2 < 0, "with the same weights the variance would have been negative"
    assert out["bn.running_var"] == pytest.approx(0.1), "the nearest convex weights are (1, 0, 0)"


def test_absent_sites_leave_weights_that_can_be_reached() -> None:
    server = started(-1.0, eta=1.0)
    close(server, [sent("A", 1, 50), sent("B", 1, 0), sent("C", 1, 0)], 2)
    out = close(server, [sent("B", 10, 1), sent("C", 20, 3)], 3)
    assert server.state["lambda"][0] == 3 and server.state["lambda"].sum() == pytest.approx(1)
    assert server.state["lambda"].min() >= -1
    # λ_B = λ_C = -1 cannot be lowered further; nearest with the sum 1: a half each.
    assert out["w"] == pytest.approx(15)


def final(
    names: str, *options: str, data: dict[str, Path], folder: Path, sites: str = "ABC"
) -> dict[str, torch.Tensor]:
    job = small_image_job(names, *options, "schedule.rounds=3", sites=tuple(sites))
    run_in_process(job, data, folder)
    weights: dict[str, torch.Tensor] = load_checkpoint(folder / LAST)["weights"]
    return weights


def assert_close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    for key, value in one.items():
        torch.testing.assert_close(other[key], value, rtol=1e-4, atol=1e-6, msg=key)


def test_with_lambda_min_zero_it_is_afl(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    plain = final("afl", "afl.eta=0.5", data=three_image_sites, folder=tmp_path / "a")
    general = final("gen_afl", "gen_afl.eta=0.5", "gen_afl.lambda_min=0", data=three_image_sites, folder=tmp_path / "b")
    assert all(torch.equal(plain[key], general[key]) for key in plain)


def test_with_lambda_min_one_over_n_it_is_uniform_fedavg(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    plain = final("fedavg", "fedavg.weights=uniform", data=three_image_sites, folder=tmp_path / "a", sites="AB")
    options = ["gen_afl.eta=5", "gen_afl.lambda_min=0.5"]
    general = final("gen_afl", *options, data=three_image_sites, folder=tmp_path / "b", sites="AB")
    assert_close(plain, general)


def worst_loss(lambda_min: float, *, seed: int) -> tuple[float, float]:
    """Largest loss over sites, and their spread, after six rounds on quadratics of unequal curvature."""
    rng = np.random.default_rng(seed)
    optima, curvature = np.array([0.0, 0.3, 2.0]) + rng.normal(0, 0.1, 3), np.array([1.0, 0.8, 0.3])
    server, w = started(lambda_min, eta=1.0), 0.0
    for r in range(1, 7):
        told = 0.5 * curvature * (w - optima) ** 2
        moved = w - 0.1 * curvature * (w - optima)
        updates = [sent(site, x, f) for site, x, f in zip("ABC", moved, told, strict=True)]
        w = float(close(server, updates, r)["w"][0])
    losses = 0.5 * curvature * (w - optima) ** 2
    return float(losses.max()), float(losses.std())


@pytest.mark.parametrize("seed", range(3))
def test_below_zero_the_worst_off_site_is_helped_sooner_than_by_afl_and_by_averaging(seed: int) -> None:
    (extrapolated, spread), (fair, fair_spread), (even, _) = (worst_loss(low, seed=seed) for low in (-1, 0, 1 / 3))
    assert extrapolated < 0.95 * fair and fair < 0.95 * even
    assert spread < 0.95 * fair_spread


def test_more_weight_than_there_is_is_refused_when_the_job_is_made() -> None:
    with pytest.raises(ConfigError, match=r"method gen_afl: with lambda_min 0\.4 the weights of 3 sites"):
        small_image_job("gen_afl", "gen_afl.lambda_min=0.4")
    assert small_image_job("gen_afl", "gen_afl.lambda_min=0.4", sites=("A", "B"))
    for option in ("lambda_min=-1000", "eta=-0.1"):
        with pytest.raises(ConfigError, match=f"method gen_afl: '{option.split('=')[0]}'"):
            small_image_job("gen_afl", f"gen_afl.{option}")


def test_sites_cannot_be_drawn() -> None:
    with pytest.raises(ConfigError, match=r"method gen_afl: .*--set federation\.sites_per_round=null"):
        small_image_job("gen_afl", "federation.sites_per_round=2")
