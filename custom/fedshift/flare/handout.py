"""Work is handed out the moment it is there.

FLARE's clients ask for work again and again, and sleep in between: after a question that found none, its simulator's
workers sleep half a second. Here a question waits at the server until there is something to do, or `HOLD` seconds; so
a round begins at all sites when it is opened. Each waiting question holds a thread of the server, of which FLARE has
sixty-four: with more clients than `MOST` none waits, and each client asks the less often the more there are.

The method that is wrapped is not public; pyproject.toml holds nvflare to one minor version.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

log = logging.getLogger("fedshift")

HOLD = 5.0
"""Seconds that a question waits at most; a client waits 300 for its answer."""
MOST = 48
"""Clients whose questions may wait."""
MANY = 100
"""Questions a second of all clients together, where they do not wait."""
PAUSE = 0.01
"""Seconds between a client's answer and its next question."""


class Handout:
    """The waiting questions of one job."""

    def __init__(self) -> None:
        """Nothing waits until `attach`."""
        self._changed = threading.Condition()
        self._number = 0
        self._open = False

    def attach(self, fl_ctx: FLContext, *, clients: int) -> None:
        """Let the questions of a job's clients wait when they find no task, from now on until `close`."""
        runner: Any = fl_ctx.get_prop(FLContextKey.RUNNER)
        if clients > MOST:
            runner.config.task_request_interval = max(runner.config.task_request_interval, clients / MANY)
            return
        if not hasattr(runner, "_try_to_get_task"):
            log.warning("this NVFlare hands out tasks in another way: sites ask for them at intervals")
            return
        ask = runner._try_to_get_task

        def patiently(client: Any, fl_ctx: FLContext, *others: Any, **named: Any) -> Any:
            end = time.monotonic() + HOLD
            while True:
                number = self._number
                found = ask(client, fl_ctx, *others, **named)
                if found[1] or not self._wait(number, end):  # a task has an id
                    return found

        runner._try_to_get_task = patiently
        runner.config.task_request_interval = PAUSE
        self._open = True

    def ring(self) -> None:
        """There is a task."""
        with self._changed:
            self._number += 1
            self._changed.notify_all()

    def close(self) -> None:
        """There will be none any more."""
        self._open = False
        self.ring()

    def _wait(self, number: int, end: float) -> bool:
        """Whether something has happened since ``number``; False if it is not worth waiting for any longer."""
        with self._changed:
            left = end - time.monotonic()
            return self._open and self._changed.wait_for(lambda: self._number != number, left) and self._open
