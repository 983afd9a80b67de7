"""How far a transfer is, in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger("flare_armour")

FIRST, EVERY = 10.0, 30.0
"""Seconds before the first line about a file, and between two."""
GAP = 10.0
"""Seconds without a piece after which it is said that it goes on."""
MB = 1_000_000


class TransferLog:
    """Logs how far one file is. A short transfer is not logged."""

    def __init__(self, what: str, size: int, held: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``what``: ``receiving HK's update of round 3``; ``held``: bytes that are there already."""
        self._what, self._size, self._clock = what, size, clock
        self._began = self._last = clock()
        self._start, self._logged = held, self._began + FIRST - EVERY
        if held:
            log.info("%s: it goes on at %s", what, _share(held, size))

    def at(self, held: int) -> bool:
        """Note that so many bytes are there; whether a line was written."""
        now = self._clock()
        gap, self._last = now - self._last, now
        if held >= self._size:
            if now - self._began > FIRST:
                log.info("%s: all of %s MB, in %s", self._what, _mb(self._size), _minutes(now - self._began))
                return True
            return False
        if gap > GAP:
            self._logged = now
            log.info("%s: it goes on at %s, after %.0f s without a piece", self._what, _share(held, self._size), gap)
            return True
        if now - self._logged < EVERY or held <= self._start:
            return False
        self._logged = now
        seconds = (now - self._began) / (held - self._start) * (self._size - held)
        log.info("%s: %s, about %s left", self._what, _share(held, self._size), _minutes(seconds))
        return True


def _share(held: int, size: int) -> str:
    return f"{_mb(held)} of {_mb(size)} MB"


def _mb(size: int) -> int:
    return round(size / MB)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
