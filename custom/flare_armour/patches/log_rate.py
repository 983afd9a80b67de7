"""What a party sends does not fill the log.

NVFlare 2.9: what is logged of messages that cannot be taken has no limit.
Cost: one site fills the disk of the server with log files, and hides in them what else has happened.
Instead: each line of NVFlare's code that a message can reach logs `MOST` times in `PERIOD` seconds; how often it was
left out is told afterwards.
Fixed in NVFlare when: its log has a limit for each place.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from flare_armour.patches.patch import Patch

MOST = 100
"""Entries of one line of code in `PERIOD`."""
PERIOD = 60.0
"""Seconds."""
F3 = "nvflare.fuel.f3"
LOGGERS = (
    f"{F3}.sfm.conn_manager",
    f"{F3}.cellnet.core_cell.CoreCell",
    f"{F3}.cellnet.cell.Adapter",
    f"{F3}.cellnet.cell.Cell",
    f"{F3}.streaming.byte_receiver",
    f"{F3}.streaming.byte_streamer",
    f"{F3}.streaming.blob_streamer",
    f"{F3}.streaming.stream_types",
)
"""Of the modules that look at what comes in."""
PATCH = Patch(
    name="log_rate",
    without="one site can fill the disk with the server's log",
    calls={"nvflare.fuel.utils.log_utils:get_obj_logger": "obj"},
)


@dataclass
class _Place:
    began: float
    entries: int = 0


class LogRate(logging.Filter):
    """Leaves out entries of a line of code that has logged too often."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` gives seconds."""
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._places: dict[tuple[str, int], _Place] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log it; the first of a new period says how many were left out in the one before."""
        with self._lock:
            now = self._clock()
            place = self._places.setdefault((record.pathname, record.lineno), _Place(now))
            left_out = 0
            if now - place.began >= PERIOD:
                left_out = max(place.entries - MOST, 0)
                place.began, place.entries = now, 0
            place.entries += 1
            if place.entries > MOST:
                return False
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} like this were left out)", ()
        return True


def apply() -> None:
    """Put one filter before all of them."""
    rate = LogRate()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(rate)
