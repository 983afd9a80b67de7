"""SGD in one pass: the state and the bits of torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.sgd import sgd

from fedshift.tasks import optimizers


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
