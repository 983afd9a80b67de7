"""FedSR: the divergence against torch's, what is drawn when, what is trained, and what it does to embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Samples, make_context
from torch import Tensor, distributions
from torch.nn import functional

from fedshift.methods import base, fedsr
from fedshift.methods.shared.passes import Replayed

from .made import LEARNS, Embedded, run

X, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 1, 0, 2])


def begun(**options: float) -> tuple[fedsr.Client, base.Context, Embedded]:
    net = Embedded(4, 3).train()
    client, ctx = fedsr.Client(fedsr.Config.parse(options, where="")), make_context("fedsr", net)
    client.attach(net, ctx)
    client.receive({}, ctx)
    client.begin(Samples(X, Y), ctx)
    return client, ctx, net


def noise_of(client: fedsr.Client, ctx: base.Context) -> dict[str, Tensor]:
    """The weights of the client's noise network."""
    kept = client.checkpoint(ctx)
    return {key: kept[f"noise.{key}"] for key in fedsr.Noise(4, 3).state_dict()}


def test_divergence_is_that_of_two_gaussians() -> None:
    torch.manual_seed(1)
    noise = fedsr.Noise(4, 3).double()
    for parameter in noise.parameters():
        parameter.data.normal_()
    u, sigma = X.double(), noise(X.double())
    wanted = []
    for row, (image, label) in enumerate(zip(u, Y, strict=True)):
        p = distributions.Normal(noise.scale * image, noise.scale.abs() * sigma[row])
        r = distributions.Normal(noise.mean[label], functional.softplus(noise.spread[label]))
        wanted.append(distributions.kl_divergence(p, r).sum())
    torch.testing.assert_close(noise.divergence(u, sigma, Y), torch.stack(wanted).mean(), rtol=1e-10, atol=0)


def test_the_loss_has_both_terms() -> None:
    client, ctx, net = begun(l2r=0.3, cmi=0.2)
    logits = net(X)
    loss = client.loss(base.Batch(X, Y), logits, torch.zeros(()), ctx)
    noise = fedsr.Noise(4, 3)
    noise.load_state_dict(noise_of(client, ctx))
    sigma = noise(X)
    epsilon = torch.randn(X.shape, generator=make_context("fedsr").rng("noise"))
    z = X + sigma * epsilon
    torch.testing.assert_close(logits, functional.linear(z, net.head.weight, net.head.bias), rtol=1e-5, atol=1e-6)
    expected = 0.3 * z.norm(dim=1).mean() + 0.2 * noise.divergence(X, sigma, Y)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)


def test_nothing_is_drawn_at_test_or_without_noise() -> None:
    _, _, net = begun()
    plain = functional.linear(X, net.head.weight, net.head.bias)
    assert not torch.equal(net(X), plain)
    assert torch.equal(net.eval()(X), plain)
    client, ctx, fixed = begun(stochastic=False, l2r=2.0)
    assert torch.equal(fixed(X), plain)
    loss = client.loss(base.Batch(X, Y), fixed(X), torch.zeros(()), ctx)
    np.testing.assert_allclose(loss.item(), 2 * np.linalg.norm(X, axis=1).mean(), rtol=1e-6)
    assert client.end(Samples(X, Y), ctx) == {} and ctx.state == {}


def test_the_reference_goes_to_the_embeddings_of_its_class_and_is_kept() -> None:
    client, ctx, net = begun(cmi=1.0, lr=0.1, momentum=0.5)
    centres = torch.tensor([[2.0, 0, 0, 0], [0, 2.0, 0, 0], [0, 0, 2.0, 0]])
    for _ in range(200):
        x = centres[Y]

        def compute(x: Tensor = x) -> Tensor:
            net.zero_grad()
            logits = net(x)
            loss = client.loss(base.Batch(x, Y), logits, functional.cross_entropy(logits, Y), ctx)
            loss.backward()  # type: ignore[no-untyped-call]
            client.gradients(ctx)
            return loss.detach()

        closure = Replayed(ctx.run, compute)
        if ctx.run.step % 50 == 0:
            before = noise_of(client, ctx)
            closure()
            after = noise_of(client, ctx)
            closure()
            again = noise_of(client, ctx)
            assert not torch.equal(before["mean"], after["mean"])
            assert all(torch.equal(after[key], again[key]) for key in after), "a repeated pass takes no step"
        else:
            closure()
        ctx.run.step += 1
    assert client.end(Samples(X, Y), ctx) == {}
    mean, scale = ctx.state["noise.mean"], ctx.state["noise.scale"]
    torch.testing.assert_close(mean, scale * centres, rtol=0.2, atol=0.2)
    other = fedsr.Client(fedsr.Config())
    other.begin(Samples(X, Y), ctx)
    assert torch.equal(noise_of(other, ctx)["mean"], mean)


@pytest.mark.slow
def test_embeddings_are_shorter_with_the_norm(
    three_image_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths, seen, loss = [], list[float](), fedsr.Client.loss

    def look(self: fedsr.Client, *args: Any) -> Tensor:
        seen.append(float(self._u.detach().norm(dim=1).mean()))
        return loss(self, *args)

    monkeypatch.setattr(fedsr.Client, "loss", look)
    for l2r in (0.0, 0.3):
        run("fedsr", three_image_sites, tmp_path / str(l2r), *LEARNS, "fedsr.stochastic=false", f"fedsr.l2r={l2r}")
        lengths.append(np.mean(seen[-8:]))
    assert lengths[1] < 0.7 * lengths[0]
