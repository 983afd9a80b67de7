"""What this machine has left for a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

GROUP = Path("/sys/fs/cgroup")

WORKERS = "FEDSHIFT_WORKERS"
"""In the environment of processes that work side by side on one machine: how many they are."""


def free_memory() -> int:
    """Bytes that this machine, or the container it is in, has left."""
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # no limit, or another kind of system
        limit, used = (int((GROUP / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (GROUP / "memory.stat").read_text(encoding="ascii").splitlines())
        # What was read from files lately counts as used, and is dropped when somebody needs the room.
        free = min(free, limit - used + int(stat.get("inactive_file", 0)))
    return free


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_cores(workers: int | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """This process's share of them: ``workers`` share alike, by default as many as ``$FEDSHIFT_WORKERS`` says."""
    said = environ.get(WORKERS, "")
    beside = workers or (int(said) if said.isdigit() else 1)
    return max(1, cores() // max(beside, 1))
