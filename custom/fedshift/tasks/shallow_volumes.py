"""Convolutions of shallow volumes in float32, where bf16 on a processor gives wrong gradients.

In torch 2.13 (oneDNN 3.12) the bf16 gradient of a ``Conv3d``'s weight, with stride 1 along depth, reads memory that was
never written if 2 <= depth <= 2 * padding, such as a depth of 2 under a 3 x 3 x 3 kernel at the bottom of a U-Net. The
gradient is then any number, often infinite, and the process may crash. Outputs and the input's gradient are right. Such
a layer is computed in float32 while gradients are needed; it is small.

``tests/tasks/test_shallow_volumes.py`` fails without this. When it no longer does, this module can go.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class FullPrecision:
    """Hooks of one convolution: leave autocast before it, and return to it afterwards."""

    def __init__(self, padding: int) -> None:
        """``padding`` along depth."""
        self._deepest = 2 * padding
        self._left = False

    def before(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Of a batch (B, C, depth, height, width)."""
        (x,) = inputs
        affected = x.dim() == 5 and 2 <= x.shape[2] <= self._deepest
        if not affected or not torch.is_grad_enabled() or not torch.is_autocast_enabled("cpu"):
            return None
        self._left = True
        torch.set_autocast_enabled("cpu", False)
        return (x.float(),)

    def after(self, *_: Any) -> None:
        """Also if the convolution failed."""
        if self._left:
            self._left = False
            torch.set_autocast_enabled("cpu", True)


def protect(net: nn.Module) -> None:
    """Register `FullPrecision` for every convolution of a network on a processor that can be affected."""
    for module in net.modules():
        if isinstance(module, nn.Conv3d) and module.stride[0] == 1:
            along_depth = module.padding[0] if not isinstance(module.padding, str) else module.kernel_size[0] // 2
            if along_depth:
                hooks = FullPrecision(int(along_depth))
                module.register_forward_pre_hook(hooks.before)
                module.register_forward_hook(hooks.after, always_call=True)
