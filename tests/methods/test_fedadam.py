"""FedAdam, and what FedYogi and FedAdagrad share with it: Algorithm 2 element by element, state, buffers, and scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Sent, server_context

from fedshift.methods import fedadagrad, fedadam, fedyogi
from fedshift.methods.shared import adaptive

METHODS: dict[str, Callable[..., adaptive.Server[Any]]] = {
    "adam": lambda **options: fedadam.Server(fedadam.Config(**options)),
    "yogi": lambda **options: fedyogi.Server(fedyogi.Config(**options)),
    "adagrad": lambda **options: fedadagrad.Server(fedadagrad.Config(**options)),
}


def algorithm_2(
    kind: str,
    start: list[float],
    rounds: list[list[list[float]]],
    counts: list[int],
    *,
    b1: float,
    tau: float,
    lr: float,
) -> list[list[float]]:
    """The paper's Algorithm 2 in plain numbers: for each round the model, from the sites' models; β2 = 0.95."""
    x, m, v = list(start), [0.0] * len(start), [tau**2] * len(start)
    seen = []
    for models in rounds:
        for i in range(len(x)):
            delta = sum(n * (model[i] - x[i]) for n, model in zip(counts, models, strict=True)) / sum(counts)
            m[i] = b1 * m[i] + (1 - b1) * delta
            if kind == "adagrad":
                v[i] = v[i] + delta**2
            elif kind == "yogi":
                sign = (v[i] > delta**2) - (v[i] < delta**2)
                v[i] = v[i] - 0.05 * delta**2 * sign
            else:
                v[i] = 0.95 * v[i] + 0.05 * delta**2
            x[i] = x[i] + lr * m[i] / (v[i] ** 0.5 + tau)
        seen.append(list(x))
    return seen


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("b1", [0.0, 0.9])
def test_three_rounds_are_algorithm_2_and_go_on_from_a_saved_state(kind: str, b1: float) -> None:
    rng = np.random.default_rng(3)
    start, models = rng.normal(size=5), rng.normal(size=(3, 2, 5)) * [0.001, 0.01, 0.1, 1, 10]
    counts = [30, 10]
    expected = algorithm_2(kind, start.tolist(), models.tolist(), counts, b1=b1, tau=0.02, lr=0.3)
    options = {} if kind == "adagrad" else {"beta2": 0.95}
    weights, state = {"w": start}, dict[str, np.ndarray]()
    for sent, there in zip(models, expected, strict=True):
        server = METHODS[kind](beta1=b1, tau=0.02, server_lr=0.3, **options)
        server.state = state
        updates = [Sent(site, {"w": w}, n) for site, w, n in zip("AB", sent, counts, strict=True)]
        weights = server.combine(weights, updates, server_context("w"))
        np.testing.assert_allclose(weights["w"], there, rtol=1e-12)
        state = {name: array.copy() for name, array in server.state.items()}
    assert set(state) == {"m.w", "v.w"}


@pytest.mark.parametrize("kind", METHODS)
def test_badly_scaled_parameters_move_alike(kind: str) -> None:
    """Of two parameters with changes a thousand times apart, FedAvg would move one a thousand times as far."""
    weights = {"w": np.zeros(2)}
    server = METHODS[kind](tau=1e-6)
    for _ in range(10):
        sent = [Sent("A", {"w": weights["w"] + [0.001, 1.0]}), Sent("B", {"w": weights["w"] + [0.002, 2.0]})]
        weights = server.combine(weights, sent, server_context("w"))
    assert weights["w"].min() > 0
    assert weights["w"][1] / weights["w"][0] == pytest.approx(1, abs=0.1)
