"""Gradients in bf16 of convolutions whose volumes are shallow."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedshift.tasks.precision import autocast, prepare
from fedshift.tasks.shallow_volumes import protect

CPU = torch.device("cpu")
CONVOLUTIONS: dict[str, Callable[[], nn.Conv3d]] = {
    "3x3x3": lambda: nn.Conv3d(16, 16, 3, padding=1),
    "5x5x5": lambda: nn.Conv3d(16, 16, 5, padding=2),
    "3x3x3 same": lambda: nn.Conv3d(16, 16, 3, padding="same"),
}


@pytest.mark.parametrize("kernel", CONVOLUTIONS)
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_gradients_are_those_of_full_precision(kernel: str, depth: int) -> None:
    torch.manual_seed(0)
    exact = CONVOLUTIONS[kernel]()
    x = torch.randn(2, 16, depth, 5, 6)
    exact(x).square().mean().backward()
    net = prepare(copy.deepcopy(exact), "bf16", CPU)
    for _ in range(5):
        # What was computed before leaves such numbers in the memory that a gradient is written to.
        used = [torch.full((2**size,), torch.inf, dtype=torch.bfloat16) for size in range(6, 20)]
        del used
        net.zero_grad()
        with autocast("bf16", CPU):
            y = net(x)
            assert torch.is_autocast_enabled("cpu")
        y.float().square().mean().backward()
        assert exact.weight.grad is not None and isinstance(net, nn.Conv3d) and net.weight.grad is not None
        torch.testing.assert_close(net.weight.grad, exact.weight.grad, rtol=0.05, atol=1e-4)


def test_deep_volumes_and_predictions_stay_in_bf16() -> None:
    net = nn.Conv3d(4, 4, 3, padding=1)
    protect(net)
    with torch.autocast("cpu", torch.bfloat16):
        assert net(torch.zeros(1, 4, 3, 4, 4)).dtype == torch.bfloat16
        assert net(torch.zeros(1, 4, 2, 4, 4)).dtype == torch.float32
        with torch.inference_mode():
            assert net(torch.zeros(1, 4, 2, 4, 4)).dtype == torch.bfloat16


def test_autocast_is_back_after_an_error() -> None:
    net = nn.Conv3d(4, 4, 3, padding=1)
    protect(net)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(RuntimeError):
            net(torch.zeros(1, 5, 2, 4, 4))
        assert torch.is_autocast_enabled("cpu")
