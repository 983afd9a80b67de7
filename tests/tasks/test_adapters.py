"""Adapters in networks: what they compute, what is frozen, what travels, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from adapted import moved, pair
from errors import raises
from torch import nn

from fedshift.schema.adapters import AdaptersSpec
from fedshift.schema.errors import ConfigError
from fedshift.schema.task import NetworkSpec
from fedshift.tasks import adapters


@pytest.mark.parametrize(
    ("name", "dims", "adapted"),
    [
        ("monai.SwinUNETR", 3, {"on": "attention"}),
        ("monai.SwinUNETR", 3, {"on": "conv", "rank": 10, "private": 1}),
        ("monai.ViT", 2, {"on": "attention", "private": 3}),
        ("monai.DenseNet121", 2, {"on": "conv", "trained": ["head", "norms"]}),
        ("nnunet.PlainConvUNet", 2, {"on": "conv", "trained": []}),
    ],
)
def test_merged_adapters_predict_the_same(name: str, dims: int, adapted: dict[str, Any]) -> None:
    plain, net, spec = pair(name, dims=dims, **adapted)
    sides = (32, 32, 64) if dims == 3 else (32, 32)  # one voxel alone has no instance norm
    x = torch.randn(1, 1, *sides, generator=torch.Generator().manual_seed(0))
    assert spec.adapters is not None
    with torch.no_grad():
        before = plain.eval()(x)
        torch.testing.assert_close(net.eval()(x), before, rtol=0, atol=0)
        after = moved(net)(x)
        assert (after - before).abs().max() > 1e-3
        plain.load_state_dict(adapters.merge(plain.state_dict(), net.state_dict(), spec.adapters))
        torch.testing.assert_close(plain(x), after, rtol=1e-4, atol=1e-5)


def test_adapters_that_were_merged_can_be_replaced() -> None:
    plain, net, spec = pair("monai.ViT", on="attention", private=2)
    assert spec.adapters is not None
    base, one = plain.state_dict(), {key: value.clone() for key, value in moved(net).state_dict().items()}
    two = moved(net).state_dict()
    once = adapters.merge(adapters.merge(base, one, spec.adapters), two, spec.adapters, instead_of=one)
    torch.testing.assert_close(once, adapters.merge(base, two, spec.adapters), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["monai.DenseNet121", "monai.BasicUNet"])
def test_only_adapters_and_the_head_are_trained_and_all_of_them(name: str) -> None:
    plain, net, _ = pair(name, on="conv")
    keys = {key for key in net.state_dict() if ".lora_" not in key}
    assert keys == {key for key in plain.state_dict() if key.startswith(("final_conv", "class_layers.out"))}
    assert net.state_dict().keys() == dict(net.named_parameters()).keys()
    frozen = {key: value.clone() for key, value in net.named_buffers()}
    moved(net).train()
    output = net(torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(1)))
    output.square().sum().backward()
    for key, weight in net.named_parameters():
        assert weight.grad is not None and weight.grad.abs().max() > 0, key
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    for key, value in net.named_buffers():
        assert torch.equal(value, frozen[key]), key


def test_frozen_batch_norms_compute_the_same_in_training() -> None:
    _, net, _ = pair("monai.DenseNet121", on="conv")
    x = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    assert torch.equal(net.train()(x), net.eval()(x))
    net.load_state_dict(dict(net.state_dict()))  # without a version, where torch's batch norms expect counters


def test_parts_of_the_network_are_trained_whole_by_name() -> None:
    plain, net, _ = pair("monai.SwinUNETR", on="attention", trained=["decoder1", "norms"])
    whole = {key for key in net.state_dict() if ".lora_" not in key}
    assert {key for key in plain.state_dict() if key.startswith("decoder1.")} <= whole
    assert not any(key.startswith("out.") for key in whole)
    assert any("norm" in key and not key.startswith("decoder1.") for key in whole)


def test_the_initial_adapters_follow_from_the_seed_alone() -> None:
    _, one, _ = pair("monai.ViT", on="attention")
    torch.manual_seed(5)
    _, two, _ = pair("monai.ViT", on="attention")
    first, second = one.state_dict(), two.state_dict()
    assert all(torch.equal(value, second[key]) for key, value in first.items())
    assert all(bool(value.any()) != (".lora_B." in key) for key, value in first.items() if ".lora_" in key)


def test_private_adapters_are_those_of_the_second_rank() -> None:
    _, net, _ = pair("monai.ViT", on="attention", private=3)
    private = adapters.private_keys(net)
    state = net.state_dict()
    assert {state[key].shape[0] for key in private if ".lora_A." in key} == {3}
    assert {state[key].shape[0] for key in state.keys() - private if ".lora_A." in key} == {2}
    assert not adapters.private_keys(pair("monai.ViT", on="attention")[1])


@pytest.mark.parametrize(
    ("name", "adapted", "naming"),
    [
        ("lenet5", {"on": "conv"}, "lenet5"),
        ("monai.BasicUNet", {"on": "attention"}, ("network.adapters.on", "monai.BasicUNet")),
        ("monai.BasicUNet", {"on": "conv", "rank": 8}, ("network.adapters.rank", "conv_0.conv_0.conv", "4")),
        ("monai.ViT", {"on": "attention", "private": 64}, ("network.adapters.private", "24")),
        ("monai.ViT", {"on": "attention", "trained": ["heads"]}, ("heads", "head")),
    ],
)
def test_what_does_not_fit_the_network_is_refused(name: str, adapted: dict[str, Any], naming: str) -> None:
    with raises("adapters-unfit", naming=naming):
        pair(name, **adapted)


def test_settings_name_what_is_wrong_with_them() -> None:
    with pytest.raises(ConfigError, match=r"ranks.*rank"):
        AdaptersSpec.parse({"on": "conv", "ranks": 8}, where="test")
    with pytest.raises(ConfigError, match="--weights"):
        NetworkSpec.parse({"name": "monai.ViT", "adapters": {"on": "attention"}}, where="test")
    assert AdaptersSpec.parse({True: "conv"}, where="test").on == "conv", "what YAML makes of the word on"


def test_a_network_can_be_moved_and_copied() -> None:
    """As training does: methods copy networks, and a trial has them on the meta device."""
    import copy

    _, net, _ = pair("monai.DenseNet121", on="conv")
    again = copy.deepcopy(moved(net)).train()
    x = torch.randn(2, 1, 32, 32)
    assert torch.equal(again(x), net.eval()(x)) and isinstance(again, nn.Module)
    assert {value.device.type for value in (*net.to("meta").parameters(), *net.buffers())} == {"meta"}


@pytest.mark.slow
def test_peft_is_imported_for_adapters_alone_and_calls_nobody() -> None:
    code = (
        "import sys, socket\n"
        "def hook(event, args):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo', 'socket.sendto'): raise SystemExit(event)\n"
        "sys.addaudithook(hook)\n"
        "import fedshift.federation.in_process, fedshift.tasks.starting\n"
        "assert 'peft' not in sys.modules and 'transformers' not in sys.modules\n"
        "import peft\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
