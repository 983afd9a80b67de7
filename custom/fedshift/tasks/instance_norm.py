"""Instance norm that keeps features in channels last, on a processor.

Torch's own copies features into the contiguous order at every layer, and what follows works on the copy. Batch norm
does not; and instance norm is the batch norm of one sample. So each sample of a batch is normalised by itself, which
gives the same values but for rounding, and a step of a U-Net in bf16 takes about two thirds of the time
(docs/performance.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType

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
        [functional.batch_norm(one, None, None, weight, bias, training=True, eps=eps) for one in torch.split(x, 1)]
    )


@functools.cache
def _scripted() -> Callable[[Tensor, Tensor | None, Tensor | None, float], Tensor]:
    """`_each` as TorchScript, whose loop a traced network keeps."""
    scripted: Callable[[Tensor, Tensor | None, Tensor | None, float], Tensor] = torch.jit.script(_each)
    return scripted
