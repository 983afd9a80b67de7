"""Trials without values: what they leave as it was, the stages of a network of our own, patches that fit.

The stages of MONAI's networks are tested with these (`tests/tasks/test_monai_networks.py`).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from errors import raises
from torch import nn

from fedshift.tasks import networks, trial

OPTIONS: dict[str, dict[str, Any]] = {
    "unet": {"features": 4},
    "monai.BasicUNet": {"features": [4, 4, 8, 8, 8, 4]},
    "monai.DynUNet": {"strides": [1, 2, 2, 2], "filters": [4, 8, 8, 16]},
    "monai.UNet": {"channels": [4, 8, 16]},
    "monai.VNet": {},
}


def built(name: str, *, dims: int = 3) -> nn.Module:
    return networks.build(name, OPTIONS[name], in_channels=1, n_classes=3, seed=0, spatial_dims=dims)


def test_a_trial_leaves_the_network_as_it_was() -> None:
    net = networks.build("unet", {"features": 4}, in_channels=1, n_classes=2, seed=0).train()
    net.pool1.eval()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    state = torch.random.get_rng_state()
    assert trial.fits(net, (32, 32)) and trial.find_stages(net, trial.trial_size(2))
    assert net.training and not net.pool1.training and not net.pool1._forward_hooks
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("name", "patch", "near"),
    [
        ("unet", (40, 56, 40), (48, 64, 48)),
        ("monai.UNet", (42, 56, 39), (44, 56, 40)),
        ("monai.DynUNet", (40, 56, 36), (40, 56, 40)),
        ("monai.VNet", (40, 64, 16), (48, 64, 16)),
        ("monai.BasicUNet", (16, 16, 16), (32, 32, 32)),
    ],
)
def test_a_patch_that_does_not_fit_is_refused_with_the_nearest(
    name: str, patch: tuple[int, ...], near: tuple[int, ...]
) -> None:
    net = built(name)
    by = lambda sides: " x ".join(map(str, sides))  # noqa: E731
    with raises("patch-size", naming=(by(patch), by(near))):
        trial.check_patch(net, patch, name=name)
    trial.check_patch(net, near, name=name)
    net.train()(torch.randn(2, 1, *near))


def test_basic_unet_takes_sizes_that_it_pads() -> None:
    trial.check_patch(built("monai.BasicUNet"), (40, 56, 40), name="monai.BasicUNet")
