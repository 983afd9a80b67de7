"""What others cause is logged at once, and then with its number once a minute, so that they cannot fill the log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

MINUTE = 60.0
"""Seconds between two lines about the same."""


@dataclass
class _Count:
    told: float
    since: int = 0


class OnceAMinute:
    """Counts what happens, by a key."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, most: int | None = None) -> None:
        """``clock`` gives seconds. Of more than ``most`` keys nothing is told: others may think of new ones."""
        self._clock, self._most = clock, most
        self._lock = threading.Lock()
        self._counts: dict[Hashable, _Count] = {}

    def due(self, key: Hashable) -> int | None:
        """How often it has happened since it was last told, if it is to be told now; None if not."""
        with self._lock:
            now = self._clock()
            if self._most is not None and key not in self._counts and len(self._counts) >= self._most:
                return None
            count = self._counts.setdefault(key, _Count(now - MINUTE))
            if now - count.told < MINUTE:
                count.since += 1
                return None
            earlier, count.told, count.since = count.since, now, 0
            return earlier
