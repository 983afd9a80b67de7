"""MixStyle against the authors' numbers, its default stages, and its effect."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import golden, make_context
from torch import nn

from fedshift.methods import mixstyle
from fedshift.tasks.networks.digits_cnn import DigitsCnn
from fedshift.tasks.networks.mnist_cnn import MnistCnn
from fedshift.tasks.networks.unet import UNet


@pytest.mark.parametrize("mix", ["random", "crossdomain"])
def test_output_and_gradient_are_the_authors(mix: str) -> None:
    g = golden("mixstyle")
    x = torch.from_numpy(g["x"]).requires_grad_()
    y = mixstyle.mix_style(x, torch.from_numpy(g["lambda"]), torch.from_numpy(g[f"{mix}_perm"]), eps=1e-6)
    (y * torch.from_numpy(g[f"{mix}_loss_weight"])).sum().backward()
    np.testing.assert_allclose(y.detach().numpy(), g[f"{mix}_y"], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(x.grad.numpy(), g[f"{mix}_grad_x"], rtol=1e-10, atol=1e-12)


def normalised(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True)


def test_a_whole_share_of_the_partner_gives_its_statistics_and_keeps_the_content() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 6, 6, dtype=torch.float64) * (0.5 + torch.rand(4, 3, 1, 1)) + torch.randn(4, 3, 1, 1)
    partner = torch.tensor([2, 0, 3, 1])
    y = mixstyle.mix_style(x, torch.zeros(4), partner, eps=1e-12)
    torch.testing.assert_close(y.mean((2, 3)), x[partner].mean((2, 3)))
    torch.testing.assert_close(y.std((2, 3)), x[partner].std((2, 3)))
    torch.testing.assert_close(normalised(y), normalised(x))
    torch.testing.assert_close(mixstyle.mix_style(x, torch.ones(4), partner, eps=1e-12), x)


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_crossdomain_takes_partners_from_the_other_half(size: int) -> None:
    partner = mixstyle.partners(size, "crossdomain", torch.Generator().manual_seed(0))
    assert sorted(partner.tolist()) == list(range(size))
    if size % 2 == 0:
        assert ((torch.arange(size) < size // 2) != (partner < size // 2)).all()


def test_layers_are_early_ones() -> None:
    client = mixstyle.Client(mixstyle.Config())
    assert list(client.stages(UNet(in_channels=3, n_classes=2, features=4))) == [1, 2, 3]
    assert list(client.stages(DigitsCnn(in_channels=3, n_classes=3, size=8, width=2))) == [1, 2]
    assert list(client.stages(MnistCnn(in_channels=1, n_classes=10, size=28))) == [1]


def layer_of(p: float) -> tuple[nn.Module, list[torch.Tensor]]:
    """A network with one MixStyle layer, and its first stage's outputs in 64 passes over the same batch."""
    torch.manual_seed(0)
    net = DigitsCnn(in_channels=3, n_classes=3, size=8, width=2).train()
    mixstyle.Client(mixstyle.Config(p=p, layers=(1,))).attach(net, make_context("mixstyle", net))
    seen: list[torch.Tensor] = []
    net.block1.register_forward_hook(lambda _m, _i, o: seen.append(o.detach()))
    x = torch.rand(6, 3, 8, 8)
    for _ in range(64):
        net(x)
    return net, seen


def test_it_fires_with_probability_p_in_training_only() -> None:
    net, seen = layer_of(0.5)
    distinct = {tuple(o.flatten().tolist()) for o in seen}
    untouched = max(sum(torch.equal(o, other) for other in seen) for o in seen)
    assert 16 < untouched < 48 and len(distinct) == 64 - untouched + 1, "every mixed pass has its own draws"
    net.eval()
    x = torch.rand(6, 3, 8, 8)
    net(x), net(x)
    assert torch.equal(seen[-1], seen[-2])


def test_a_batch_of_one_and_a_single_pixel_stay_finite() -> None:
    for shape in ((1, 2, 4, 4), (3, 2, 1, 1)):
        x = torch.randn(shape)
        y = mixstyle.mix_style(x, torch.full((shape[0],), 0.3), torch.randperm(shape[0]), eps=1e-6)
        assert torch.isfinite(y).all()
        if shape[0] == 1:
            torch.testing.assert_close(y, x)
