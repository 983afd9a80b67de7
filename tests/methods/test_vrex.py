"""V-REx: the authors' step, its warm-up, and similar losses over sites."""

from __future__ import annotations

import pytest
import torch
from conftest import golden, make_context

from fedshift.methods import base, vrex
from fedshift.methods.shared.domains import site_losses

from .domains import ERM, fitted, golden_step, losses, turned


@pytest.mark.parametrize("sites", [3, 1])
def test_a_step_is_the_authors(sites: int) -> None:
    g, which = golden("dg_objectives"), "allenvs" if sites == 3 else "env0only"
    loss, _ = golden_step(vrex.Client(vrex.Config(warmup=0)), "vrex_lambda10_active", sites)
    parts = [float(g[f"vrex_lambda10_active:{which}:{name}"]) for name in ("train_loss", "train_penalty")]
    assert loss == pytest.approx(parts[0] + 10 * parts[1], rel=1e-9)


def test_the_weight_grows_after_the_warm_up_and_the_optimiser_forgets_once() -> None:
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(net.parameters())
    logits, y = torch.tensor([[0.0, 0, 3], [0, 0, 0], [3, 0, 0]]), torch.zeros(3, dtype=torch.int64)
    batch, ctx = base.Batch(torch.zeros(3), y), make_context("vrex", net, optimizer=optimizer)
    f = site_losses(batch, logits, ctx.run)
    forgotten = []
    for step in range(5):
        if step == 2:
            ctx.run.replay = True
            replayed = vrex.Client(vrex.Config(warmup=3)).loss(batch, logits, torch.zeros(()), ctx)
            torch.testing.assert_close(replayed, f.mean() + f.var(correction=0))
            ctx.run.replay = False
        net(torch.ones(1)).backward()
        optimizer.step()
        loss = vrex.Client(vrex.Config(warmup=3)).loss(batch, logits, torch.zeros(()), ctx)
        forgotten.append(not optimizer.state)
        torch.testing.assert_close(loss, f.mean() + (1 if step < 3 else 10) * f.var(correction=0))
    assert forgotten == [False, False, False, True, False] and int(ctx.state["steps"]) == 5


def test_the_sites_losses_become_alike() -> None:
    x, y = turned(0)
    alike, mean = (losses(fitted(c, x, y), x, y) for c in (vrex.Client(vrex.Config(warmup=100)), ERM))
    assert alike.var() < 0.3 * mean.var() and alike.max() < mean.max() - 0.03
