"""FedNova against NIID-Bench's numbers; its fixed point minimises the objective for any step counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from conftest import Samples, Sent, golden, make_context, server_context
from torch import nn

from fedshift.methods import fedavg, fednova, fedprox
from fedshift.methods.base import Batch, Server
from fedshift.methods.shared.aggregation import effective_steps, proximal_steps
from fedshift.schema.optimizer import OptimizerSpec


def golden_site(rows: np.ndarray, w: np.ndarray, *, lr: float, momentum: float) -> tuple[np.ndarray, int]:
    """Two epochs of SGD on batches of two rows (a, b) of .5 (a.w - b)^2; weights and steps."""
    parameter = nn.Parameter(torch.from_numpy(w.copy()))
    optimizer = torch.optim.SGD([parameter], lr=lr, momentum=momentum)
    steps = 0
    for _ in range(2):
        for batch in torch.from_numpy(rows).split(2):
            optimizer.zero_grad()
            (0.5 * (batch[:, :3] @ parameter - batch[:, 3]) ** 2).mean().backward()
            optimizer.step()
            steps += 1
    return parameter.detach().numpy(), steps


@pytest.mark.parametrize(("lr", "rho"), [(0.05, 0.0), (0.02, 0.9)])
def test_two_rounds_are_the_benchmarks(lr: float, rho: float) -> None:
    g = golden("scaffold_fednova_quadratic")
    ctx = server_context("w", optimizer=OptimizerSpec(name="sgd", lr=lr, momentum=rho, keep=False))
    server, weights = fednova.Server(fednova.Config()), {"w": g["w0"]}
    for r in range(2):
        name = f"fednova_lr{lr}_rho{rho}_r{r}"
        trained = [golden_site(g[f"data{i}"], weights["w"], lr=lr, momentum=rho) for i in range(3)]
        np.testing.assert_allclose([w for w, _ in trained], g[f"{name}_client_w"], rtol=1e-10)
        np.testing.assert_allclose([effective_steps(steps, rho) for _, steps in trained], g[f"{name}_a"], rtol=1e-10)
        counts = g["n"].tolist()
        sent = [Sent(str(i), {"w": w}, counts[i], steps) for i, (w, steps) in enumerate(trained)]
        weights = server.combine(weights, sent, ctx)
        np.testing.assert_allclose(weights["w"], g[f"{name}_global_w"], rtol=1e-10)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_effective_steps_are_the_sum_of_the_gradients_weights(momentum: float) -> None:
    velocity = moved = 0.0
    for tau in range(1, 12):
        velocity = momentum * velocity + 1.0
        moved += velocity
        assert effective_steps(tau, momentum) == pytest.approx(moved, rel=1e-12)


def limit(server: Server[fedavg.Config] | Server[fednova.Config], *, momentum: float) -> float:
    """Limit for two sites with optima 0 and 1 and equal data, one of which takes ten times as many steps."""
    ctx = server_context("w", optimizer=OptimizerSpec(name="sgd", lr=0.01, momentum=momentum, keep=False))
    weights = {"w": np.array([0.3])}
    for _ in range(300):
        sent = []
        for site, (optimum, steps) in enumerate(((0.0, 3), (1.0, 30))):
            w, velocity = weights["w"], 0.0
            for _ in range(steps):
                velocity = momentum * velocity + (w - optimum)
                w = w - 0.01 * velocity
            sent.append(Sent(str(site), {"w": w}, 10, steps))
        weights = server.combine(weights, sent, ctx)
    return float(weights["w"][0])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_ends_near_the_common_optimum_where_fedavg_follows_the_busy_site(momentum: float) -> None:
    averaged = limit(fedavg.Server(fedavg.Config()), momentum=momentum)
    normalised = limit(fednova.Server(fednova.Config()), momentum=momentum)
    assert averaged > 0.8
    assert abs(normalised - 0.5) < 0.4 * abs(averaged - 0.5)


@pytest.mark.parametrize("pull", [0.0, 1e-9, 0.01, 0.3])
def test_proximal_steps_are_the_sum_of_the_gradients_weights(pull: float) -> None:
    moved = 0.0
    for tau in range(1, 12):
        moved = (1 - pull) * moved + 1.0
        assert proximal_steps(tau, pull) == pytest.approx(moved, rel=1e-6)


def with_prox(steps: Sequence[int], mu: float, gradients: np.ndarray, start: np.ndarray, *, lr: float) -> list[Sent]:
    """What sites send after ``steps`` steps of FedProx on losses with constant gradients (N, d)."""
    sent = []
    for site, (n, gradient) in enumerate(zip(steps, gradients, strict=True)):
        net = nn.Linear(len(start), 1, bias=False).double()
        net.weight.data = torch.from_numpy(start[None].copy())
        client, ctx = fedprox.Client(fedprox.Config(mu=mu)), make_context("fedprox", net)
        optimizer = torch.optim.SGD(net.parameters(), lr=lr)
        client.begin(Samples(np.zeros((1, 1))), ctx)
        for _ in range(n):
            optimizer.zero_grad()
            logits = net(torch.from_numpy(gradient)[None])
            client.loss(Batch(logits, logits), logits, logits.sum(), ctx).backward()
            optimizer.step()
            ctx.run.step += 1
        sent.append(Sent(str(site), {"w": net.weight.detach().numpy()[0].copy()}, 10 * (site + 1), n))
    return sent


def test_with_fedprox_the_server_moves_along_the_sites_mean_gradient() -> None:
    """The closed form: w − η (Σ p_i a_i) Σ p_i g_i, with a_i = (1 − (1 − η μ)^τ_i) / (η μ)."""
    lr, mu, steps = 0.1, 0.8, (2, 7, 30)
    rng = np.random.default_rng(0)
    start, gradients = rng.normal(size=4), rng.normal(size=(3, 4))
    sent = with_prox(steps, mu, gradients, start, lr=lr)
    ctx = server_context("w", optimizer=OptimizerSpec(name="sgd", lr=lr), methods={"fedprox": {"mu": mu}})
    got = fednova.Server(fednova.Config()).combine({"w": start}, sent, ctx)["w"]
    shares = np.array([10, 20, 30]) / 60
    a = (1 - (1 - lr * mu) ** np.array(steps)) / (lr * mu)
    np.testing.assert_allclose(got, start - lr * (shares @ a) * (shares @ gradients), rtol=1e-10)
    plain = fednova.Server(fednova.Config()).combine({"w": start}, sent, server_context("w", optimizer=ctx.optimizer))[
        "w"
    ]
    assert np.abs(plain - got).max() > 0.01, "the a_i of plain SGD are others"


def test_a_variance_that_the_moves_would_turn_negative_is_averaged() -> None:
    old = {"w": np.float32([1]), "bn.running_var": np.float32([0.1])}
    sent = [
        Sent("A", {"w": np.float32([1]), "bn.running_var": np.float32([1.0])}, 1, n_steps=100),
        Sent("B", {"w": np.float32([0]), "bn.running_var": np.float32([0.05])}, 1, n_steps=1),
    ]
    out = fednova.Server(fednova.Config()).combine(old, sent, server_context("w"))
    assert out["w"] < -20 and 0.1 + 25 * (0.05 - 0.1) < 0, "the same coefficients would make the variance negative"
    assert out["bn.running_var"] == pytest.approx(0.525)
