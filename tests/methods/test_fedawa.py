"""FedAWA: the objective and its steps against vectors in full, the code's weights, who gains weight, absent sites."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import Sent, server_context
from torch import Tensor, nn

from fedshift.methods import fedawa

SITES, COUNTS = "ABC", (50, 10, 20)


def started(**options: Any) -> fedawa.Server:
    server = fedawa.Server(fedawa.Config.parse(options, where=""))
    server.start(nn.Identity(), server_context(round=0))
    return server


def sent(models: np.ndarray, sites: str = SITES) -> list[Sent]:
    counts = dict(zip(SITES, COUNTS, strict=True))
    return [Sent(site, {"w": model}, counts[site]) for site, model in zip(sites, models, strict=True)]


def by_vectors(logits: Tensor, old: Tensor, models: Tensor, *, released: bool) -> Tensor:
    """The formulas as they stand."""
    shares, changes = logits.softmax(0), models - old
    mean = (shares[:, None] * changes).sum(0)
    spread = sum(share * (change - mean).norm() for share, change in zip(shares, changes, strict=True))
    if released:
        cosines = nn.functional.cosine_similarity(models, old[None])
        return spread + (shares * (1 - cosines)).sum()
    return spread + 1 - nn.functional.cosine_similarity((shares[:, None] * models).sum(0), old, dim=0)


def trained(start: Tensor, old: Tensor, models: Tensor, *, lr: float, steps: int, released: bool) -> list[Tensor]:
    """T before each step and after the last."""
    logits = start.clone().requires_grad_()
    optimizer, seen = torch.optim.Adam([logits], lr=lr, betas=(0.5, 0.999)), []
    for _ in range(steps):
        seen.append(logits.detach().clone())
        optimizer.zero_grad()
        by_vectors(logits, old, models, released=released).backward()
        optimizer.step()
    return [*seen, logits.detach()]


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_rounds_are_the_formulas(variant: str) -> None:
    rng = np.random.default_rng(0)
    server, released = started(variant=variant, lr=0.1, steps=3), variant == "released"
    n = torch.tensor(COUNTS, dtype=torch.float64)
    logits = n / n.sum() if released else n.log()
    weights = {"w": rng.normal(size=30)}
    for _ in range(2):
        old, models = weights["w"], weights["w"] + rng.normal(size=(3, 30)) * [[0.1], [0.5], [1.0]]
        seen = trained(logits, torch.from_numpy(old), torch.from_numpy(models), lr=0.1, steps=3, released=released)
        logits = seen[-1]
        shares = (seen[-2] if released else logits).softmax(0).numpy()
        weights = server.combine(weights, sent(models), server_context("w"))
        np.testing.assert_allclose(weights["w"], shares @ models, rtol=1e-6)
        np.testing.assert_allclose(server.state["logits"], logits.numpy(), rtol=1e-6)


def test_the_released_code_averages_with_the_weights_before_its_step() -> None:
    """One step a round, as there: the first round's weights are the softmax of n_k/n."""
    old, models = np.ones(2), np.array([[2.0, 1.0], [1.0, 2.0], [1.0, 1.5]])
    result = started(variant="released").combine({"w": old}, sent(models), server_context("w"))["w"]
    shares = np.exp(np.array(COUNTS) / 80)
    np.testing.assert_allclose(result, shares @ models / shares.sum())


@pytest.mark.parametrize("start", ["samples", "uniform"])
def test_without_a_learning_rate_it_is_fedavg(start: str) -> None:
    models = np.random.default_rng(0).normal(size=(3, 5))
    server = started(lr=0, steps=5, start=start)
    shares = np.array(COUNTS) / 80 if start == "samples" else np.full(3, 1 / 3)
    for round_ in (1, 2):
        result = server.combine({"w": np.ones(5)}, sent(models), server_context("w", round=round_))["w"]
        np.testing.assert_allclose(result, shares @ models)


def test_a_site_that_goes_elsewhere_loses_weight_and_statistics_follow() -> None:
    old = {"w": np.ones(3), "running_mean": np.zeros(1)}
    moves = {"A": [1.0, 0, 0], "B": [1.0, 0.1, 0], "C": [-3.0, 0, 1]}
    server = started(lr=0.1, start="uniform")
    for round_ in range(1, 6):
        updates = [
            Sent(site, {"w": old["w"] + move, "running_mean": np.array([float(site == "C")])})
            for site, move in moves.items()
        ]
        result = server.combine(old, updates, server_context("w", round=round_))
    shares = np.exp(server.state["logits"]) / np.exp(server.state["logits"]).sum()
    assert shares[2] < 0.3 < shares[0]
    np.testing.assert_allclose(result["running_mean"], shares[2:])


def test_sites_that_move_alike_keep_their_weights_and_one_alone_is_the_model() -> None:
    server = started(lr=0.1)
    server.combine({"w": np.ones(3)}, sent(np.full((3, 3), 1.5)), server_context("w"))
    shares = np.exp(server.state["logits"]) / np.exp(server.state["logits"]).sum()
    np.testing.assert_allclose(shares, np.array(COUNTS) / 80, rtol=1e-3)
    alone = server.combine({"w": np.ones(3)}, sent(np.full((1, 3), 2.0), "B"), server_context("w"))
    np.testing.assert_allclose(alone["w"], 2.0)
    still = started().combine({"w": np.zeros(3)}, sent(np.zeros((3, 3))), server_context("w"))["w"]
    np.testing.assert_array_equal(still, 0)


def test_an_absent_site_keeps_its_weight_and_a_late_one_begins_at_its_samples() -> None:
    models, server = np.random.default_rng(0).normal(size=(3, 5)), started(lr=0.1)
    server.combine({"w": np.ones(5)}, sent(models[:2], "AB"), server_context("w"))
    after = server.state["logits"].copy()
    assert after[2] == 0 and server.state["known"].tolist() == [1, 1, 0]
    server.combine({"w": np.ones(5)}, sent(models[1:], "BC"), server_context("w", round=2))
    assert server.state["logits"][0] == after[0] and server.state["logits"][1] != after[1]
    assert abs(server.state["logits"][2] - np.log(20)) == pytest.approx(0.1, rel=1e-3)
