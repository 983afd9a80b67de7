"""Captured passes of a network: the same bits, and layer by layer whenever something is not as it was captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from errors import raises
from torch import Tensor, nn

from fedshift.tasks import networks
from fedshift.tasks.captured import MOST, SWITCH, Captured, make_captured
from fedshift.tasks.losses import Logits

from .graphs import make_graphs

SMALL: dict[str, dict[str, Any]] = {
    "unet": {"features": 4},
    "monai.BasicUNet": {"features": [4, 4, 8, 8, 8, 4]},
    "monai.DynUNet": {"strides": [1, 2, 2], "filters": [4, 8, 8], "deep_supervision": True, "deep_supr_num": 1},
}


def network(name: str) -> nn.Module:
    return networks.build(name, SMALL[name], in_channels=1, n_classes=2, seed=0, spatial_dims=2, patch=(32, 32)).train()


def answer(net: nn.Module, forward: Callable[[Tensor], Logits], x: Tensor) -> list[Tensor]:
    """Logits and gradients."""
    net.zero_grad(set_to_none=True)
    logits = forward(x)
    heads = [logits] if isinstance(logits, Tensor) else list(logits)
    torch.stack([head.square().mean() for head in heads]).sum().backward()  # type: ignore[no-untyped-call]
    return [
        *(head.detach().clone() for head in heads),
        *(p.grad.clone() for p in net.parameters() if p.grad is not None),
    ]


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("name", SMALL)
def test_logits_and_gradients_of_further_batches_have_the_same_bits(name: str, attached: bool) -> None:
    net = network(name)
    captured = Captured(net, "fp32", make=make_graphs)
    if attached:
        net.stages[1].hook(lambda features: 2 * features)
    x = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    captured.capture(x)
    assert captured.covers(x) and len(captured.parts) >= 1
    for scale in (1.0, -0.5, 3.0):
        expected = answer(net, captured.layer_by_layer, scale * x)
        given = answer(net, captured, scale * x)
        assert len(given) == len(expected) and all(map(torch.equal, given, expected))


def frozen(net: nn.Module) -> None:
    next(net.parameters()).requires_grad_(False)


def evaluating(net: nn.Module) -> None:
    next(module for module in net.modules() if isinstance(module, nn.BatchNorm2d)).eval()


def replaced(net: nn.Module) -> None:
    next(net.parameters()).data = torch.zeros_like(next(net.parameters()))


def hooked(net: nn.Module) -> None:
    net.register_forward_hook(lambda module, inputs, output: 2 * output)


@pytest.mark.parametrize("change", [frozen, evaluating, replaced, hooked])
def test_a_network_that_is_not_as_it_was_goes_layer_by_layer(change: Callable[[nn.Module], None]) -> None:
    net = network("unet")
    captured = Captured(net, "fp32", make=make_graphs)
    x = torch.rand(2, 1, 32, 32)
    captured.capture(x)
    change(net)
    assert not captured.covers(x)
    assert all(map(torch.equal, answer(net, captured, x), answer(net, captured.layer_by_layer, x)))
    other = torch.rand(3, 1, 32, 32)
    assert torch.equal(captured(other), captured.layer_by_layer(other))


def test_no_more_than_a_few_sizes_are_kept() -> None:
    captured = Captured(network("unet"), "fp32", make=make_graphs)
    sizes = [torch.rand(size, 1, 32, 32) for size in (2, 3, 4)]
    for x in sizes:
        captured.capture(x)
    assert len(captured.parts) == MOST == 2
    assert [captured.covers(x) for x in sizes] == [False, True, True]


def test_the_switch_takes_nothing_else_for_off(monkeypatch: pytest.MonkeyPatch) -> None:
    net, gpu = network("unet"), torch.device("cuda:0")
    monkeypatch.setenv(SWITCH, "off")
    assert make_captured(net, "fp32", gpu) is None
    monkeypatch.setenv(SWITCH, "on")
    assert make_captured(net, "fp32", gpu) is not None and make_captured(net, "fp32", torch.device("cpu")) is None
    monkeypatch.setenv(SWITCH, "0")
    with raises("invalid-value", naming=(SWITCH, "0")):
        make_captured(net, "fp32", gpu)
