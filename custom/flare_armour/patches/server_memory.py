"""What was sent or received is freed: memory does not grow with the rounds.

NVFlare 2.9: its tasks, messages and answers refer to each other in cycles, so that a model that was sent stays until
Python's garbage collector next looks at old objects; glibc keeps what is freed between other blocks.
Cost: more memory with every round, at the server and at some sites.
Instead: a site collects cycles every 20 seconds, the server after each round, and glibc returns what is free. Large
models are in no message at all: `flare_armour.pieces` sends them from files.
Fixed in NVFlare when: its server's memory is the same after 3 and after 30 rounds.
"""

from __future__ import annotations

import ctypes
import gc
import time
from contextlib import suppress
from dataclasses import dataclass

from flare_armour.patch import Patch

BLOCK = 2 * 1024 * 1024
"""Bytes from which a block of memory is mapped by itself, and unmapped when it is freed. Mapping takes longer."""
M_MMAP_THRESHOLD = -3
"""glibc's number for that limit, as `mallopt` takes it."""
EVERY = 20.0
"""Seconds between two calls of `release` that do anything: each takes some milliseconds."""
MEMORY_RELEASE = Patch(name="memory_release", kind="bounds memory", without="memory grows with the rounds")


@dataclass
class _Process:
    released: float | None = None
    """When `release` last did something."""


_PROCESS = _Process()


def unmap_large_blocks() -> None:
    """From now on, in this process, return blocks of `BLOCK` bytes or more to the OS as soon as they are freed.

    glibc raises the limit by itself when it sees large blocks.
    """
    if MEMORY_RELEASE.fits():
        with suppress(AttributeError, OSError, TypeError):  # another C library
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, BLOCK)


def release() -> None:
    """Collect garbage and return free pages to the OS, at most every `EVERY` seconds.

    The first call only starts the clock: a process that ends after one task has nothing to return, and looking at all
    objects would copy the pages that a forked process shares.
    """
    if not MEMORY_RELEASE.fits():
        return
    now = time.monotonic()
    if _PROCESS.released is None:
        gc.freeze()  # objects that exist by now stay, and need not be looked at
        _PROCESS.released = now
    if now - _PROCESS.released < EVERY:
        return
    _PROCESS.released = now
    gc.collect()
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def collect_after_round() -> None:
    """Collect what the last round of the server has left."""
    if MEMORY_RELEASE.fits():
        gc.collect()
