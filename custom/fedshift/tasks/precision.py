"""Precision (fp32 or bf16 autocast), memory format and thread count of training."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from fedshift.runtime.segmentation import autocast as autocast
from fedshift.runtime.segmentation import uses_bf16
from fedshift.tasks.layers import keep_channels_last, protect
from fedshift.tasks.machine import own_cores

if TYPE_CHECKING:
    from fedshift.schema.task import Precision, Threads


def settled(precision: Precision, device: torch.device) -> Literal["fp32", "bf16"]:
    """The precision that a job uses on a device, with ``auto`` resolved."""
    return "bf16" if uses_bf16(precision, device) else "fp32"


def prepare(net: nn.Module, precision: Precision, device: torch.device) -> nn.Module:
    """Move the network to its device, in the memory format in which its bf16 convolutions are fastest.

    That is channels last, but on a processor contiguous where that is faster (`faster_contiguous`). On a GPU, fp32
    means float32 and not TF32, and convolutions use deterministic algorithms. On a processor, the memory that features
    free is kept. Inputs need no format: the first convolution brings them into its own.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    net = net.to(device)
    keep_freed_memory(device)
    if uses_bf16(precision, device):
        on_processor = device.type == "cpu"
        if on_processor:
            protect(net)
            keep_channels_last(net)
        if not (on_processor and faster_contiguous(net)):
            # The overload without positional dtype is not in torch's stubs.
            layout = torch.channels_last_3d if _has(net, nn.Conv3d) else torch.channels_last
            net = net.to(memory_format=layout)  # type: ignore[call-overload]
    return net


def faster_contiguous(net: nn.Module) -> bool:
    """Whether a network trains faster on a processor in bf16 if its features are contiguous (docs/performance.md).

    So do networks with group norm, whose gradients are slow in channels last where features are large, but not those
    that classify images.
    """
    classifies = isinstance(getattr(net, "head", None), nn.Linear)
    return _has(net, nn.GroupNorm) and not classifies


def _has(net: nn.Module, kind: type[nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in net.modules())


def use_threads(threads: Threads, *, workers: int | None = None) -> int:
    """Set and return the number of torch's CPU threads. Results depend on it, since sums are split among threads.

    ``auto`` is this process's share of the cores; ``workers`` as in `fedshift.tasks.machine.own_cores`.
    """
    number = own_cores(workers) if threads == "auto" else threads
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)
    return number


def precise(x: torch.Tensor) -> torch.Tensor:
    """Convert reduced precision to float32; keep float64."""
    return x if x.dtype == torch.float64 else x.float()


# --- memory -------------------------------------------------------------------------------------------

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""glibc's numbers, as `mallopt` takes them."""
LARGE = 32 * 2**20
"""Bytes from which a block is mapped by itself and goes back when it is freed (glibc takes no larger limit): features
are below, whole volumes above."""
KEPT = 256 * 2**20
"""Bytes at the end of the heap that are kept."""


def keep_freed_memory(device: torch.device) -> None:
    """From now on, in this process, keep the memory of freed features for the next pass on a processor.

    By itself glibc returns it after each layer, and every page of it is zeroed when the next layer takes it. Numbers do
    not depend on it.
    """
    if device.type != "cpu":
        return
    with suppress(AttributeError, OSError, TypeError):  # another C library
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, LARGE)
        library.mallopt(M_TRIM_THRESHOLD, KEPT)


def release_freed_memory(device: torch.device) -> None:
    """Give the memory of freed features back once, for blocks of other sizes, such as evaluation's.

    The next pass takes it anew, which costs about a tenth of a step.
    """
    if device.type != "cpu":
        return
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
