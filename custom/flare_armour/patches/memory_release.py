"""Collect reference cycles left by sent messages and return free heap pages to the OS.

NVFlare 2.9: its tasks, messages and answers refer to each other in cycles, so that a model that was sent stays in
memory until Python's garbage collector next looks at old objects, which may be hundreds of rounds later.
Cost: memory of servers and sites grows with the rounds.
Instead: a site collects cycles every 20 seconds, and the server's workflow after each round; glibc is asked to return
free pages, and to return large blocks as soon as they are freed. No part of NVFlare is replaced.
Fixed in NVFlare when: the memory of a run without these calls no longer grows (``python -m
benchmarks.performance.patches long``).
"""

from __future__ import annotations

import ctypes
import gc
import time
from contextlib import suppress

from flare_armour.patches.patch import Patch

PATCH = Patch(name="memory_release", without="memory grows with the rounds")

BLOCK = 2 * 1024 * 1024
"""Bytes from which a block of memory is mapped by itself, and unmapped when it is freed. Mapping takes longer."""
M_MMAP_THRESHOLD = -3
"""glibc's number for that limit, as `mallopt` takes it."""
EVERY = 20.0
"""Seconds between two calls of `release` that do anything: each takes some milliseconds."""

_released: float | None = None


def unmap_large_blocks() -> None:
    """From now on, in this process, return blocks of `BLOCK` bytes or more to the OS as soon as they are freed.

    glibc raises the limit by itself when it sees large blocks, and then keeps what is freed between other blocks.
    """
    if PATCH.fits():
        with suppress(AttributeError, OSError, TypeError):  # another C library
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, BLOCK)


def release() -> None:
    """Collect garbage and return free pages to the OS, at most every `EVERY` seconds.

    The first call only starts the clock: a process that ends after one task has nothing to return, and looking at all
    objects would copy the pages that a forked process shares.
    """
    global _released
    if not PATCH.fits():
        return
    now = time.monotonic()
    if _released is None:
        gc.freeze()  # objects that exist by now stay, and need not be looked at
        _released = now
    if now - _released < EVERY:
        return
    _released = now
    gc.collect()
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def collect_after_round() -> None:
    """Collect what the last round of the server has left."""
    if PATCH.fits():
        gc.collect()
