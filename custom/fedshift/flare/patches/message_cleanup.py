"""One thread forgets received messages.

NVFlare 2.9: starts a ``threading.Timer`` for every message it has received, a thread that only waits for a minute to
remove the message from a table.
Cost: threads and their memory in proportion to the messages of the last minute; in a run of many short rounds
hundreds.
Instead: one thread removes all messages, each when its minute is over.
Fixed in NVFlare when: ``RxTask._schedule_remove_task`` starts no thread.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from fedshift.flare.patches.patch import Patch, find

TASK = "nvflare.fuel.f3.streaming.byte_receiver:RxTask"
PATCH = Patch(
    name="message_cleanup",
    without="every process keeps a thread for each message of the last minute",
    replaces={f"{TASK}._schedule_remove_task": "e97f258da5dd", f"{TASK}._remove_task": "919366ce8203"},
)


def apply() -> None:
    """Replace ``RxTask._schedule_remove_task``."""
    find(TASK)._schedule_remove_task = _schedule


class Scheduler:
    """Runs functions at their time, all of them in one thread."""

    def __init__(self) -> None:
        """The thread starts with the first function."""
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, function: Callable[[], None]) -> Scheduler:
        """Call ``function`` in so many seconds. What is returned has a `cancel`, as a ``threading.Timer`` has."""
        with self._changed:
            heapq.heappush(self._waiting, (time.monotonic() + seconds, next(self._number), function))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fedshift cleanup", daemon=True)
                self._thread.start()
            self._changed.notify()
        return self

    def cancel(self) -> None:
        """Does nothing: removing a message a second time has no effect."""

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting or self._waiting[0][0] > time.monotonic():
                    self._changed.wait(self._waiting[0][0] - time.monotonic() if self._waiting else None)
                _, _, function = heapq.heappop(self._waiting)
            function()


_SCHEDULER = Scheduler()


def _schedule(message: Any, ttl: float | None = None) -> None:
    with message.stop_lock:
        if message.cleanup_timer is None:
            seconds = message.completed_task_ttl if ttl is None else ttl
            message.cleanup_timer = _SCHEDULER.after(seconds, message._remove_task)
