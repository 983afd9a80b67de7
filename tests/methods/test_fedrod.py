"""FedRoD: both losses in plain numbers, a site without a class, what is evaluated where, and classes that differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_context, small_image_job
from errors import raises
from torch import Tensor, nn
from torch.nn import functional

from fedshift.federation.in_process import run_in_process
from fedshift.methods import base, fedrod
from fedshift.methods.shared.auxiliary import under
from fedshift.tasks.kinds import build_task

from .made import Embedded, InMemory, last_weights, site_state

LABELS = torch.tensor([0] * 6 + [1] * 2)


def started(gamma: float = 1.0, lr: float = 0.1) -> tuple[fedrod.Client, base.Context, Embedded, InMemory]:
    """A site that lacks the last of three classes, begun."""
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    net, data = Embedded(4, 3), InMemory(x, LABELS)
    client, ctx = fedrod.Client(fedrod.Config(gamma=gamma)), make_context("fedrod", net, n_classes=3)
    ctx.run.objective = lambda logits, y: functional.cross_entropy(logits, y)  # type: ignore[arg-type]
    ctx.run.received = {key: value.numpy().copy() for key, value in net.state_dict().items()}
    ctx.run.optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    client.attach(net, ctx)
    client.begin(data, ctx)
    return client, ctx, net, data


def step(client: fedrod.Client, ctx: base.Context, net: nn.Module, x: Tensor, y: Tensor) -> float:
    assert ctx.run.optimizer is not None
    ctx.run.optimizer.zero_grad()
    logits = net(x)
    loss = client.loss(base.Batch(x, y), logits, functional.cross_entropy(logits, y), ctx)
    loss.backward()  # type: ignore[no-untyped-call]
    client.gradients(ctx)
    ctx.run.optimizer.step()
    return float(loss.detach())


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits)
    return np.asarray(powers / powers.sum(1, keepdims=True))


@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_steps_are_the_formulas(gamma: float) -> None:
    """Twice: the personal head's first step is from 0."""
    client, ctx, net, data = started(gamma)
    x, y = data.train_samples(np.arange(8))
    z, hot = x.double().numpy(), np.eye(3)[LABELS]
    weights, bias = (np.asarray(ctx.run.received[f"head.{name}"], np.float64) for name in ("weight", "bias"))
    own, own_bias = np.zeros((3, 4)), np.zeros(3)
    for _ in range(2):
        common = z @ weights.T + bias
        balanced = softmax(common + gamma * np.array([np.log(6), np.log(2), -np.inf]))
        personal = softmax(common + z @ own.T + own_bias)
        loss = step(client, ctx, net, x, y)
        assert loss == pytest.approx(-np.log(balanced[np.arange(8), LABELS]).mean(), rel=1e-5)
        error, own_error = (balanced - hot) / 8, (personal - hot) / 8
        weights, bias = weights - 0.1 * error.T @ z, bias - 0.1 * error.sum(0)
        own, own_bias = own - 0.1 * own_error.T @ z, own_bias - 0.1 * own_error.sum(0)
    np.testing.assert_allclose(net.head.weight.detach(), weights, rtol=1e-4, atol=1e-6)
    client.end(data, ctx)
    np.testing.assert_allclose(ctx.state["own.weight"], own, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ctx.state["own.bias"], own_bias, rtol=1e-4, atol=1e-6)
    assert ctx.state["counts"].tolist() == [6, 2, 0]


def test_a_class_that_a_site_lacks_is_left_alone_and_soft_targets_stay_finite() -> None:
    client, ctx, net, data = started()
    x, y = data.train_samples(np.arange(8))
    before = net.head.weight.detach().clone()
    step(client, ctx, net, x, y)
    torch.testing.assert_close(net.head.weight[2], before[2], rtol=0, atol=1e-12)
    assert not torch.equal(net.head.weight[1], before[1])
    assert np.isfinite(step(client, ctx, net, x, torch.tensor([[0.5, 0.5, 0.0]]).expand(8, 3)))


def test_the_common_and_the_own_head_are_evaluated_together_and_trained_apart() -> None:
    client, ctx, net, data = started()
    step(client, ctx, net, *data.train_samples(np.arange(8)))
    client.end(data, ctx)
    received = {key: value.detach().clone() for key, value in net.state_dict().items()}
    ctx.run.received = {key: value.numpy() for key, value in received.items()}
    again = fedrod.Client(fedrod.Config())
    again.receive({}, ctx)
    torch.testing.assert_close(net.head.weight, received["head.weight"] + ctx.state["own.weight"])
    again.begin(data, ctx)
    assert torch.equal(net.head.weight, received["head.weight"])


def test_a_head_that_diverged_is_not_kept() -> None:
    client, ctx, net, data = started(lr=float("inf"))
    step(client, ctx, net, *data.train_samples(np.arange(8)))
    with raises("not-finite", naming=("round 1", "optimizer.lr")):
        client.end(data, ctx)


OPTIMIZERS = (
    "optimizer.momentum=0.5",
    "optimizer.name=adam optimizer.lr=0.003 optimizer.keep=true optimizer.weight_decay=0.01",
)


@pytest.mark.parametrize("options", OPTIMIZERS)
def test_heads_differ_from_site_to_site_and_stay(
    options: str, three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    job = small_image_job("fedrod", *options.split())
    results = run_in_process(job, three_image_sites, tmp_path).results
    states = [site_state(tmp_path, site, 2)["methods"]["fedrod"] for site in "ABC"]
    heads = [under(fedrod.PERSONAL, state) for state in states]
    assert all(head.keys() == {"weight", "bias"} for head in heads)
    assert not torch.equal(heads[0]["weight"], heads[1]["weight"])
    assert last_weights(tmp_path).keys() == build_task(job).network().state_dict().keys() and results.final is not None
    assert set(results.final.personal) == set("ABC")


def test_a_head_may_have_another_name(three_image_sites: dict[str, Path], tmp_path: Path) -> None:
    options = "network.options={hidden_size: 12, mlp_dim: 12, num_heads: 1, num_layers: 1}"
    results = run_in_process(
        small_image_job("fedrod", "network.name=monai.ViT", options), three_image_sites, tmp_path / "run"
    ).results
    assert not any(record.rejected for record in results.rounds)
