"""Number formats and memory layout of training: fp32 or bf16 autocast, channels-last, thread count."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from fedshift.tasks.machine import own_cores

if TYPE_CHECKING:
    from fedshift.schema.job import Precision, Threads


def uses_bf16(precision: Precision, device: torch.device) -> bool:
    """Whether forward passes are in bf16 on a device.

    ``auto``: if it multiplies such numbers itself, as GPUs since NVIDIA's Ampere and processors with AVX-512 BF16 or
    AMX do. Others can only emulate it, which is slower than fp32; what is not known to be fast is fp32.
    """
    if precision != "auto":
        return precision == "bf16"
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    has: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch do not say
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))


def settled(precision: Precision, device: torch.device) -> Literal["fp32", "bf16"]:
    """What a job's precision is on a device."""
    return "bf16" if uses_bf16(precision, device) else "fp32"


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """bf16 autocast, or nothing for fp32. Parameters and optimiser state stay float32 in both."""
    if uses_bf16(precision, device):
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
    if uses_bf16(precision, device):
        # The overload without positional dtype is not in torch's stubs.
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net


def arrange(x: torch.Tensor, precision: Precision, device: torch.device) -> torch.Tensor:
    """A batch (B, C, H, W) on the device, in the layout that `prepare` gave the network."""
    x = x.to(device)
    return x.contiguous(memory_format=torch.channels_last) if uses_bf16(precision, device) else x


def use_threads(threads: Threads, *, workers: int | None = None) -> int:
    """Fix torch's CPU threads: sums are ordered by thread, so results depend on their number, which is returned.

    ``auto`` is this process's share of the cores; ``workers`` as for `fedshift.tasks.machine.own_cores`.
    """
    number = own_cores(workers) if threads == "auto" else threads
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)
    return number


def precise(x: torch.Tensor) -> torch.Tensor:
    """Float32 for what autocast has made shorter; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()
