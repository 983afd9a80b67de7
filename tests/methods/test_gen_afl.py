"""Gen-AFL: the larger set of weights, and variances that must not become negative."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import GOLDEN, Sent, server_context

from fedshift.methods import afl, gen_afl
from fedshift.methods.shared.aggregation import project

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
        reduced = room * project((y - lowest) / room) + lowest
        np.testing.assert_allclose(project(y, lowest=lowest), reduced, rtol=1e-12, atol=1e-12)


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
    assert 3 * 0.1 - 1 - 2 < 0, "with the same weights the variance would be negative"
    assert out["bn.running_var"] == pytest.approx(0.1), "the nearest convex weights are (1, 0, 0)"


def test_absent_sites_leave_weights_that_can_be_reached() -> None:
    server = started(-1.0, eta=1.0)
    close(server, [sent("A", 1, 50), sent("B", 1, 0), sent("C", 1, 0)], 2)
    out = close(server, [sent("B", 10, 1), sent("C", 20, 3)], 3)
    assert server.state["lambda"][0] == 3 and server.state["lambda"].sum() == pytest.approx(1)
    assert server.state["lambda"].min() >= -1
    # λ_B = λ_C = -1 cannot be lowered; the nearest weights with sum 1 are a half each.
    assert out["w"] == pytest.approx(15)


def worst_loss(lambda_min: float, *, seed: int) -> tuple[float, float]:
    """Largest loss over sites and the losses' standard deviation after six rounds on quadratics."""
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
