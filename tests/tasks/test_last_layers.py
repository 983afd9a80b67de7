"""The layers that give a network's logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedshift.tasks import networks
from fedshift.tasks.last_layers import last_layers


@pytest.mark.parametrize(
    ("name", "options", "dims", "expected"),
    [
        ("unet", {"features": 4}, 2, ["conv"]),
        ("digits_cnn", {"size": 16, "width": 4}, 2, ["head"]),
        ("monai.BasicUNet", {"features": [4, 4, 4, 4, 4, 4]}, 2, ["final_conv"]),
        (
            "monai.DynUNet",
            {"deep_supervision": True, "filters": [4, 4, 4, 4, 4]},
            3,
            ["output_block.conv.conv", "deep_supervision_heads.0.conv.conv"],
        ),
        ("monai.UNet", {"channels": [4, 8], "num_res_units": 2}, 2, ["model.2.1.conv.unit0.conv"]),  # ends with a sum
    ],
)
def test_the_last_layers_are_found(name: str, options: dict[str, Any], dims: int, expected: list[str]) -> None:
    net = networks.build(name, options, in_channels=3, n_classes=3, seed=0, spatial_dims=dims)
    names = {id(module): key for key, module in net.named_modules()}
    assert [names[id(layer)] for layer in last_layers(net)] == expected
    assert last_layers(net) == last_layers(net)


def test_no_layer_of_a_method_takes_part_in_the_trial() -> None:
    net = networks.build(
        "monai.BasicUNet", {"features": [4, 4, 4, 4, 4, 4]}, in_channels=1, n_classes=2, seed=0, spatial_dims=2
    )
    passed: list[int] = []

    def layer(features: Tensor) -> Tensor:
        passed.append(features.shape[1])
        return features + torch.ones(1)  # which has values, and a trial's features have none

    handles = [stage.hook(layer) for stage in net.stages]
    assert last_layers(net) == (net.final_conv,)
    assert passed == []
    net(torch.zeros(1, 1, 32, 32))
    assert passed == [stage.channels for stage in net.stages], "they are in place afterwards"
    for handle in handles:
        handle.remove()
    net(torch.zeros(1, 1, 32, 32))
    assert len(passed) == len(handles), "and can be removed"
