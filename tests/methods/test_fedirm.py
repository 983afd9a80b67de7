"""Fed-IRM against the authors' numbers, centralised IRM at one local step, and spurious features."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from conftest import Samples, golden, make_context, small_image_job
from torch import Tensor, nn
from torch.nn import functional

from fedshift.methods import base, fedirm
from fedshift.tasks.kinds import build_task

from .domains import IRM, TwoLayers, coloured, golden_step
from .made import final_weights


@pytest.mark.parametrize("penalty", ["scalar", "classifier"])
def test_a_step_is_the_authors(penalty: Literal["scalar", "classifier"]) -> None:
    g, name = golden("dg_objectives"), f"{IRM[penalty]}:env0only"
    loss, ctx = golden_step(fedirm.Client(fedirm.Config(penalty=penalty, weight=100, warmup=0)), IRM[penalty], 1)
    expected = (float(g[f"{name}:train_loss"]) + 100 * float(g[f"{name}:train_penalty"])) / 100
    assert loss == pytest.approx(expected, rel=1e-9) and ctx.state["steps"].item() == 1


@pytest.mark.parametrize("penalty", ["scalar", "classifier"])
def test_with_one_local_step_a_round_is_a_step_of_centralised_irm(
    penalty: str, three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    """Sites of equal size with one batch each: the mean loss plus the mean of the sites' penalties."""
    job = small_image_job(
        *("fedirm", f"fedirm.penalty={penalty}", "fedirm.weight=20", "fedirm.warmup=0"),
        *("network.name=mnist_cnn", "network.options.size=16"),
        *("schedule.rounds=1", "schedule.local_steps=1", "schedule.batch_size=64"),
    )
    task = build_task(job)
    net = task.network()
    total = torch.zeros(())
    for site in job.task.sites:
        chunks = list(task.open(three_image_sites[site], site).chunks())
        x, y = torch.cat([c[0] for c in chunks]), torch.cat([c[1] for c in chunks])
        if penalty == "scalar":
            scale = torch.ones((), requires_grad=True)
            loss = functional.cross_entropy(scale * net(x), y)
            (gradient,) = torch.autograd.grad(loss, scale, create_graph=True)
        else:
            loss = functional.cross_entropy(net(x), y)
            (gradient,) = torch.autograd.grad(loss, net.head.weight, create_graph=True)
        total = total + (loss + 20 * gradient.square().sum()) / 20 / 3
    total.backward()
    torch.optim.SGD(net.parameters(), lr=job.task.optimizer.lr).step()
    federated = final_weights(job, three_image_sites, tmp_path / "a")
    start = task.network().state_dict()
    for key, value in net.state_dict().items():
        torch.testing.assert_close(federated[key] - start[key], value - start[key], rtol=1e-3, atol=1e-7)
        assert not torch.equal(federated[key], start[key])


def test_loss_itself_counts_less_after_the_warm_up() -> None:
    net = TwoLayers()
    batch = base.Batch(torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2]))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    ctx = make_context("fedirm", net, optimizer=optimizer)
    ctx.state["steps"] = torch.tensor(7)
    logits = net(batch.x)
    loss = functional.cross_entropy(logits, batch.y)
    penalty = fedirm.scalar_penalty(logits, batch.y, functional.cross_entropy)
    for warmup, expected in ((8, loss + penalty), (7, loss / 50 + penalty)):
        total = fedirm.Client(fedirm.Config(weight=50, warmup=warmup)).loss(batch, logits, loss, ctx)
        torch.testing.assert_close(total, expected)


def accuracy_elsewhere(weight: float, agreements: tuple[float, float]) -> float:
    """Trains two sites where the second feature helps; accuracy where it is misleading."""
    sites = [coloured(number, (agreement,)) for number, agreement in enumerate(agreements)]
    net = nn.Linear(2, 2)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    ctx = make_context("fedirm", net, optimizer=optimizer)
    client = fedirm.Client(fedirm.Config(weight=weight, warmup=150))
    for step in range(450):
        ctx.run.step = step
        optimizer.zero_grad()
        for x, y in sites:  # a mean of gradients is a mean of models after one step
            logits = net(x)
            loss = client.loss(base.Batch(x, y), logits, functional.cross_entropy(logits, y), ctx)
            (loss / 2).backward()
        optimizer.step()
    x, y = coloured(2, (0.1,))
    return float((net(x).argmax(1) == y).double().mean())


@pytest.mark.slow
@pytest.mark.parametrize("agreements", [(0.9, 0.8), (0.95, 0.75)])
def test_it_trusts_the_feature_that_tells_the_same_at_every_site(agreements: tuple[float, float]) -> None:
    assert accuracy_elsewhere(0.0, agreements) < 0.2, "FedAvg uses the feature that is stronger in training"
    assert accuracy_elsewhere(100.0, agreements) > 0.6


def test_warm_up_counts_steps_over_rounds_and_forgets_the_optimisers_state_once() -> None:
    net, config = TwoLayers(), fedirm.Config(weight=50, warmup=3)
    batch = base.Batch(torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2]))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    zero = torch.zeros((), dtype=torch.float64)
    state: dict[str, Tensor] = {}
    seen = []
    for round_ in (1, 2):
        ctx = make_context("fedirm", net, optimizer=optimizer, round=round_)
        ctx.state.update(state)
        client = fedirm.Client(config)  # a new client for every round
        for _ in range(2):
            for replay in (False, True):  # a second pass, like FedSAM's
                ctx.run.replay = replay
                optimizer.zero_grad()
                logits = net(batch.x)
                added = client.loss(batch, logits, zero, ctx)
                penalty = fedirm.scalar_penalty(logits, batch.y, functional.cross_entropy)
                added.backward()
            fresh = not optimizer.state
            seen.append((round(added.item() / penalty.item(), 9), fresh))
            optimizer.step()
            ctx.run.step += 1
        assert client.end(Samples(np.zeros((1, 1))), ctx) == {}
        state = dict(ctx.state)
    # (weight / its divisor is 1 before and after); Adam's moments are empty at the first and at the fourth step.
    assert seen == [(1.0, True), (1.0, False), (1.0, False), (1.0, True)]
    assert state["steps"].item() == 4
