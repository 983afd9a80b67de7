"""Freed memory goes back to the system; Python and, where it is the C library, glibc would keep most of it."""

from __future__ import annotations

import ctypes
import gc
import time
from contextlib import suppress

BLOCK = 2 * 1024 * 1024
"""Bytes from which memory is asked of the system, and given back, in a piece of its own, which takes longer."""
M_MMAP_THRESHOLD = -3
"""glibc's number for that."""
EVERY = 20.0
"""Seconds between two calls of `trim` that do something: each takes some milliseconds."""

_trimmed: float | None = None


def give_back_blocks() -> None:
    """From now on, in this process, large blocks are given back as soon as they are freed.

    glibc would keep what has been freed of a model between what has not, once it has seen a few.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, BLOCK)


def trim() -> None:
    """Give back what messages that have been sent hold of each other, and what lies in small pieces.

    Python looks for the former so rarely that a site's process would grow by a megabyte a round for hundreds of rounds.
    The first call only begins the time: a process that ends after one task has nothing to give back, and looking would
    copy what a forked one shares.
    """
    global _trimmed
    now = time.monotonic()
    if _trimmed is None:
        gc.freeze()  # what is there by now stays, and need not be looked at
        _trimmed = now
    if now - _trimmed < EVERY:
        return
    _trimmed = now
    gc.collect()
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
