"""FedLWS: a round layer by layer as the formulas have it, bounds of τ, and what is not shrunk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Sent, server_context
from errors import raises

from fedshift.methods import fedavg, fedlws

KEYS = ("a.weight", "a.bias", "b.weight")


def combined(old: dict[str, np.ndarray], sent: list[Sent], *trainable: str, **options: Any) -> dict[str, np.ndarray]:
    return fedlws.Server(fedlws.Config.parse(options, where="")).combine(old, sent, server_context(*trainable))


def by_hand(
    old: np.ndarray, models: list[np.ndarray], counts: list[int], beta: float, low: float, high: float
) -> np.ndarray:
    """One layer, flat."""
    mean = sum(n * model for n, model in zip(counts, models, strict=True)) / sum(counts)
    changes = [model - old for model in models]
    centre = sum(changes) / len(changes)
    tau = beta * sum(float(np.linalg.norm(change - centre)) for change in changes) / len(changes)
    tau = min(max(tau, low), high)
    length = float(np.linalg.norm(old))
    return np.asarray(length / (length + tau * float(np.linalg.norm(mean - old))) * mean)


@pytest.mark.parametrize(("beta", "low", "high"), [(0.03, 0.01, 0.2), (0.03, 0, 1e9), (2, 0, 1e9), (1e-6, 0.5, 1)])
def test_a_round_is_the_formulas_for_each_module(beta: float, low: float, high: float) -> None:
    rng, counts = np.random.default_rng(0), [50, 10, 20]
    old = {key: rng.normal(size=shape) for key, shape in zip(KEYS, ((4, 3), (4,), (2, 4)), strict=True)}
    models = [{key: value + rng.normal(size=value.shape) for key, value in old.items()} for _ in counts]
    sent = [Sent(str(i), model, n) for i, (model, n) in enumerate(zip(models, counts, strict=True))]
    weights = combined(old, sent, *KEYS, beta=beta, min_tau=low, max_tau=high)
    for keys in (("a.bias", "a.weight"), ("b.weight",)):
        flat = [np.concatenate([model[key].ravel() for key in keys]) for model in (old, *models)]
        expected = by_hand(flat[0], flat[1:], counts, beta, low, high)
        np.testing.assert_allclose(np.concatenate([weights[key].ravel() for key in keys]), expected, rtol=1e-9)


def test_numbers_that_can_be_checked_in_the_head() -> None:
    """‖w‖ is 2; the changes are 3 and −1, each 2 from their mean, so τ is 1 with β = 1/2; the mean change is 1."""
    sent = [Sent("A", {"w": np.array([5.0])}), Sent("B", {"w": np.array([1.0])})]
    weights = combined({"w": np.array([2.0])}, sent, "w", beta=0.5, max_tau=9)["w"]
    np.testing.assert_allclose(weights, 2 / 3 * 3)


def test_without_tau_it_is_fedavg_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    old = {"w": rng.normal(size=50).astype(np.float32)}
    sent = [Sent(str(i), {"w": rng.normal(size=50).astype(np.float32)}, n) for i, n in enumerate((3, 5, 9))]
    average = fedavg.Server(fedavg.Config()).combine(old, sent, server_context("w"))["w"]
    np.testing.assert_array_equal(combined(old, sent, "w", min_tau=0, max_tau=0)["w"], average)
    assert np.linalg.norm(combined(old, sent, "w")["w"]) < np.linalg.norm(average)


def test_statistics_and_layers_of_zeros_are_averaged() -> None:
    old = {
        "bn.running_var": np.ones(1),
        "bn.weight": np.ones(1),
        "bn.num_batches_tracked": np.array(3),
        "z": np.zeros(2),
    }
    new = {"bn.running_var": np.array([4.0]), "bn.weight": np.array([2.0]), "bn.num_batches_tracked": np.array(7)}
    sent = [Sent("A", {**new, "z": np.array([1.0, 0])}), Sent("B", {**new, "z": np.array([0, 1.0])})]
    weights = combined(old, sent, "bn.weight", "z")
    assert weights["bn.running_var"] == 4 and weights["bn.num_batches_tracked"] == 7 and weights["bn.weight"] < 2
    np.testing.assert_array_equal(weights["z"], 0.5)


def test_bounds_that_cross_are_refused() -> None:
    with raises("options-clash", naming=("fedlws.min_tau", "fedlws.max_tau")):
        fedlws.Config.parse({"min_tau": 0.5, "max_tau": 0.1}, where="")
