"""Weights of classification networks for the encoders of MONAI's FlexibleUNet, by the names of four libraries."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from fedshift.tasks import networks, pretrained
from fedshift.tasks.encoder_names import ENCODER

State = Mapping[str, Tensor]
SMALL = {"decoder_channels": [8, 8, 4, 4, 4]}


def make(backbone: str, seed: int = 0) -> Any:
    return networks.build("monai.FlexibleUNet", {"backbone": backbone, **SMALL}, in_channels=3, n_classes=2, seed=seed)


def encoder(backbone: str) -> dict[str, Tensor]:
    """Of another network, without ``encoder.`` and without the head, which MONAI's EfficientNet keeps unused."""
    state = make(backbone, seed=1).state_dict()
    parts = {key.removeprefix(ENCODER): value for key, value in state.items() if key.startswith(ENCODER)}
    return {key: value for key, value in parts.items() if not key.startswith("_fc.")}


def lukemelas(key: str) -> str:
    """``_blocks.6.15._bn2.weight``: the second number counts all blocks."""
    return re.sub(r"_blocks\.\d+\.(\d+)\.", r"_blocks.\1.", key)


def timm(key: str) -> str:
    ends = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
    if not (block := re.fullmatch(r"_blocks\.(\d+)\.(\d+)\.(\w+)\.(\w+)", key)):
        first, rest = key.split(".", 1)
        return f"{ends[first]}.{rest}"
    stage, part = int(block[1]), block[3]
    parts = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2", "_bn2": "bn3"}
    parts |= {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand", "_project_conv": "conv_pwl"}
    if stage == 0:
        parts |= {"_project_conv": "conv_pw", "_bn1": "bn1", "_bn2": "bn2"}
    return f"blocks.{stage}.{_within(stage, int(block[2]))}.{parts[part]}.{block[4]}"


def torchvision(key: str) -> str:
    ends = {"_conv_stem": "features.0.0", "_bn0": "features.0.1", "_conv_head": "features.8.0", "_bn1": "features.8.1"}
    if not (block := re.fullmatch(r"_blocks\.(\d+)\.(\d+)\.(\w+)\.(\w+)", key)):
        first, rest = key.split(".", 1)
        return f"{ends[first]}.{rest}"
    stage, part = int(block[1]), block[3]
    parts = {"_expand_conv": "0.0", "_bn0": "0.1", "_depthwise_conv": "1.0", "_bn1": "1.1"}
    parts |= {"_se_reduce": "2.fc1", "_se_expand": "2.fc2", "_project_conv": "3.0", "_bn2": "3.1"}
    if stage == 0:
        parts |= {"_depthwise_conv": "0.0", "_bn1": "0.1", "_se_reduce": "1.fc1", "_se_expand": "1.fc2"}
        parts |= {"_project_conv": "2.0", "_bn2": "2.1"}
    return f"features.{stage + 1}.{_within(stage, int(block[2]))}.block.{parts[part]}.{block[4]}"


def _within(stage: int, number: int) -> int:
    """A block's place in its stage; EfficientNet-B0 has 1, 2, 2, 3, 3, 4 and 1 blocks."""
    return number - sum((1, 2, 2, 3, 3, 4, 1)[:stage])


@pytest.mark.parametrize("name", [lukemelas, timm, torchvision])
def test_an_efficientnet_is_taken_by_any_of_its_names(name: Callable[[str], str]) -> None:
    weights = encoder("efficientnet-b0")
    file = {name(key): value for key, value in weights.items()}
    assert len(file) == len(weights)
    net = make("efficientnet-b0")
    loaded = pretrained.take_what_fits(net, file, where="a file")
    for key, value in weights.items():
        assert torch.equal(loaded.arrays[ENCODER + key], value), key
    assert len(loaded.arrays) == len(weights) and not loaded.unused
    net.load_state_dict(loaded.arrays, strict=False)
    assert torch.isfinite(net(torch.zeros(1, 3, 64, 64))[0]).all()


def test_names_of_efficientnets_are_the_published_ones() -> None:
    """As they are in the files: of timm 1.0, torchvision 0.2x, and EfficientNet-PyTorch 1.0."""
    keys = list(encoder("efficientnet-b0"))
    assert {"blocks.0.0.conv_dw.weight", "blocks.1.0.conv_pwl.weight", "blocks.5.3.bn3.running_var"} < set(
        map(timm, keys)
    )
    assert {"features.1.0.block.0.0.weight", "features.6.3.block.3.1.bias"} < set(map(torchvision, keys))
    assert {"_blocks.0._depthwise_conv.weight", "_blocks.15._bn2.bias"} < set(map(lukemelas, keys))


@pytest.mark.slow
def test_a_resnet_is_taken_with_all_its_shortcuts() -> None:
    weights = encoder("resnet50")
    assert {"layer1.0.downsample.0.weight", "layer4.2.conv3.weight", "bn1.running_mean"} < set(weights)
    file = {**weights, "fc.weight": torch.zeros(1000, 2048), "fc.bias": torch.zeros(1000)}
    loaded = pretrained.take_what_fits(make("resnet50"), file, where="a file")
    assert set(loaded.arrays) == {ENCODER + key for key in weights}
    assert loaded.unused == ("fc (2 arrays)",) and any(name.startswith("decoder") for name in loaded.new)


def test_a_resnet_18_says_which_shortcuts_it_has_no_use_for() -> None:
    file = {**encoder("resnet18"), "layer2.0.downsample.0.weight": torch.zeros(128, 64, 1, 1)}
    loaded = pretrained.take_what_fits(make("resnet18"), file, where="a file")
    assert loaded.unused == ("layer2.0 (1 array)",)


def test_a_whole_model_keeps_its_names() -> None:
    state = make("resnet18", seed=1).state_dict()
    loaded = pretrained.take_what_fits(make("resnet18"), state, where="a file")
    assert len(loaded.arrays) == loaded.total
