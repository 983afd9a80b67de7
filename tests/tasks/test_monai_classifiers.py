"""MONAI's classifiers: its values and names, two and three dimensions, what methods see, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from conftest import small_image_job, small_job
from errors import raises
from monai.networks import nets
from torch import Tensor, nn

from fedshift.tasks import monai_classifiers, networks, trial
from fedshift.tasks.monai_classifiers import Classifier

SMALL: Mapping[str, dict[str, Any]] = {
    "monai.DenseNet121": {"init_features": 8, "growth_rate": 4, "block_config": [1, 2, 1, 1]},
    "monai.DenseNet169": {"init_features": 8, "growth_rate": 4, "block_config": [1, 1, 2, 1]},
    "monai.EfficientNetBN": {},
    "monai.resnet10": {"widen_factor": 0.125},
    "monai.resnet18": {"widen_factor": 0.125},
    "monai.resnet50": {"widen_factor": 0.125},
    "monai.SEResNet50": {"layers": [1, 1, 1, 1], "reduction": 4},
    "monai.ViT": {"hidden_size": 24, "mlp_dim": 32, "num_layers": 2, "num_heads": 2},
}
DIMS = [(name, dims) for name in SMALL for dims in (2, 3)]


def made(name: str, dims: int, **options: Any) -> Classifier:
    net = networks.build(
        *(name, {**SMALL[name], **options}),
        in_channels=2,
        n_classes=3,
        seed=0,
        spatial_dims=dims,
        patch=(64,) * dims,
    )
    assert isinstance(net, Classifier)
    return net


def test_all_that_are_listed_are_tried() -> None:
    assert set(SMALL) == set(monai_classifiers.names()) < set(networks.available())


@pytest.mark.parametrize(("name", "dims"), DIMS)
def test_logits_are_the_head_of_the_embedding(name: str, dims: int) -> None:
    net, x = made(name, dims).eval(), torch.rand(2, 2, *[64] * dims)
    seen: list[Tensor] = []
    net.head.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        logits, u = net(x), net.embed(x)
    assert isinstance(net.head, nn.Linear) and logits.shape == (2, 3) and u.shape == (2, net.head.in_features)
    assert len(seen) == 1 and torch.equal(seen[0], u)
    torch.testing.assert_close(logits, net.head(u))
    assert len({id(value) for value in net.state_dict().values()}) == len(net.state_dict())


@pytest.mark.parametrize(("name", "dims"), [case for case in DIMS if "ViT" not in case[0]])
def test_stages_are_where_the_logits_come_from(name: str, dims: int) -> None:
    net, x = made(name, dims).eval(), torch.rand(2, 2, *[64] * dims)
    assert len(net.stages) >= 3
    before = net(x)
    for stage in net.stages:
        shapes: list[tuple[int, ...]] = []
        handle = stage.hook(lambda features, shapes=shapes: (shapes.append(tuple(features.shape)), 0 * features)[1])
        assert not torch.equal(net(x), before) and [shape[1] for shape in shapes] == [stage.channels]
        handle.remove()
    assert torch.equal(net(x), before)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_arrays_have_monais_names(name: str) -> None:
    short = name.removeprefix("monai.")
    given: dict[str, Any] = {"spatial_dims": 2, **SMALL[name]}
    if short.startswith("resnet"):
        given |= {"n_input_channels": 2, "num_classes": 3}
    elif short.startswith("Dense"):
        given |= {"in_channels": 2, "out_channels": 3}
    else:
        given |= {"in_channels": 2, "num_classes": 3}
    given |= {"model_name": "efficientnet-b0", "pretrained": False} if short == "EfficientNetBN" else {}
    if short == "ViT":
        given |= {"img_size": (64, 64), "patch_size": 16, "classification": True, "post_activation": "none"}
    own = getattr(nets, short)(**given).state_dict()
    assert {key: value.shape for key, value in made(name, 2).state_dict().items()} == {
        key: value.shape for key, value in own.items()
    }
    net = made(name, 2)
    net.load_state_dict(own)


def test_a_trial_needs_no_values() -> None:
    with torch.device("meta"):
        net = networks.build(
            "monai.DenseNet169", {}, in_channels=1, n_classes=2, seed=0, spatial_dims=3, patch=(64, 64, 64)
        )
    assert trial.run(net, (64, 64, 64)).shape == (2, 2)


@pytest.mark.parametrize(
    ("name", "options", "code", "names"),
    [
        ("monai.resnet18", {"num_classes": 5}, "option-fixed", "num_classes"),
        ("monai.resnet18", {"layers": [1]}, "option-fixed", "layers"),
        ("monai.DenseNet121", {"pretrained": True}, "unknown-option", "pretrained"),
        ("monai.EfficientNetBN", {"pretrained": True}, "option-fixed", "pretrained"),
        ("monai.EfficientNetBN", {"model_name": "b0"}, "network-unmade", "efficientnet-b0"),
        ("monai.ViT", {"patch_size": 24}, "invalid-value", "patch_size"),
        ("monai.DenseNet", {}, "unknown-network", "monai.DenseNet121"),
    ],
)
def test_options_that_do_not_fit_are_refused(name: str, options: dict[str, Any], code: str, names: str) -> None:
    with raises(code, naming=names):
        networks.build(name, options, in_channels=1, n_classes=2, seed=0, patch=(64, 64))


def test_a_network_is_for_its_kind_of_task() -> None:
    with raises("network-unfit", naming="monai.BasicUNet"):
        small_image_job("fedavg", "network.name=monai.BasicUNet", "network.options={}")
    with raises("network-unfit", naming="monai.resnet10"):
        small_job("fedavg", "network.name=monai.resnet10", "network.options={}")


@pytest.mark.parametrize("methods", ["fedbn", "fedproto", "moon", "fraug", "fedper", "mixstyle", "fedfa", "fedsr"])
def test_methods_find_what_they_need(methods: str) -> None:
    """Jobs are made, and the trial in it passes their layers."""
    options = '{"init_features": 8, "growth_rate": 4, "block_config": [1, 1, 1]}'
    small_image_job(methods, "network.name=monai.DenseNet121", f"network.options={options}")


@pytest.mark.parametrize(("methods", "names"), [("mixstyle", "stages"), ("fedwon", "monai.ViT")])
def test_methods_of_convolutional_networks_refuse_a_transformer(methods: str, names: str) -> None:
    options = '{"patch_size": 4, "hidden_size": 24, "mlp_dim": 32, "num_layers": 2, "num_heads": 2}'
    vit = ("network.name=monai.ViT", f"network.options={options}")
    small_image_job("fedavg+fedprox", *vit)
    with raises("method-needs", naming=names):
        small_image_job(methods, *vit)
