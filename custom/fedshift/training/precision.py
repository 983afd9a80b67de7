"""Number formats and memory layout of training: fp32 or bf16 autocast, channels-last, thread count."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from fedshift.job import Precision


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """bf16 autocast, or nothing for fp32. Parameters and optimiser state stay float32 in both."""
    if precision == "bf16":
        return torch.autocast(device_type=device.type, dtype=torch.bfloat16)
    return nullcontext()


def prepare(net: nn.Module, precision: Precision, device: torch.device) -> nn.Module:
    """Move the network to its device; bf16 convolutions are fastest in channels-last layout.

    On a GPU fp32 is float32 throughout, not the shorter TF32, and convolutions take algorithms that repeat their sums.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    net = net.to(device)
    if precision == "bf16":
        # The overload without positional dtype is not in torch's stubs.
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net


def arrange(x: torch.Tensor, precision: Precision, device: torch.device) -> torch.Tensor:
    """A batch (B, C, H, W) on the device, in the layout that `prepare` gave the network."""
    x = x.to(device)
    return x.contiguous(memory_format=torch.channels_last) if precision == "bf16" else x


def use_threads(threads: int) -> None:
    """Fix torch's CPU threads: sums are ordered by thread, so results depend on their number."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def precise(x: torch.Tensor) -> torch.Tensor:
    """Float32 for what autocast has made shorter; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()
