"""nnU-Net's networks: its weights and predictions, one name for each array, stages, options."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from errors import raises
from torch import nn

from fedshift.tasks import networks, trial
from fedshift.tasks.losses import make_loss
from fedshift.tasks.nnunet_networks import complete, names, with_second_names, without_second_names
from tasks.test_monai_networks import image, noise

package = pytest.importorskip(
    "dynamic_network_architectures.architectures.unet", reason="pip install 'fedshift[nnunet]'"
)

NARROW = {"features_per_stage": [4, 8, 8, 16]}
STAGES = {
    "nnunet.PlainConvUNet": [
        ("encoder.stages.2.0.convs", 8, "input", 2),
        ("encoder.stages.3.0.convs", 8, "input", 4),
        ("encoder.stages.3.0.convs", 16, "output", 8),
    ],
    "nnunet.ResidualEncoderUNet": [
        ("encoder.stages.2.blocks", 8, "input", 2),
        ("encoder.stages.3.blocks", 8, "input", 4),
        ("encoder.stages.3.blocks", 16, "output", 8),
    ],
}


def small(name: str, *, dims: int = 2, **more: Any) -> nn.Module:
    return networks.build(name, {**NARROW, **more}, in_channels=1, n_classes=3, seed=3, spatial_dims=dims)


def of_the_package(name: str, *, dims: int) -> nn.Module:
    short = name.partition(".")[2]
    arguments = complete(short, NARROW, dims=dims)
    arguments |= {
        "conv_op": getattr(nn, f"Conv{dims}d"),
        "norm_op": getattr(nn, f"InstanceNorm{dims}d"),
        "nonlin": nn.LeakyReLU,
    }
    net: nn.Module = getattr(package, short)(input_channels=1, num_classes=3, **arguments)
    return net


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("name", names())
def test_weights_go_both_ways_and_give_the_same_bits(name: str, dims: int) -> None:
    ours, theirs, x = small(name, dims=dims), of_the_package(name, dims=dims), image(dims)
    theirs.load_state_dict(with_second_names(ours, ours.state_dict()))
    for mine, given in zip(ours.train()(x), theirs.train()(x)[:-1], strict=True):
        assert torch.equal(mine, given)
    assert torch.equal(ours.eval()(x), theirs.eval()(x)[0])
    other = of_the_package(name, dims=dims)
    ours.load_state_dict(without_second_names(other.state_dict()))
    assert torch.equal(ours(x), other.eval()(x)[0])


@pytest.mark.parametrize("name", names())
def test_each_array_has_one_name_and_a_copy_is_apart(name: str) -> None:
    net, x = small(name).eval(), image(2)
    assert net.state_dict().keys() == {key for key, _ in [*net.named_parameters(), *net.named_buffers()]}
    before = net(x)
    other = copy.deepcopy(net)
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    assert not other(x).any() and torch.equal(net(x), before)


def test_a_layer_that_is_replaced_by_its_name_is_replaced() -> None:
    net, x = small("nnunet.PlainConvUNet").eval(), image(2)
    net.get_submodule("encoder.stages.0.0.convs.0").norm = nn.Identity()
    assert not torch.equal(net(x), small("nnunet.PlainConvUNet").eval()(x))


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("name", names())
def test_stages_are_behind_the_skip_connections(name: str, dims: int) -> None:
    net, x = small(name, dims=dims).eval(), image(dims)
    stages = trial.find_stages(net, net.trial_size)  # type: ignore[arg-type]
    assert [(place.name, place.channels, place.where, place.level[0]) for place in stages] == STAGES[name]
    plain = net(x)
    for stage in net.stages:  # type: ignore[union-attr]
        handle = stage.hook(lambda f: f * noise(f))
        assert (net(x) - plain).abs().max() > 1e-6
        handle.remove()


def test_all_outputs_but_the_coarsest_are_trained() -> None:
    net, x = small("nnunet.ResidualEncoderUNet"), image(2)
    outputs = net.train()(x)
    assert [output.shape[-1] for output in outputs] == [64, 32]
    make_loss("ce_dice", {}, n_classes=3)(outputs, torch.ones(2, 64, 64, dtype=torch.long)).backward()
    untrained = {key.rpartition(".")[0] for key, value in net.named_parameters() if value.grad is None}
    assert untrained == {"decoder.seg_layers.0"}
    assert not isinstance(small("nnunet.PlainConvUNet", deep_supervision=False).train()(x), list)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = small("nnunet.PlainConvUNet").state_dict()
    torch.manual_seed(2)
    again = small("nnunet.PlainConvUNet").state_dict()
    assert all(torch.equal(value, again[key]) for key, value in first.items())


def test_defaults_are_those_of_nnunets_planners() -> None:
    options = complete("ResidualEncoderUNet", {"n_stages": 7}, dims=3)
    assert options["features_per_stage"] == [32, 64, 128, 256, 320, 320, 320]
    assert options["n_blocks_per_stage"] == [1, 3, 4, 6, 6, 6, 6] and options["n_conv_per_stage_decoder"] == [1] * 6
    assert complete("PlainConvUNet", {"strides": [1, 2, 2]}, dims=2)["n_conv_per_stage"] == [2, 2, 2]


@pytest.mark.parametrize(
    ("options", "code", "names"),
    [
        ({"feature_per_stage": [4, 8]}, "unknown-option", "'features_per_stage'"),
        ({"n_blocks_per_stage": [1, 3]}, "unknown-option", "n_blocks_per_stage"),
        ({"conv_op": "torch.nn.Conv3d"}, "option-fixed", "conv_op"),
        ({"norm_op": "torch.nn.InstanceNorm2d"}, "invalid-value", "instance"),
        ({"nonlin": "eval"}, "invalid-value", "nonlin"),
        ({"n_stages": 4, "strides": [1, 2]}, "options-clash", "n_stages 4"),
        ({"n_stages": 1}, "invalid-value", "n_stages"),
        ({"kernel_sizes": 2}, "invalid-value", "kernel_sizes"),
        ({"features_per_stage": [0, 4]}, "invalid-value", "features_per_stage"),
        ({"norm_op_kwargs": {"epsilon": 1}}, "network-unmade", "epsilon"),
    ],
)
def test_what_is_refused(options: dict[str, Any], code: str, names: str) -> None:
    with raises(code, naming=names):
        networks.build("nnunet.PlainConvUNet", options, in_channels=1, n_classes=2, seed=0)


def test_a_network_whose_package_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dynamic_network_architectures.architectures.unet", None)
    with raises("not-installed", naming="fedshift[nnunet]"):
        small("nnunet.PlainConvUNet")


def test_an_unknown_network_names_the_nearest() -> None:
    with raises("unknown-network", naming="'nnunet.PlainConvUNet'"):
        networks.build("nnunet.PlainConvUnet", {}, in_channels=1, n_classes=2, seed=0)
