"""A site's request for a task waits at the server until there is one.

NVFlare 2.9: clients ask for a task again and again and sleep in between; the simulator's workers sleep for half a
second after a request that found none. ``ServerRunner._try_to_get_task`` can wait (``timeout``), but nothing passes
the argument.
Cost: about a quarter of a second in every round.
Instead: a request waits until a task is opened, or for `HOLD` seconds. Each waiting request occupies a thread of the
server, which has 64: with more clients than `MOST` none waits, and each client asks less often the more there are.
Fixed in NVFlare when: a setting makes ``_try_to_get_task`` wait.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from fedshift.flare.patches.patch import Patch

HOLD = 5.0
"""Seconds that a request waits at most. A client waits 300 s for its answer."""
MOST = 48
"""Clients whose requests may wait."""
MANY = 100
"""Requests a second of all clients together, where they do not wait."""
PAUSE = 0.01
"""Seconds between a client's answer and its next request."""
RUNNER = "nvflare.private.fed.server.server_runner:ServerRunner"
PATCH = Patch(
    name="long_poll",
    without="sites ask for tasks at intervals, which makes every round longer",
    replaces={f"{RUNNER}._try_to_get_task": "7ad3096def2e"},
)


class LongPoll:
    """The waiting requests of one job."""

    def __init__(self) -> None:
        """Nothing waits before `attach`."""
        self._changed = threading.Condition()
        self._number = 0
        self._open = False

    def attach(self, fl_ctx: FLContext, *, clients: int) -> None:
        """Let requests that find no task wait, from now on until `close`."""
        runner: Any = fl_ctx.get_prop(FLContextKey.RUNNER)
        if clients > MOST:
            runner.config.task_request_interval = max(runner.config.task_request_interval, clients / MANY)
            return
        if not PATCH.fits():
            return
        original = runner._try_to_get_task

        def wait_for_task(client: Any, fl_ctx: FLContext, *others: Any, **named: Any) -> Any:
            end = time.monotonic() + HOLD
            while True:
                number = self._number
                found = original(client, fl_ctx, *others, **named)
                if found[1] or not self._wait(number, end):  # found[1] is the task's id
                    return found

        runner._try_to_get_task = wait_for_task
        runner.config.task_request_interval = PAUSE
        self._open = True

    def notify(self) -> None:
        """A task was opened: look again."""
        with self._changed:
            self._number += 1
            self._changed.notify_all()

    def close(self) -> None:
        """There will be no more tasks."""
        self._open = False
        self.notify()

    def _wait(self, number: int, end: float) -> bool:
        """Wait for `notify` or until ``end``; whether it is worth looking for a task again."""
        with self._changed:
            left = end - time.monotonic()
            return self._open and self._changed.wait_for(lambda: self._number != number, left) and self._open
