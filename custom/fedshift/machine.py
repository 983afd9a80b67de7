"""What this machine has left for a run."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]


def free_memory() -> int:
    """Bytes that this machine, or the container it is in, has left."""
    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # no limit, or another kind of system
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        free = min(free, limit - int((group / "memory.current").read_text(encoding="ascii")))
    return free


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
