"""FedDyn against its paper's equations on quadratics, where it finds the optimum of all sites; lost updates."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Samples, Sent, make_context, server_context

from fedshift.methods import base, feddyn

from .made import Point

SITES = ("A", "B", "C")
CURVES = [np.diag([1.0, 0.2]), np.diag([0.3, 2.0]), np.array([[1.0, 0.4], [0.4, 0.5]])]
OPTIMA = [np.array([1.0, -2.0]), np.array([-3.0, 0.5]), np.array([0.0, 4.0])]
"""Site k's loss is ½ (θ − b)' A (θ − b)."""
START = np.array([0.5, 0.5])


class Federation:
    """The method's halves on the three quadratics, by gradient descent."""

    def __init__(self, n_samples: tuple[int, ...] = (1, 1, 1), steps: int = 5, **options: Any) -> None:
        self.config = feddyn.Config(**options)
        self.server, self.steps, self.n_samples = feddyn.Server(self.config), steps, n_samples
        self.server.start(Point(START), server_context("w"))
        counts = [Sent(site, {}, n) for site, n in zip(SITES, n_samples, strict=True)]
        self.server.receive(counts, server_context("w", round=0))
        self.w = START
        self.states: list[dict[str, torch.Tensor]] = [{} for _ in SITES]

    def round(
        self,
        number: int,
        *,
        absent: tuple[int, ...] = (),
        lost: tuple[int, ...] = (),
        parts: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        """``parts``: by site what the server's limits leave of its change."""
        ctx, sent = server_context("w", round=number), []
        arrays = self.server.broadcast(ctx)
        for k, site in enumerate(SITES):
            if k in absent:
                continue
            net, client = Point(self.w), feddyn.Client(self.config)
            run = make_context("feddyn", net, site=site, round=number).run
            run_ctx = base.Context(run, "feddyn", self.states[k])
            data = Samples(np.zeros((self.n_samples[k], 1)))
            client.receive(arrays, run_ctx)
            client.begin(data, run_ctx)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            a, b = torch.from_numpy(CURVES[k]), torch.from_numpy(OPTIMA[k])
            for _ in range(self.steps):
                optimizer.zero_grad()
                (0.5 * (net.w - b) @ a @ (net.w - b)).backward()  # type: ignore[no-untyped-call]
                client.gradients(run_ctx)
                optimizer.step()
            assert client.end(data, run_ctx) == {}
            if k not in lost:
                w, part = net.w.detach().numpy(), parts.get(k, 1.0)
                scaled = {"weights": part} if k in parts else {}
                sent.append(Sent(site, {"w": self.w + part * (w - self.w)}, self.n_samples[k], scaled=scaled))
        self.server.receive(sent, ctx)
        self.w = self.server.combine({"w": self.w}, sent, ctx)["w"]


def test_rounds_are_the_papers_equations_with_absent_sites() -> None:
    """Algorithm 1 with g_k and h as printed."""
    alpha, steps = 0.3, 5
    federation = Federation(steps=steps, alpha=alpha)
    theta, h, g = START.copy(), np.zeros(2), [np.zeros(2) for _ in SITES]
    for number, absent in enumerate([(), (1,), (), (0, 2), ()], 1):
        federation.round(number, absent=absent)
        models = {}
        for k in range(3):
            if k in absent:
                continue
            x = theta.copy()
            for _ in range(steps):
                x = x - 0.1 * (CURVES[k] @ (x - OPTIMA[k]) - g[k] + alpha * (x - theta))
            models[k] = x
            g[k] = g[k] - alpha * (x - theta)
        h = h - alpha / 3 * sum(x - theta for x in models.values())
        theta = np.mean(list(models.values()), axis=0) - h / alpha
        np.testing.assert_allclose(federation.w, theta, rtol=1e-10)


def test_it_ends_at_the_optimum_of_the_mean_loss_where_fedavg_does_not() -> None:
    optimum = np.linalg.solve(sum(CURVES), sum(a @ b for a, b in zip(CURVES, OPTIMA, strict=True)))
    federation = Federation(steps=10, alpha=0.5)
    average = START
    for number in range(1, 50):
        federation.round(number)
        models = []
        for a, b in zip(CURVES, OPTIMA, strict=True):
            x = average
            for _ in range(10):
                x = x - 0.1 * a @ (x - b)
            models.append(x)
        average = np.mean(models, axis=0)
    np.testing.assert_allclose(federation.w, optimum, atol=1e-3)
    assert np.abs(average - optimum).max() > 0.1


@pytest.mark.slow
def test_released_tends_to_the_optimum_of_the_loss_over_all_samples() -> None:
    n = (10, 40, 10)
    weighted = [share * a for share, a in zip(n, CURVES, strict=True)]
    optimum = np.linalg.solve(sum(weighted), sum(a @ b for a, b in zip(weighted, OPTIMA, strict=True)))
    released, paper = (Federation(n, steps=10, alpha=0.5, variant=v) for v in ("released", "paper"))
    for number in range(1, 60):
        released.round(number)
        paper.round(number)
    np.testing.assert_allclose(released.w, optimum, atol=1e-2)
    assert np.abs(paper.w - optimum).max() > 0.1


def test_a_lost_update_does_not_leave_h_wrong() -> None:
    """Afterwards the server's mean of l_k is that of the sites again, so the optimum is still found."""
    federation = Federation(steps=3, alpha=0.5)
    for number in range(1, 5):
        federation.round(number, lost=(1,) if number in (2, 3) else ())
    kept = np.mean([state["sent.w"].numpy() for state in federation.states], axis=0)
    np.testing.assert_allclose(federation.server.state["moved.w"], kept, rtol=1e-9)


def test_a_change_that_a_limit_scaled_down_does_not_leave_h_wrong() -> None:
    optimum = np.linalg.solve(sum(CURVES), sum(a @ b for a, b in zip(CURVES, OPTIMA, strict=True)))
    federation = Federation(steps=10, alpha=0.5)
    for number in range(1, 50):
        parts = {1: {0: 0.2}, 2: {0: 0.5, 2: 0.1}, 3: {1: 0.0}}.get(number, {})
        federation.round(number, parts=parts, lost=(0,) if number == 2 else (), absent=(2,) if number == 3 else ())
    kept = np.mean([state["sent.w"].numpy() for state in federation.states], axis=0)
    np.testing.assert_allclose(federation.server.state["moved.w"], kept, atol=1e-12)
    np.testing.assert_allclose(federation.w, optimum, atol=1e-2)
