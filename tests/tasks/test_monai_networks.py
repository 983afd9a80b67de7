"""MONAI's networks: built from plain options, stages found, patches that fit, several outputs."""

from __future__ import annotations

import copy
from typing import Any

import monai.networks.nets
import numpy as np
import pytest
import torch
from errors import raises
from monai.networks.nets.basic_unet import BasicUNet
from torch import nn

from fedshift.methods.shared.features import stages_of
from fedshift.tasks import networks, trial
from fedshift.tasks.losses import main, make_loss
from fedshift.tasks.monai_networks import build, without_second_names
from fedshift.tasks.precision import autocast

SMALL: dict[str, dict[str, Any]] = {
    "monai.AttentionUnet": {"channels": [4, 8, 16], "strides": [2, 2]},
    "monai.BasicUNet": {"features": [4, 4, 8, 8, 8, 4]},
    "monai.BasicUNetPlusPlus": {"features": [4, 4, 8, 8, 8, 4]},
    "monai.DynUNet": {
        "kernel_size": [3, 3, 3, 3],
        "strides": [1, 2, 2, 2],
        "upsample_kernel_size": [2, 2, 2],
        "filters": [4, 8, 8, 16],
    },
    "monai.FlexibleUNet": {"decoder_channels": [16, 8, 8, 4, 4]},
    "monai.HighResNet": {},
    "monai.MedNeXt": {"init_filters": 8, "kernel_size": 3, "blocks_down": [1] * 4, "blocks_up": [1] * 4},
    "monai.SegResNet": {"blocks_down": [1, 1, 1], "blocks_up": [1, 1]},
    "monai.SegResNetDS": {"init_filters": 4, "blocks_down": [1, 1, 1]},
    "monai.SwinUNETR": {"feature_size": 12, "num_heads": [1, 2, 2, 4], "window_size": 4},
    "monai.UNETR": {"hidden_size": 24, "mlp_dim": 24, "num_heads": 2, "feature_size": 4},
    "monai.UNet": {"channels": [4, 8, 16], "strides": [2, 2]},
    "monai.VNet": {},
}
"""Options that make each small."""
STAGES: dict[str, list[tuple[str, int, str, int]]] = {
    "unet": [
        ("pool1", 4, "output", 2),
        ("pool2", 8, "output", 4),
        ("pool3", 16, "output", 8),
        ("pool4", 32, "output", 16),
        ("bottleneck", 64, "output", 16),
    ],
    "monai.AttentionUnet": [
        ("model.1.submodule.1.submodule.conv", 8, "input", 2),
        ("model.1.submodule.1.submodule.conv", 16, "output", 4),
    ],
    "monai.BasicUNet": [
        ("down_1.max_pooling", 4, "output", 2),
        ("down_2.max_pooling", 4, "output", 4),
        ("down_3.max_pooling", 8, "output", 8),
        ("down_4.max_pooling", 8, "output", 16),
        ("down_4", 8, "output", 16),
    ],
    "monai.BasicUNetPlusPlus": [
        ("conv_1_0.max_pooling", 4, "output", 2),
        ("conv_2_0.max_pooling", 4, "output", 4),
        ("conv_3_0.max_pooling", 8, "output", 8),
        ("conv_4_0.max_pooling", 8, "output", 16),
        ("conv_4_0", 8, "output", 16),
    ],
    "monai.DynUNet": [("downsamples.1", 8, "input", 2), ("bottleneck", 8, "input", 4), ("bottleneck", 16, "output", 8)],
    "monai.FlexibleUNet": [
        ("encoder._conv_stem", 32, "output", 2),
        ("encoder._blocks.2", 24, "input", 4),
        ("encoder._blocks.3", 40, "input", 8),
        ("encoder._blocks.3", 80, "output", 16),
        ("encoder._blocks.6.15", 192, "input", 32),
        ("encoder._blocks.6.15", 320, "output", 32),
    ],
    "monai.HighResNet": [],
    "monai.MedNeXt": [
        ("down_blocks.0", 16, "output", 2),
        ("down_blocks.1", 32, "output", 4),
        ("down_blocks.2", 64, "output", 8),
        ("bottleneck", 128, "input", 16),
        ("bottleneck", 128, "output", 16),
    ],
    "monai.SegResNet": [("down_layers.2", 16, "input", 2), ("down_layers.2", 32, "output", 4)],
    "monai.SegResNetDS": [
        ("encoder.layers.0.downsample", 8, "output", 2),
        ("encoder.layers.2.blocks.0", 16, "input", 4),
        ("encoder.layers.2.blocks.0", 16, "output", 4),
    ],
    "monai.SwinUNETR": [
        ("swinViT.layers1.0", 12, "input", 2),
        ("swinViT.layers1.0", 24, "output", 4),
        ("swinViT.layers2.0", 48, "output", 8),
        ("swinViT.layers3.0", 96, "output", 16),
        ("swinViT.layers4.0", 192, "output", 32),
        ("encoder10.layer", 192, "output", 32),
    ],
    "monai.UNETR": [("vit.patch_embedding.patch_embeddings", 24, "output", 16)],
    "monai.UNet": [
        ("model.1.submodule.0", 4, "input", 2),
        ("model.1.submodule.1.submodule", 8, "input", 4),
        ("model.1.submodule.1.submodule", 16, "output", 4),
    ],
    "monai.VNet": [
        ("down_tr64", 32, "input", 2),
        ("down_tr128", 64, "input", 4),
        ("down_tr256", 128, "input", 8),
        ("down_tr256", 256, "output", 16),
    ],
}
"""For each network: the modules that are stages, their channels, the side, how much coarser than the image."""


def small(name: str, *, dims: int = 2, classes: int = 3, **more: Any) -> nn.Module:
    if name in ("monai.SwinUNETR", "monai.UNETR"):
        pytest.importorskip("einops")
    patch = (64,) * dims if dims == 2 else (32,) * dims
    options = {"features": 4} if name == "unet" else SMALL[name]
    return networks.build(
        name, {**options, **more}, in_channels=1, n_classes=classes, seed=3, spatial_dims=dims, patch=patch
    )


def image(dims: int) -> torch.Tensor:
    side = 64 if dims == 2 else 32
    return torch.randn(2, 1, *[side] * dims, generator=torch.Generator().manual_seed(0))


def noise(f: torch.Tensor) -> torch.Tensor:
    return 1 + torch.rand(f.shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("name", STAGES)
def test_each_stage_is_where_it_is_said_and_changes_the_output(name: str, dims: int) -> None:
    net = small(name, dims=dims).train()  # batch norms by their batch, so that features do not fade
    size = getattr(net, "trial_size", trial.trial_size(dims))
    found = trial.find_stages(net, size)
    assert [(one.name, one.channels, one.where, one.level[0]) for one in found] == STAGES[name]
    assert all(one.level == (one.level[0],) * dims for one in found)
    stages = net.stages
    assert [(s.channels, s.where) for s in stages] == [(one.channels, one.where) for one in found]
    x = image(dims) if name != "monai.SwinUNETR" else torch.randn(1, 1, *[64] * dims)  # 32 is one voxel below
    with torch.no_grad():
        torch.manual_seed(1)  # of dropout
        plain = net(x)
        assert plain.shape == (len(x), 3, *x.shape[2:])
        for stage, one in zip(stages, found, strict=True):
            seen: list[torch.Tensor] = []
            handle = stage.hook(lambda f, seen=seen: (seen.append(f), f * noise(f))[1])
            torch.manual_seed(1)
            changed = net(x)
            handle.remove()
            assert len(seen) == 1
            assert seen[0].shape[1] == one.channels
            assert tuple(x.shape[-1] // side for side in seen[0].shape[2:]) == one.level
            assert (changed - plain).abs().max() > 1e-6, f"{one.name} is not on the way to the output"
    if not stages:
        with raises("method-needs", naming="fedfa"):
            stages_of(net, None, "fedfa")


@pytest.mark.parametrize("name", SMALL)
def test_initial_weights_depend_on_the_seed_alone(name: str) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    first = small(name).state_dict()
    torch.manual_seed(2)
    np.random.seed(2)
    again = small(name).state_dict()
    assert all(torch.equal(value, again[key]) for key, value in first.items())


@pytest.mark.parametrize("name", SMALL)
def test_each_array_has_one_name(name: str) -> None:
    net = small(name)
    once = {key for key, _ in [*net.named_parameters(), *net.named_buffers()]}
    assert net.state_dict().keys() == once, "noise, averages and limits go by these names"


def test_arrays_have_monais_names() -> None:
    net = small("monai.DynUNet", deep_supervision=True)
    theirs = monai.networks.nets.DynUNet(
        2, 1, 3, [3] * 4, [1, 2, 2, 2], [2, 2, 2], filters=[4, 8, 8, 16], deep_supervision=True
    )
    missing, unexpected = theirs.load_state_dict(net.state_dict(), strict=False)
    assert not unexpected and all(key.startswith("skip_layers.") for key in missing), "their second names"
    net.load_state_dict(without_second_names(net, theirs.state_dict()))
    x = image(2)
    assert torch.equal(net.eval()(x), theirs.eval()(x))
    heads, stacked = net.train()(x), theirs.train()(x)
    assert torch.equal(heads[0], stacked[:, 0])


@pytest.mark.parametrize(
    ("name", "options", "sides"),
    [
        ("monai.DynUNet", {"deep_supervision": True, "deep_supr_num": 2}, [64, 32, 16]),
        ("monai.MedNeXt", {"deep_supervision": True}, [64, 32, 16, 8, 4]),
        ("monai.SegResNetDS", {"dsdepth": 2}, [64, 32]),
        ("monai.BasicUNetPlusPlus", {"deep_supervision": True}, [64] * 4),
    ],
)
def test_several_outputs_are_a_list_in_training_and_one_otherwise(
    name: str, options: dict[str, Any], sides: list[int]
) -> None:
    net, x = small(name, **options), image(2)
    y = torch.randint(3, (2, 64, 64), generator=torch.Generator().manual_seed(1))
    outputs = net.train()(x)
    assert [output.shape[-1] for output in outputs] == sides and main(outputs) is outputs[0]
    make_loss("ce_dice", {}, n_classes=3)(outputs, y).backward()
    assert all(parameter.grad is not None for key, parameter in net.named_parameters() if "dummy" not in key)
    assert copy.deepcopy(net).stages[0].channels == net.stages[0].channels
    assert net.eval()(x).shape == (2, 3, 64, 64)


def test_unet_pluspluss_last_output_is_the_main_one() -> None:
    net, x = small("monai.BasicUNetPlusPlus", deep_supervision=True).eval(), image(2)
    assert torch.equal(net(x), net.final_conv_0_4(captured(net, net.final_conv_0_4, x)))


def captured(net: nn.Module, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    seen: list[torch.Tensor] = []
    handle = module.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0]))
    net(x)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize(
    ("name", "options", "dims", "code", "names"),
    [
        ("monai.DynUnet", {}, 2, "unknown-network", "'monai.DynUNet'"),
        ("monai.VISTA3D", {}, 3, "unknown-network", "monai.VISTA3D"),
        ("monai.UNet", {"chanels": [4, 8]}, 2, "unknown-option", "'channels'"),
        ("monai.UNet", {"in_channels": 1}, 2, "option-fixed", "in_channels"),
        ("monai.UNet", {"spatial_dims": 3}, 2, "option-fixed", "spatial_dims"),
        ("monai.UNet", {"channels": [4]}, 2, "network-unmade", "channels"),
        ("monai.FlexibleUNet", {"pretrained": True}, 2, "unknown-option", "'pretrained'"),
        ("monai.UNet", {"act": {1: 2}}, 2, "invalid-value", "act"),
        ("resnet18", {}, 3, "network-dims", "data.dims"),
        ("monai.UNETR", {}, 3, "size-missing", "data.patch"),
    ],
)
def test_what_is_refused(name: str, options: dict[str, Any], dims: int, code: str, names: str) -> None:
    with raises(code, naming=names):
        networks.build(name, options, in_channels=1, n_classes=2, seed=0, spatial_dims=dims)


def test_unetr_names_the_nearest_patch() -> None:
    with raises("patch-size", naming=("40 x 56 x 40", "48 x 64 x 48")):
        networks.build("monai.UNETR", {}, in_channels=1, n_classes=2, seed=0, spatial_dims=3, patch=(40, 56, 40))


# --- monai's ``upcat`` pads only what needs it, with the same numbers ---------------------------------


CPU = torch.device("cpu")
FEATURES = [4, 4, 8, 8, 8, 4]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("size", "pads"), [((16, 32), 0), ((20, 32), 1), ((33, 30), 4), ((16, 16, 40), 1)])
def test_the_numbers_are_monais_and_only_odd_sizes_are_padded(
    size: tuple[int, ...], pads: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = build(
        "monai.BasicUNet", {"features": FEATURES}, in_channels=2, n_classes=3, spatial_dims=len(size), patch=None
    )
    monai = BasicUNet(spatial_dims=len(size), in_channels=2, out_channels=3, features=FEATURES)
    monai.load_state_dict(net.state_dict())
    x = torch.randn(2, 2, *size, generator=torch.Generator().manual_seed(0))

    def computed(network: torch.nn.Module) -> list[torch.Tensor]:
        with autocast(precision, CPU):  # type: ignore[arg-type]
            logits = network(x)
        logits.float().square().sum().backward()
        return [logits.detach(), *(p.grad for p in network.parameters() if p.grad is not None)]

    expected = computed(monai)
    padded = []
    pad = torch.nn.functional.pad
    monkeypatch.setattr(torch.nn.functional, "pad", lambda *a, **k: (padded.append(a[1]), pad(*a, **k))[1])
    found = computed(net)
    assert len(found) > 20 and all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert len(padded) == pads and all(any(sides) for sides in padded)
