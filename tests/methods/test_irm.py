"""IRM: the authors' step, the penalty over all sites, its warm-up, and a misleading colour."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from conftest import Samples, golden, make_context
from torch.nn import functional

from fedshift.methods import base, irm

from .domains import ERM, IRM, TwoLayers, coloured, fitted, golden_step


@pytest.mark.parametrize("penalty", ["scalar", "classifier"])
def test_a_step_on_one_site_is_the_authors(penalty: Literal["scalar", "classifier"]) -> None:
    g, name = golden("dg_objectives"), f"{IRM[penalty]}:env0only"
    loss, _ = golden_step(irm.Client(irm.Config(penalty=penalty, warmup=0)), IRM[penalty], 1)
    expected = (float(g[f"{name}:train_loss"]) + 100 * float(g[f"{name}:train_penalty"])) / 100
    assert loss == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("penalty", ["scalar", "classifier"])
def test_all_sites_count_alike_unlike_in_the_code(penalty: Literal["scalar", "classifier"]) -> None:
    g, net = golden("dg_objectives"), TwoLayers()
    ctx = make_context("irm", net)
    x, y = (np.concatenate([g[f"env{i}_{name}"] for i in range(3)]) for name in "xy")
    u = np.tanh(x @ g["init:f.weight"].T + g["init:f.bias"])
    logits = u @ g["init:out.weight"].T + g["init:out.bias"]
    share = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    off = share - np.eye(3)[y]  # derivative of the loss with respect to a sample's logits
    penalties = []
    for i in range(0, 18, 6):
        part = slice(i, i + 6)
        if penalty == "scalar":
            penalties.append((off[part] * logits[part]).sum(1).mean() ** 2)
        else:
            penalties.append(np.square(off[part].T @ u[part] / 6).sum())
    f = -np.log(share[np.arange(18), y]).mean()
    batch = base.Batch(torch.from_numpy(x), torch.from_numpy(y))
    client = irm.Client(irm.Config(penalty=penalty, warmup=0))
    loss = client.loss(batch, net(batch.x), torch.zeros(()), ctx)
    assert loss.item() == pytest.approx(f / 100 + np.mean(penalties), rel=1e-9)


def test_the_weight_grows_after_the_warm_up_in_new_objects_too() -> None:
    logits, y = torch.tensor([[0.0, 0, 3], [0, 0, 0], [3, 0, 0]]), torch.zeros(3, dtype=torch.int64)
    net = torch.nn.Linear(1, 1)
    ctx = make_context("irm", net, optimizer=torch.optim.Adam(net.parameters()))
    told = [
        irm.Client(irm.Config(warmup=2)).loss(base.Batch(logits, y), logits, torch.zeros(()), ctx).item()
        for _ in range(4)
    ]
    f = functional.cross_entropy(logits, y).item()
    assert told[0] == told[1] and told[2] == told[3]
    assert (told[0] - f) == pytest.approx(told[2] - f / 100, rel=1e-5)


@pytest.mark.parametrize(("steps", "warned"), [(2, True), (3, False)])
def test_a_job_that_ends_within_its_warm_up_says_so(steps: int, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    ctx = make_context("irm")
    ctx.state["steps"] = torch.tensor(steps)
    irm.Client(irm.Config(warmup=2)).end(Samples(np.empty(0)), ctx)
    assert ("weight=100 was never used" in caplog.text) == warned


def test_a_colour_that_agrees_with_the_class_at_the_sites_does_not_mislead() -> None:
    x, y = coloured(0, (0.95, 0.85, 0.75))
    elsewhere, truth = coloured(1, (0.1,))
    invariant, mean = (
        float((fitted(c, x, y, adam=True)(elsewhere).argmax(1) == truth).float().mean())
        for c in (irm.Client(irm.Config(warmup=50)), ERM)
    )
    assert mean < 0.3 and invariant > 0.65
