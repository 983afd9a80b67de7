"""Optimisers that leave torch's compiler alone: the steps of torch's own, and no import of it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.sgd import sgd

from fedshift.tasks import optimizers

KINDS = [
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", {"weight_decay": 0.01}),
    ("AdamW", {"weight_decay": 0.01}),
]


def trained(make: Any, settings: dict[str, Any]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Weights and state after five steps, in the midst of which another optimiser takes over the state."""
    net, x = nn.Linear(4, 3), torch.linspace(-1, 1, 32).reshape(8, 4)
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(torch.linspace(0.1, 0.9, value.numel()).reshape(value.shape))
    optimizer = make([net.weight], lr=0.1, **settings)
    optimizer.add_param_group({"params": [net.bias], "lr": 0.01})
    for step in range(5):
        if step == 2:
            state = optimizer.state_dict()
            optimizer = make([{"params": [net.weight]}, {"params": [net.bias]}], lr=0.5, **settings)
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        (net(x) ** 2).mean().backward()
        optimizer.step()
    return [value.detach() for value in net.parameters()], optimizer.state_dict()


@pytest.mark.parametrize(("name", "settings"), KINDS)
def test_the_steps_are_torchs_and_the_compiler_is_not_imported(
    name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, state = trained(getattr(torch.optim, name), settings)
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # an import of it fails
    with pytest.raises(ImportError):
        trained(type(name, (getattr(torch.optim, name),), {}), settings)
    ours, our_state = trained(getattr(optimizers, name), settings)
    assert all(torch.equal(one, other) for one, other in zip(weights, ours, strict=True))
    assert state["param_groups"] == our_state["param_groups"]
    for number, of in state["state"].items():
        assert all(torch.equal(value, our_state["state"][number][key]) for key, value in of.items())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_state_is_torchs(momentum: float) -> None:
    def state(make: Any) -> Any:
        parameters = [nn.Parameter(torch.ones(size)) for size in (3, 2**16, 4)]
        optimizer = make(parameters, lr=0.1, momentum=momentum)
        for parameter in parameters[:2]:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        return optimizer.state_dict()["state"]

    expected = state(torch.optim.SGD)
    assert expected.keys() == ({0, 1} if momentum else set())
    torch.testing.assert_close(state(optimizers.SGD), expected, rtol=0, atol=0)


SHAPES = [(256, 256), (65_552,), (65_544,), (64, 128, 3, 3), (33,)]
"""Large; large with a width of 16 left; a part of one left; large in channels last; small."""


@pytest.mark.parametrize(
    "settings", [{}, {"weight_decay": 0.01}, {"nesterov": True}], ids=["momentum", "decay", "nesterov"]
)
def test_large_parameters_are_updated_in_one_pass_with_torchs_bits(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_one_pass: list[int] = []

    def update(parameters: list[torch.Tensor], *args: Any, fused: bool | None, **kwargs: Any) -> None:
        in_one_pass.extend(value.numel() for value in parameters if fused)
        sgd(parameters, *args, fused=fused, **kwargs)

    monkeypatch.setattr(optimizers, "sgd", update)
    theirs = descended(torch.optim.SGD, momentum=0.9, **settings)
    ours = descended(optimizers.SGD, momentum=0.9, **settings)
    assert in_one_pass == ([] if "nesterov" in settings else [65_536, 65_552] * 4)
    assert len(ours) == len(theirs) == 2 * len(SHAPES)
    assert all(torch.equal(one, other) for one, other in zip(theirs, ours, strict=True))


def descended(make: Any, **settings: Any) -> list[torch.Tensor]:
    """Parameters and momentum after four steps. The gradient of the fourth parameter is not stored as it is."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    parameters[3].data = parameters[3].data.to(memory_format=torch.channels_last)
    optimizer = make(parameters, lr=0.1, **settings)
    for _ in range(4):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape)
        optimizer.step()
    return [value for one in parameters for value in (one.detach(), optimizer.state[one]["momentum_buffer"])]
