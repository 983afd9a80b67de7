"""Layers that a processor computes slowly, or wrongly in bf16, computed otherwise.

**Instance norm** that keeps features in channels last. Torch's own copies features into the contiguous order at every
layer, and what follows works on the copy. Batch norm does not; and instance norm is the batch norm of one sample. So
each sample of a batch is normalised by itself, which gives the same values but for rounding, and a step of a U-Net in
bf16 takes about two thirds of the time (docs/performance.md).

**Convolutions of shallow volumes** in float32. In torch 2.13 (oneDNN 3.12) the bf16 gradient of a ``Conv3d``'s
weight, with stride 1 along depth, reads memory that was never written if 2 <= depth <= 2 * padding, such as a depth
of 2 under a 3 x 3 x 3 kernel at the bottom of a U-Net. The gradient is then any number, often infinite, and the
process may crash. Outputs and the input's gradient are right. Such a layer is computed in float32 while gradients are
needed; it is small.

``tests/tasks/test_layers.py`` fails without this. When it does not, `protect` can go.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def keep_channels_last(net: nn.Module) -> None:
    """Have the instance norms of a network keep channels last, but those that keep running statistics."""
    for module in net.modules():
        if isinstance(module, nn.InstanceNorm2d | nn.InstanceNorm3d) and not module.track_running_stats:
            module.forward = MethodType(_one_by_one, module)  # type: ignore[method-assign]


def _one_by_one(norm: nn.InstanceNorm2d | nn.InstanceNorm3d, x: Tensor) -> Tensor:
    """Instance norm of a batch (B, C, *spatial)."""
    if torch.compiler.is_compiling():  # a graph without loops would be for one size of batch
        return type(norm).forward(norm, x)
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    each = _scripted() if tracing else _each
    return each(x, norm.weight, norm.bias, norm.eps)


def _each(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return torch.cat(
        [
            functional.batch_norm(sample, None, None, weight, bias, training=True, eps=eps)
            for sample in torch.split(x, 1)
        ]
    )


@functools.cache
def _scripted() -> Callable[[Tensor, Tensor | None, Tensor | None, float], Tensor]:
    """`_each` as TorchScript, whose loop a traced network keeps."""
    scripted: Callable[[Tensor, Tensor | None, Tensor | None, float], Tensor] = torch.jit.script(_each)
    return scripted


class FullPrecision:
    """Hooks of one convolution: leave autocast before it, and return to it afterwards."""

    def __init__(self, padding: int) -> None:
        self._deepest = 2 * padding
        self._suspended = False

    def before(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Of a batch (B, C, depth, height, width)."""
        (x,) = inputs
        affected = x.dim() == 5 and 2 <= x.shape[2] <= self._deepest
        if not affected or not torch.is_grad_enabled() or not torch.is_autocast_enabled("cpu"):
            return None
        self._suspended = True
        torch.set_autocast_enabled("cpu", False)
        return (x.float(),)

    def after(self, *_: Any) -> None:
        """Also if the convolution failed."""
        if self._suspended:
            self._suspended = False
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
