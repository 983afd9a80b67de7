"""Helpers shared by the mixing methods."""

from __future__ import annotations

import numpy as np
import torch
from errors import raises
from torch import nn

from fedshift.methods.shared.features import beta, blend, soft, stages_of
from fedshift.tasks.networks.mnist_cnn import MnistCnn


def test_beta_has_the_moments_of_its_distribution_and_follows_the_generator() -> None:
    rng = torch.Generator().manual_seed(3)
    for alpha in (0.1, 1.0, 2.0):
        draws = beta(alpha, (20000,), rng)
        assert draws.dtype == torch.float32
        np.testing.assert_allclose(float(draws.mean()), 0.5, atol=0.01)
        np.testing.assert_allclose(float(draws.var()), 1 / (4 * (2 * alpha + 1)), rtol=0.03)
    same = [beta(0.5, (4,), torch.Generator().manual_seed(9)) for _ in range(2)]
    assert torch.equal(*same)
    assert not torch.equal(beta(0.5, (4,), rng), beta(0.5, (4,), rng))


def test_soft_targets_are_shares_of_classes() -> None:
    assert soft(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    mask = torch.tensor([[[0, 1], [1, 1]]])
    assert torch.equal(soft(mask, 2)[:, 1], mask.float())
    already = torch.rand(2, 3)
    assert soft(already, 3) is already


def test_blends_of_short_floats_are_computed_in_float32() -> None:
    a, b = torch.full((2, 1, 1, 1), 1.0), torch.full((2, 1, 1, 1), 256.0)
    share = torch.tensor([1 - 1 / 255, 0.25])
    out = blend(a.bfloat16(), b.bfloat16(), share)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, blend(a, b, share).bfloat16(), atol=0, rtol=0)
    assert blend(a.double(), b.double(), share).dtype == torch.float64


def test_stages_are_chosen_by_number() -> None:
    net = MnistCnn(in_channels=1, n_classes=10, size=28)
    assert list(stages_of(net, None, "mixstyle")) == [1, 2]
    assert list(stages_of(net, (2, 2), "mixstyle")) == [2]
    for other, layers, code, names in (
        (net, (0, 1, 3), "unknown-layer", "[0, 3]"),
        (nn.Linear(1, 1), None, "method-needs", "Linear"),
    ):
        with raises(code, naming=("moex", names)):
            stages_of(other, layers, "moex")
