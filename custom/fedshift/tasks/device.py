"""The device to train on: a GPU if there is one, unless the site's settings say otherwise."""

from __future__ import annotations

import platform
import re
import sys
from functools import cache
from pathlib import Path

import torch

from fedshift.data.locate import read_settings
from fedshift.schema.errors import ConfigError
from fedshift.tasks.machine import cores

MAX_NAME_LENGTH = 64
"""Maximum length of a device name in records."""


def spread(asked: str, number: int, *, gpus: int | None = None) -> str:
    """Device of process ``number`` among several on a machine with so many ``gpus`` (None asks torch).

    With several GPUs ``auto`` deals them out in turn; any other value is returned unchanged.
    """
    if asked != "auto":
        return asked
    if gpus is None:
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"cuda:{number % gpus}" if gpus > 1 else asked


@cache
def processor_model() -> str:
    """The processor's model name, as the system tells it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()


def processor() -> str:
    """The processor's model name and its instructions that results depend on, ``AMD EPYC (AVX512 BF16)``.

    These are AMX, AVX512 BF16, or what PyTorch's own kernels use, such as AVX2.
    """
    has = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    known = {"amx_bf16": "AMX", "avx512_bf16": "AVX512 BF16"}
    instructions = next((known[name] for name in known if has.get(name)), torch.backends.cpu.get_cpu_capability())
    return f"{processor_model()} ({instructions})"


def device_name(device: torch.device) -> str:
    """The model name of a GPU or processor for records, as the last bits of results depend on it."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = processor() if device.type == "cpu" else device.type
    return recordable(name) or device.type


def recordable(name: str) -> str:
    """A name as records take it: plain text that begins with a letter or a digit."""
    plain = "".join(c if " " <= c <= "~" else " " for c in name)
    return re.sub(r"^\W+", "", plain)[:MAX_NAME_LENGTH].strip()


def choose_device(asked: str = "auto") -> torch.device:
    """Turn ``auto`` or a torch device name into a device; a GPU comes with its number, as PyTorch selects it by that.

    Raises:
        ConfigError: this machine has no such device.
    """
    if asked == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device("cuda:0" if asked == "cuda" else asked)
    except RuntimeError:  # its message lists all of PyTorch's device types, that of the next its backends
        raise _unusable(asked, "PyTorch knows no such device") from None
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        count = torch.cuda.device_count()
        raise _unusable(asked, f"this machine has {count or 'no'} CUDA device{'' if count == 1 else 's'}") from None
    return device


def choose_devices(asked: str, number: int) -> tuple[str, ...]:
    """Names of so many devices that train together: GPUs from the one asked for on, or the processor, with its cores.

    Raises:
        ConfigError: this machine does not have so many.
    """
    first = choose_device(asked)
    if number == 1:
        return (str(first),)
    have, what = 1, f"{first.type} device"
    if first.type == "cuda":
        have, what = torch.cuda.device_count() - first.index, f"CUDA device from {first} on"
    elif first.type == "cpu" and sys.platform != "win32":
        have, what = cores(), "processor core"
    if number > have:
        raise ConfigError(
            "device-unusable", f"devices is {number}, and this machine has {have} {what}: set devices to at most {have}"
        )
    return tuple(f"cuda:{first.index + rank}" if first.type == "cuda" else str(first) for rank in range(number))


def _unusable(asked: str, reason: str) -> ConfigError:
    return ConfigError(
        "device-unusable", f"device {asked!r} cannot be used here ({reason}): set it to auto, cpu or cuda"
    )


def own_device() -> str:
    """The device that this process trains on: ``$FEDSHIFT_DEVICE``, else a GPU if there is one."""
    return str(choose_device(read_settings(None).device))


def own_devices() -> int:
    """How many devices a site of this process trains on: ``$FEDSHIFT_DEVICES``, else 1."""
    return read_settings(None).devices
