"""What every method that combines models is held to: buffers, keys that stay at sites, types, weights and restarts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from conftest import Sent, server_context
from torch import nn

from fedshift.methods import method_set
from fedshift.methods.base import Server
from fedshift.methods.method_set import Method
from fedshift.schema.messages import Weights

SITES, SAMPLES, ROUNDS = "ABC", (1, 5, 2), 4
NET = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))
PARAMETERS = [name for name, _ in NET.named_parameters()]
KEPT = "3.bias"
"""A parameter that no site sends."""


def combining() -> dict[str, Method]:
    methods = {name: method_set.load({name: {}})[0] for name in method_set.available()}
    return {name: m for name, m in methods.items() if m.name == name and "combine" in m.owns and name != "single"}


METHODS = combining()


def started(name: str, **options: object) -> Server:
    method = method_set.load({name: options})[0]
    server = method.server()
    server.start(NET, server_context(round=0))
    server.receive([Sent(site, {}, n) for site, n in zip(SITES, SAMPLES, strict=True)], server_context(round=0))
    return server


def sent(name: str, weights: Weights, rng: np.random.Generator, *, largest: float) -> list[Sent]:
    """Models that differ much, and whatever arrays the method declares, up to ``largest``."""
    updates = []
    for place, (site, n) in enumerate(zip(SITES, SAMPLES, strict=True)):
        model = {key: value + rng.normal(size=value.shape).astype(value.dtype) for key, value in weights.items()}
        model["1.running_var"] = rng.uniform(0.001, 1, 2).astype(np.float32) ** 3
        model["1.num_batches_tracked"] = np.array(7 - place)
        del model[KEPT]
        arrays = {
            key: np.asarray(rng.uniform(0, min(spec.high, largest), spec.shape), spec.dtype)
            for key, spec in METHODS[name].client().up(NET).items()
        }
        updates.append(Sent(site, model, n, n_steps=10 * n, arrays={name: arrays}))
    return updates


def run(name: str, between: Callable[[Server], Server]) -> Weights:
    """The model after some rounds, before each of which ``between`` may replace the server half."""
    weights = {key: value.numpy().copy() for key, value in NET.state_dict().items()}
    server, rng = started(name), np.random.default_rng(0)
    for round_ in range(1, ROUNDS + 1):
        server = between(server)
        ctx = server_context(*PARAMETERS, round=round_, rounds=ROUNDS)
        updates = sent(name, weights, rng, largest=30)
        server.receive(updates, ctx)
        combined = server.combine(weights, updates, ctx)
        for key, old in weights.items():
            assert (combined[key].dtype, combined[key].shape) == (old.dtype, old.shape), key
            models = [update.weights[key] for update in updates if key in update.weights]
            if "running" in key:
                assert (combined[key] >= np.min(models, 0) - 1e-6).all(), "a variance stays positive"
                assert (combined[key] <= np.max(models, 0) + 1e-6).all()
        assert combined["1.num_batches_tracked"] == 7, "counts are not averaged"
        np.testing.assert_array_equal(combined[KEPT], weights[KEPT])
        assert not np.array_equal(combined["0.weight"], weights["0.weight"])
        weights = combined
    return weights


def restarted(server: Server) -> Server:
    """A new half with nothing but the state."""
    new = type(server)(server.config)
    new.state = {name: array.copy() for name, array in server.state.items()}
    return new


@pytest.mark.parametrize("name", METHODS)
def test_buffers_stay_within_the_sites_and_a_new_server_goes_on_from_the_state(name: str) -> None:
    straight, again = run(name, lambda server: server), run(name, restarted)
    for key, value in straight.items():
        np.testing.assert_array_equal(value, again[key], err_msg=key)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("name", [name for name, m in METHODS.items() if "weights" in type(m.config).model_fields])
def test_sites_count_by_samples_or_alike(name: str, weights: str) -> None:
    old = {key: value.numpy().copy() for key, value in NET.state_dict().items()}
    server, updates = started(name, weights=weights), sent(name, old, np.random.default_rng(0), largest=0)
    combined = server.combine(old, updates, server_context(*PARAMETERS))
    shares = None if weights == "uniform" else SAMPLES
    means = np.average([update.weights["1.running_mean"] for update in updates], axis=0, weights=shares)
    torch.testing.assert_close(torch.tensor(combined["1.running_mean"]), torch.tensor(means, dtype=torch.float32))
