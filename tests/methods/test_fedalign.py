"""FedAlign: styles, the three terms and the objective by plain calculation; where masks and many outputs change it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from conftest import Samples, Sent, make_context, server_context
from scipy.special import softmax
from scipy.stats import entropy
from torch import Tensor, nn
from torch.nn import functional

from fedshift.methods import base, fedalign
from fedshift.methods.shared.image_statistics import image_statistics

Y = torch.tensor([0, 1, 2, 1])


class Net(nn.Module):
    """Mean intensities and a head."""

    in_channels = 2

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.Conv2d(2, 5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.layer(x)).mean((2, 3)))
        return logits


def images(number: int = 4, *, gain: float = 1.0, offset: float = 0.0) -> Tensor:
    return gain * torch.rand(number, 2, 9, 8, generator=torch.Generator().manual_seed(1)) + offset


def received(config: fedalign.Config, net: nn.Module, **changes: Any) -> tuple[fedalign.Client, base.Context]:
    """A site that has got two sites' statistics: its own, and those of a darker one with little contrast."""
    server, sites = fedalign.Server(config), {"A": images(), "B": images(gain=0.1, offset=-3)}
    sent = [
        Sent(s, {}, arrays={"fedalign": fedalign.Client(config).statistics(Samples(x), make_context("fedalign", net))})
        for s, x in sites.items()
    ]
    server.receive(sent, server_context(round=0))
    client, ctx = fedalign.Client(config), make_context("fedalign", net, **changes)
    client.receive(server.broadcast(server_context()), ctx)
    client.attach(net, ctx)
    return client, ctx


def test_an_image_takes_another_sites_style_in_part() -> None:
    x = images()
    mean, std = torch.full((4, 2), -5.0), torch.tensor([[2.0, 0.5]]).expand(4, 2)
    torch.testing.assert_close(fedalign.in_style(x, mean, std, torch.ones(4)), x)
    whole = image_statistics(fedalign.in_style(x, mean, std, torch.zeros(4)))
    np.testing.assert_allclose(whole[0], mean, rtol=1e-5)
    np.testing.assert_allclose(whole[1], std, rtol=1e-5)
    half = image_statistics(fedalign.in_style(x, mean, std, torch.full((4,), 0.25)))
    before = image_statistics(x)
    np.testing.assert_allclose(half[0], 0.25 * before[0] + 0.75 * mean, rtol=1e-5)
    np.testing.assert_allclose(half[1], 0.25 * before[1] + 0.75 * std, rtol=1e-5)


def test_views_are_in_the_styles_of_all_sites() -> None:
    client, ctx = received(fedalign.Config(severity=0, alpha=0.01), Net())
    x = images(40)
    batch = base.Batch(x, torch.zeros(40, dtype=torch.int64))
    assert client.batch(batch, ctx) is batch
    views = ctx.scratch["views"]
    assert views.shape == (80, 2, 9, 8)
    darker = views.mean((1, 2, 3)) < -1
    assert 20 < int(darker.sum()) < 60, "half of the sites are"


def test_the_contrast_is_that_of_the_formula() -> None:
    rng = np.random.default_rng(0)
    z, anchors = rng.normal(size=(6, 4)), rng.normal(size=(6, 4))
    labels = np.array([0, 1, 0, 2, 1, 0])
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (z, anchors)]
    share = softmax(unit[0] @ unit[1].T / 0.3, axis=1)
    by_hand = np.mean([-np.log(share[i, labels == labels[i]]).mean() for i in range(6)])
    tensors = (torch.from_numpy(each) for each in (z, anchors, labels))
    found = fedalign.supervised_contrast(*tensors, temperature=0.3)
    np.testing.assert_allclose(float(found), by_hand, rtol=1e-10)


def test_the_divergence_is_that_of_entropies() -> None:
    logits = np.random.default_rng(0).normal(size=(3, 4, 5, 6))
    p = softmax(logits, axis=2)
    by_hand = (entropy(p.mean(0), axis=1) - entropy(p, axis=2).mean(0)).mean()
    found = fedalign.divergence(torch.from_numpy(logits), exclusive=True)
    np.testing.assert_allclose(float(found), by_hand, rtol=1e-5)
    yes = 1 / (1 + np.exp(-logits))
    both = np.stack([yes, 1 - yes])
    by_hand = (entropy(both.mean(1), axis=0) - entropy(both, axis=0).mean(0)).mean()
    found = fedalign.divergence(torch.from_numpy(logits), exclusive=False)
    np.testing.assert_allclose(float(found), by_hand, rtol=1e-5)


def test_the_objective_is_the_sum_of_its_terms_and_has_gradients_through_all_passes() -> None:
    net, config = Net(), fedalign.Config(contrast=0.7, agreement=0.3, distance=0.2, temperature=0.5)
    client, ctx = received(config, net)
    batch = base.Batch(images(), Y)
    client.batch(batch, ctx)
    logits = net(batch.x)
    loss = ctx.run.objective(logits, Y)
    total = client.loss(batch, logits, loss, ctx)

    both = ctx.scratch["views"]
    versions = [batch.x, both[:4], both[4:]]
    z = [torch.tanh(net.layer(x)).mean((2, 3)) for x in versions]
    outputs = [net.head(each) for each in z]
    expected = sum(functional.cross_entropy(each, Y) for each in outputs)
    expected = expected + 0.3 * fedalign.divergence(torch.stack(outputs), exclusive=True)
    for view in z[1:]:
        expected = expected + 0.7 * fedalign.supervised_contrast(view, z[0], Y, temperature=0.5)
        expected = expected + 0.2 * (view - z[0]).square().mean() / 2
    torch.testing.assert_close(total, expected)
    parameters = list(net.parameters())
    for one, other in zip(*(torch.autograd.grad(each, parameters) for each in (total, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_without_the_sites_statistics_there_are_no_views() -> None:
    """A final model comes without them."""
    net = Net()
    client, ctx = fedalign.Client(fedalign.Config()), make_context("fedalign", net)
    client.receive({}, ctx)
    client.attach(net, ctx)
    batch, loss = base.Batch(images(), Y), torch.ones(())
    assert client.loss(client.batch(batch, ctx), net(batch.x), loss, ctx) is loss


def test_features_of_a_structure_are_means_over_its_mask() -> None:
    """The background is one, a structure that is not in an image is none, and what is to be ignored belongs nowhere."""
    y = torch.zeros(2, 4, 4, dtype=torch.int64)
    y[0, :2], y[0, 3], y[1, 0] = 1, 255, 2
    features = torch.stack([torch.where(y == number, 10.0 * number, -5.0) for number in (0, 1, 2)], 1)
    features = torch.cat([features, 2 * features, 3 * features])
    run: Any = SimpleNamespace(n_classes=3, regions=None)
    z, labels = fedalign.of_structures(features, y, run)
    assert labels.tolist() == [0, 0, 1, 2]
    torch.testing.assert_close(z[1], 2 * z[0])
    expected = [[0, -5, -5], [0, -5, -5], [-5, 10, -5], [-5, -5, 20]]
    torch.testing.assert_close(z[0], torch.tensor(expected, dtype=torch.float32))
    small, _ = fedalign.of_structures(functional.interpolate(features, scale_factor=0.5), y, run)
    assert small.shape == z.shape, "features may be coarser than the masks"
