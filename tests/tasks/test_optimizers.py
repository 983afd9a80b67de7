"""Optimisers that leave torch's compiler alone: the steps of torch's own, and no import of it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

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
