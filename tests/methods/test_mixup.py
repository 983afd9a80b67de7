"""Mixup: what is mixed, and linearity between samples."""

from __future__ import annotations

import pytest
import torch
from conftest import make_context
from torch import nn

from fedshift.methods import base, mixup

from .made import bend

N = 8


def one_hot_batch() -> base.Batch:
    """Sample i is an image with a 1 at pixel i, of class i: a mixed image shows its partner and its share."""
    return base.Batch(torch.eye(N).reshape(N, 1, 1, N), torch.arange(N))


@pytest.mark.parametrize("draw", ["batch", "sample"])
def test_targets_are_mixed_as_images_are(draw: str) -> None:
    ctx = make_context("mixup", n_classes=N)
    client = mixup.Client(mixup.Config(alpha=1.0, draw=draw))
    shares, partners = [], set()
    for _ in range(4):
        mixed = client.batch(one_hot_batch(), ctx)
        torch.testing.assert_close(mixed.x.reshape(N, N), mixed.y)
        torch.testing.assert_close(mixed.y.sum(1), torch.ones(N))
        own = mixed.y.diagonal()
        other = mixed.y - torch.diag(own)
        assert ((other > 0).sum(1) <= 1).all(), "one partner per sample"
        partners.add(tuple(other.argmax(1).tolist()))
        shares.append(own[own < 1])
    assert len(partners) == 4, "partners are drawn for every batch"
    spread = [float(s.max() - s.min()) for s in shares]
    assert (max(spread) < 1e-6) == (draw == "batch"), "one λ per batch, or one per sample"


def test_masks_become_soft_and_soft_targets_mix_again() -> None:
    y = torch.tensor([[[0, 1], [1, 1]], [[0, 0], [0, 1]]])
    x = torch.arange(8.0).reshape(2, 1, 2, 2)
    partner, share = torch.tensor([1, 0]), torch.tensor([0.75])
    once = mixup.mix(base.Batch(x, y), partner, share, n_classes=2)
    expected = torch.tensor([[[0.0, 0.75], [0.75, 1.0]], [[0.0, 0.25], [0.25, 1.0]]])
    torch.testing.assert_close(once.y[:, 1], expected)
    torch.testing.assert_close(once.y.sum(1), torch.ones(2, 2, 2))
    torch.testing.assert_close(once.x[0], x[0] + 1)  # a quarter of the way to an image that is brighter by 4
    twice = mixup.mix(once, partner, share, n_classes=2)
    torch.testing.assert_close(twice.y[:, 1], 0.75 * expected + 0.25 * expected.flip(0))


def test_between_samples_the_network_is_straighter() -> None:
    def straightness(alpha: float) -> float:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
        return bend(mixup.Client(mixup.Config(alpha=alpha)), net, lambda x: x, net)

    assert straightness(1.0) < 0.8 * straightness(0.0)
