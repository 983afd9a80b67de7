"""Instance norm that keeps features in channels last, on a processor.

Torch's own copies features into the contiguous order at every layer, and what follows works on the copy. Batch norm
does not; and instance norm is the batch norm of one sample. So each sample of a batch is normalised by itself, which
gives the same values but for rounding, and a step of a U-Net in bf16 takes about two thirds of the time
(docs/performance.md).
"""

from __future__ import annotations

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
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if tracing or torch.compiler.is_exporting():  # sample by sample, a graph would be for one size of batch
        return type(norm).forward(norm, x)
    return torch.cat(
        [
            functional.batch_norm(sample, None, None, norm.weight, norm.bias, training=True, eps=norm.eps)
            for sample in torch.split(x, 1)
        ]
    )
