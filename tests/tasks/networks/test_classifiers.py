"""Classification networks: published sizes and numbers, checkpoint names, stages, heads and norms."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from conftest import GOLDEN, golden, make_context, rule_weights
from errors import raises
from monai.networks.nets import ResNet
from torch import nn

from fedshift.methods import fedfa
from fedshift.methods.shared.norms import norm_keys
from fedshift.tasks import networks

SMALL = [
    ("alexnet", {"hidden": 8}, 64, (64, 192, 384, 256, 256), 7),
    ("resnet18", {}, 64, (64, 128, 256, 512), 20),
    ("resnet18", {"norm": "group", "stem": "small"}, 16, (64, 128, 256, 512), 20),
    ("lenet5", {"size": 12}, 12, (6, 16), 0),
    ("mnist_cnn", {"size": 16}, 16, (16, 32), 0),
    ("digits_cnn", {"size": 16, "width": 4}, 16, (4, 4, 8), 5),
]
"""Name, options, size of images, channels of stages, number of norms."""


def make(name: str, options: dict[str, Any], *, in_channels: int = 3, n_classes: int = 5) -> Any:
    return networks.build(name, options, in_channels=in_channels, n_classes=n_classes, seed=1)


def images(size: int) -> torch.Tensor:
    return torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "options", "in_channels", "n_classes", "parameters"),
    [
        ("alexnet", {}, 3, 10, 12_974_154),
        # the original's 61,100,840 with 1000 classes, less its head, and the head for ten and the batch norms instead
        ("alexnet", {"hidden": 4096}, 3, 10, 61_100_840 - 4_097_000 + 40_970 + 2 * (1152 + 2 * 4096)),
        ("resnet18", {}, 3, 1000, 11_689_512),
        ("resnet18", {"norm": "group"}, 3, 1000, 11_689_512),
        ("resnet18", {"stem": "small"}, 3, 10, 11_173_962),
        ("lenet5", {}, 1, 10, 61_706),
        ("lenet5", {}, 1, 62, 66_126),
    ],
)
def test_numbers_of_parameters_are_the_published_ones(
    name: str, options: dict[str, Any], in_channels: int, n_classes: int, parameters: int
) -> None:
    with torch.device("cpu" if name == "resnet18" else "meta"):  # its initial weights are drawn slowly on meta
        net = make(name, options, in_channels=in_channels, n_classes=n_classes)
    assert sum(p.numel() for p in net.parameters()) == parameters


def test_alexnet_is_fedfas() -> None:
    facts = json.loads((GOLDEN / "fedfa_networks.json").read_text(encoding="utf-8"))["AlexNet"]
    with torch.device("meta"):
        net = make("alexnet", {}, n_classes=10)
    found = [[k.replace("head.", "classifier.fc3."), list(v.shape), str(v.dtype)] for k, v in net.state_dict().items()]
    assert found == facts["state_dict"]


@pytest.mark.slow
def test_alexnet_gives_the_authors_outputs() -> None:
    g = golden("alexnet_forward")
    net = make("alexnet", {}, n_classes=10).double()
    rule_weights(net)
    x = torch.from_numpy(g["x"])
    with torch.no_grad():
        for mode, name in ((False, "y_eval_fresh_bn"), (True, "y_train"), (False, "y_eval_after_one_train_pass")):
            np.testing.assert_allclose(net.train(mode)(x).numpy(), g[name], rtol=1e-8, atol=1e-10, err_msg=name)


def test_alexnet_takes_images_from_63_pixels() -> None:
    net = make("alexnet", {"hidden": 8}).eval()
    assert net(images(63)).shape == (4, 5) and net(images(80)[:, :, :70]).shape == (4, 5)
    with pytest.raises(RuntimeError, match="too small"):
        net(images(62))


def checkpoint_shapes() -> dict[str, tuple[int, ...]]:
    """Keys and shapes of torchvision's resnet18 checkpoints, in order."""
    shapes: dict[str, tuple[int, ...]] = {}

    def conv_and_norm(conv: str, norm: str, *shape: int) -> None:
        shapes[f"{conv}.weight"] = shape
        shapes.update({f"{norm}.{key}": shape[:1] for key in ("weight", "bias", "running_mean", "running_var")})
        shapes[f"{norm}.num_batches_tracked"] = ()

    conv_and_norm("conv1", "bn1", 64, 3, 7, 7)
    before = 64
    for layer, width in ((1, 64), (2, 128), (3, 256), (4, 512)):
        for block in (f"layer{layer}.0", f"layer{layer}.1"):
            conv_and_norm(f"{block}.conv1", f"{block}.bn1", width, before, 3, 3)
            conv_and_norm(f"{block}.conv2", f"{block}.bn2", width, width, 3, 3)
            if before != width:
                conv_and_norm(f"{block}.downsample.0", f"{block}.downsample.1", width, before, 1, 1)
            before = width
    return {**shapes, "fc.weight": (1000, 512), "fc.bias": (1000,)}


def test_resnet18_has_the_keys_and_shapes_of_public_checkpoints() -> None:
    net = make("resnet18", {}, n_classes=1000)
    found = [(key, tuple(value.shape)) for key, value in net.state_dict().items()]
    assert found == list(checkpoint_shapes().items()) and len(found) == 122


@pytest.mark.parametrize(("norm", "stem"), [("batch", "imagenet"), ("group", "small")])
def test_resnet18_computes_what_monais_does(norm: str, stem: str) -> None:
    net = make("resnet18", {"norm": norm, "stem": stem})
    rule_weights(net)
    small = stem == "small"
    theirs = ResNet(
        "basic",
        [2, 2, 2, 2],
        [64, 128, 256, 512],
        spatial_dims=2,
        n_input_channels=3,
        num_classes=5,
        conv1_t_size=3 if small else 7,
        conv1_t_stride=1 if small else 2,
        no_max_pool=small,
        bias_downsample=False,
    )
    if norm == "group":  # MONAI's option reaches the stem only
        for parent in list(theirs.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.BatchNorm2d):
                    setattr(parent, name, nn.GroupNorm(2, child.num_features))
    theirs.load_state_dict(net.state_dict())
    x = images(20 if small else 50)
    with torch.no_grad():
        for mode in (True, False):
            torch.testing.assert_close(net.train(mode)(x), theirs.train(mode)(x))


def test_resnet18_starts_as_he_et_al_say() -> None:
    net = make("resnet18", {})
    for key, conv in ((k, m) for k, m in net.named_modules() if isinstance(m, nn.Conv2d)):
        fan_out = conv.weight[:, 0].numel()
        assert float(conv.weight.detach().std()) == pytest.approx((2 / fan_out) ** 0.5, rel=0.03), key
        assert conv.bias is None


@pytest.mark.parametrize(("name", "options", "size", "channels", "n_norms"), SMALL)
def test_stages_have_their_channels_and_augmenting_them_changes_the_output(
    name: str, options: dict[str, Any], size: int, channels: tuple[int, ...], n_norms: int
) -> None:
    net = make(name, options).train()
    assert tuple(stage.channels for stage in net.stages) == channels
    seen: list[int] = []
    handles = [stage.hook(lambda f: (seen.append(f.shape[1]), f)[1]) for stage in net.stages]
    x = images(size)
    with torch.no_grad():
        plain = net(x)
        assert tuple(seen) == channels, "in the order of the forward pass"
        for handle in handles:
            handle.remove()
        for layer in range(1, len(channels) + 1):
            client = fedfa.Client(fedfa.Config(p=1.0, layers=(layer,)))
            attached = client.attach(net, make_context("fedfa", net))
            assert (net(x) - plain).abs().max() > 1e-4, f"layer {layer} is not on the way to the output"
            for handle in attached:
                handle.remove()
        assert torch.equal(net(x), plain)


def test_alexnets_stages_are_where_fedfa_has_its_layers() -> None:
    net = make("alexnet", {"hidden": 8})
    last = [list(stage.module)[-1] for stage in net.stages]
    assert [type(module) for module in last] == [nn.MaxPool2d, nn.MaxPool2d, nn.ReLU, nn.ReLU, nn.MaxPool2d]


@pytest.mark.parametrize(("name", "options", "size", "channels", "n_norms"), SMALL)
def test_a_classifier_is_its_head_on_its_features(
    name: str, options: dict[str, Any], size: int, channels: tuple[int, ...], n_norms: int
) -> None:
    net = make(name, options).eval()
    assert isinstance(net.head, nn.Linear) and net.in_channels == 3
    seen: list[torch.Tensor] = []
    net.head.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0]))
    x = images(size)
    logits, features = net(x), net.embed(x)
    assert features.shape == (4, net.head.in_features) and logits.shape == (4, 5)
    assert torch.equal(seen[0], features), "methods see the embedding before the head"
    assert torch.equal(logits, net.head(features))
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters()), "every parameter is used"


@pytest.mark.parametrize(("name", "options", "size", "channels", "n_norms"), SMALL)
def test_fedbn_finds_every_norm(
    name: str, options: dict[str, Any], size: int, channels: tuple[int, ...], n_norms: int
) -> None:
    net = make(name, options)
    vectors = {key.rpartition(".")[0] for key, p in net.named_parameters() if p.dim() == 1}
    weighing = {key.rpartition(".")[0] for key, p in net.named_parameters() if p.dim() > 1}
    norms = vectors - weighing  # modules with vectors only
    assert len(norms) == n_norms
    if name == "resnet18":
        assert {"bn1", "layer2.0.downsample.1", "layer3.0.downsample.1", "layer4.0.downsample.1"} < norms
    keys = {key for key in net.state_dict() if key.rpartition(".")[0] in norms}
    assert norm_keys(net, "all") == keys
    assert norm_keys(net, "batch") == (set() if options.get("norm") == "group" else keys)


@pytest.mark.parametrize(
    ("name", "options", "code", "names"),
    [
        ("alexnet", {"hidden": 0}, "invalid-value", "hidden"),
        ("alexnet", {"width": 4}, "unknown-option", "'width'"),
        ("resnet18", {"norm": "layer"}, "invalid-value", "'layer'"),
        ("resnet18", {"stem": "cifar"}, "invalid-value", "'cifar'"),
        ("lenet5", {"size": 30}, "invalid-value", "30"),
        ("lenet5", {"size": 8}, "invalid-value", "8"),
    ],
)
def test_options_that_make_no_network_are_refused(name: str, options: dict[str, Any], code: str, names: str) -> None:
    with raises(code, naming=(name, names)):
        make(name, options)
