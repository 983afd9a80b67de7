"""MoEx against the authors' numbers, its draws, and its effect."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import golden, make_context
from torch.nn import functional

from fedshift.methods import base, moex
from fedshift.tasks.networks.digits_cnn import DigitsCnn


@pytest.mark.parametrize("norm", ["pono", "in", "ln"])
def test_output_is_the_authors(norm: str) -> None:
    g = golden("moex")
    y = moex.exchange(torch.from_numpy(g["x"]), torch.from_numpy(g["swap_index"]), norm=norm, eps=float(g["epsilon"]))
    np.testing.assert_allclose(y.numpy(), g[f"y_{norm}"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("norm", "dims"), [("pono", (1,)), ("in", (2, 3)), ("ln", (1, 2, 3))])
def test_moments_are_the_partners_and_content_is_kept(norm: str, dims: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, 5, dtype=torch.float64) * torch.rand(3, 4, 5, 5) + torch.randn(3, 1, 5, 5)
    partner = torch.tensor([1, 2, 0])
    y = moex.exchange(x, partner, norm=norm, eps=1e-12)
    torch.testing.assert_close(y.mean(dims), x[partner].mean(dims))
    torch.testing.assert_close(y.std(dims), x[partner].std(dims))

    def content(f: torch.Tensor) -> torch.Tensor:
        return (f - f.mean(dims, keepdim=True)) / f.std(dims, keepdim=True)

    torch.testing.assert_close(content(y), content(x))


def test_gradients_go_through_the_partners_moments() -> None:
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    moex.exchange(x, torch.tensor([1, 0]), norm="pono", eps=1e-5)[0].sum().backward()
    assert x.grad is not None and x.grad[1].abs().max() > 0.1


def set_up(**options: object) -> tuple[moex.Client, base.Context, DigitsCnn, list[torch.Tensor]]:
    torch.manual_seed(0)
    net = DigitsCnn(in_channels=3, n_classes=3, size=8, width=4).train()
    ctx = make_context("moex", net)
    client = moex.Client(moex.Config(**options))
    seen: list[torch.Tensor] = []
    net.block1.register_forward_hook(lambda _m, _i, o: seen.append(o.detach()))  # before the layer
    client.attach(net, ctx)
    net.block1.register_forward_hook(lambda _m, _i, o: seen.append(o.detach()))  # after it
    return client, ctx, net, seen


def test_the_layer_and_the_targets_use_one_draw_in_every_pass_of_a_step() -> None:
    client, ctx, net, seen = set_up()
    x, y = torch.rand(6, 3, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    batch = client.batch(base.Batch(x, y), ctx)
    net(batch.x), net(batch.x)
    partner = ctx.scratch["partner"]
    expected = moex.exchange(seen[0], partner, norm="pono", eps=1e-5)
    torch.testing.assert_close(seen[1], expected)
    torch.testing.assert_close(seen[3], expected)
    hard = functional.one_hot(y, 3).float()
    torch.testing.assert_close(batch.y, 0.9 * hard + 0.1 * hard[partner])
    logits = torch.randn(6, 3)
    two = 0.9 * functional.cross_entropy(logits, y) + 0.1 * functional.cross_entropy(logits, y[partner])
    torch.testing.assert_close(functional.cross_entropy(logits, batch.y), two)
    client.batch(base.Batch(x, y), ctx)
    assert not torch.equal(ctx.scratch["partner"], partner)


def test_evaluation_and_other_samples_are_left_alone() -> None:
    client, ctx, net, seen = set_up()
    client.batch(base.Batch(torch.rand(6, 3, 8, 8), torch.zeros(6, dtype=torch.int64)), ctx)
    net(torch.rand(4, 3, 8, 8))
    net.eval()
    net(torch.rand(6, 3, 8, 8))
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[2], seen[3])


def test_it_fires_with_probability_p() -> None:
    client, ctx, _, _ = set_up(p=0.25)
    plain = base.Batch(torch.rand(2, 3, 8, 8), torch.tensor([0, 1]))
    batches = [client.batch(client.augment(plain, ctx), ctx) for _ in range(200)]
    fired = [batch.y.is_floating_point() for batch in batches]
    assert 30 < sum(fired) < 70
    assert (ctx.scratch["partner"] is not None) == fired[-1], "a batch without exchange leaves no draw"
