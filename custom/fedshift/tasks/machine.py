"""CPU cores and free memory of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

GROUP = Path("/sys/fs/cgroup")

WORKERS = "FEDSHIFT_WORKERS"
"""Environment variable: number of processes that train in parallel on this machine."""


def free_memory(group: Path = GROUP) -> int:
    """Free memory in bytes of this machine, or of the container that it runs in, whose limits are in ``group``."""
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # no memory limit, or not Linux
        limit, used = (int((group / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        # The page cache counts as used but is released when memory is needed.
        free = min(free, limit - used + int(stat.get("inactive_file", 0)))
    return free


def cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processes(workers: int | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """How many processes share this machine's cores: ``workers``, or ``$FEDSHIFT_WORKERS``, or this one alone."""
    text = environ.get(WORKERS, "")
    return max(workers or (int(text) if text.isdigit() else 1), 1)


def own_cores(workers: int | None = None, environ: Mapping[str, str] = os.environ, *, total: int | None = None) -> int:
    """This process's share of the cores, if ``workers`` (default ``$FEDSHIFT_WORKERS``) processes share ``total``."""
    return max(1, (total or cores()) // processes(workers, environ))
