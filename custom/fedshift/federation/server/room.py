"""What happens when the server's disk is full: the run waits until there is room, and says so."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fedshift.schema.errors import AFTER_AN_END, DiskFull

log = logging.getLogger("fedshift")

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers of a full disk and of a used-up quota."""
INTERVAL = 2.0
"""Seconds between two attempts to write."""

T = TypeVar("T")


def is_full(error: OSError) -> bool:
    """Whether a file could not be written because there is no room."""
    return error.errno in FULL


class Room:
    """Writes files of a run, and waits for room if there is none."""

    def __init__(
        self,
        folder: Path,
        *,
        patience: float,
        stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Write nothing yet.

        Args:
            folder: the run's folder, for messages.
            patience: seconds to wait for room before the run ends.
            stopped: whether the run was stopped from outside, so that waiting makes no sense.
            clock: returns seconds.
            sleep: waits so many seconds.
        """
        self._folder, self._patience, self._stopped = folder, patience, stopped
        self._clock, self._sleep = clock, sleep
        self.waited = 0.0
        """Seconds that the run has waited so far."""

    def write(self, what: str, write: Callable[[], T]) -> T:
        """Call ``write`` until there is room for what it writes; it leaves nothing behind when it fails.

        Raises:
            DiskFull: there was no room for too long, or the run was stopped meanwhile.
            OSError: the files cannot be written for another reason.
        """
        since: float | None = None
        while True:
            try:
                written = write()
            except OSError as error:
                if not is_full(error):
                    raise
                if since is None:
                    since = self._clock()
                    log.warning(
                        "the disk of %s is full, so that %s cannot be written: the run waits for up to %.0f s until "
                        "there is room",
                        self._folder,
                        what,
                        self._patience,
                    )
                if self._clock() >= since + self._patience or self._stopped():
                    raise DiskFull(
                        f"the disk of {self._folder} is full, {what} could not be written: make room; {AFTER_AN_END}"
                    ) from None
                self._sleep(INTERVAL)
                continue
            if since is not None:
                self.waited += self._clock() - since
                log.warning("there is room in %s again: the run goes on", self._folder)
            return written
