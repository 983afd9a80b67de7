"""A site's request for a task waits at the server until there is one, and one site's requests stop no other's.

NVFlare 2.9: clients ask for a task again and again and sleep in between; the simulator's workers sleep for half a
second after a request that found none. ``ServerRunner._try_to_get_task`` can wait (``timeout``), but nothing passes
the argument. Requests of a client have no limit.
Cost: about a quarter of a second in every round, a load that grows with the sites, and one client can hold up the
others.
Instead: a request waits until a task is opened, or for `HOLD` seconds. Each waiting request occupies a thread of the
server, which has 64: with more clients than `MOST` none waits, and each client asks less often the more there are. Of
one client one request waits, the newest; the one before is told to try again. An open task is given to it `AGAIN`
times, and then once in `PAUSE_AGAIN` seconds.
Fixed in NVFlare when: a setting makes ``_try_to_get_task`` wait, and requests of a client have a limit.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from flare_armour.log_limits import REFUSALS
from flare_armour.patch import Patch

HOLD = 5.0
"""Seconds that a request waits at most. A client waits 300 s for its answer."""
MOST = 48
"""Clients whose requests may wait."""
MANY = 100
"""Requests a second of all clients together, where they do not wait."""
PAUSE = 0.01
"""Seconds between a client's answer and its next request."""
AGAIN = 20
"""Times that a client is given one and the same task at once. An honest one asks again where an answer was lost."""
PAUSE_AGAIN = 5.0
"""Seconds between two further times."""
NONE: tuple[str, str, None] = ("", "", None)
"""NVFlare's answer that there is no task: the client asks again."""
RUNNER = "nvflare.private.fed.server.server_runner:ServerRunner"
PATCH = Patch(
    name="long_poll",
    kind="protects",
    without="one site can hold up the others, and every round takes longer",
    sources={f"{RUNNER}._try_to_get_task": "7ad3096def2e"},
)


@dataclass
class _Client:
    """What one client has asked for."""

    changed: threading.Condition
    turn: int = 0
    """Of its newest request."""
    number: int = -1
    """Number of the task that it was given last."""
    times: int = 0
    latest: float = 0.0


class TaskRequests:
    """The requests for tasks of one job."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, _Client] = {}
        self._number = 0
        self._open = False

    def attach(self, fl_ctx: FLContext, *, clients: int) -> None:
        """Let requests that find no task wait, from now on until `close`."""
        runner: Any = fl_ctx.get_prop(FLContextKey.RUNNER)
        waits = clients <= MOST
        if not waits:
            runner.config.task_request_interval = max(runner.config.task_request_interval, clients / MANY)
        if not PATCH.fits():
            return
        original = runner._try_to_get_task

        def wait_for_task(client: Any, fl_ctx: FLContext, *others: Any, **named: Any) -> Any:
            end = time.monotonic() + HOLD
            asking, turn = self._ask(client.name)
            while not self._had_enough(client.name, asking):
                number = self._number
                task = original(client, fl_ctx, *others, **named)
                if task[1]:  # the task's id
                    self._give(asking, number)
                    return task
                if not waits or not self._wait(asking, turn, number, end):
                    return task
            return NONE

        runner._try_to_get_task = wait_for_task
        if waits:
            runner.config.task_request_interval = PAUSE
            self._open = True

    def notify(self) -> None:
        """A task was opened: look again."""
        with self._lock:
            self._number += 1
            for asking in self._clients.values():
                asking.changed.notify_all()

    def close(self) -> None:
        """There will be no more tasks."""
        self._open = False
        self.notify()

    def _ask(self, name: str) -> tuple[_Client, int]:
        """Note a request, whose number is returned, and send away the one of the same client that waits."""
        with self._lock:
            asking = self._clients.setdefault(name, _Client(threading.Condition(self._lock)))
            asking.turn += 1
            asking.changed.notify_all()
            return asking, asking.turn

    def _had_enough(self, name: str, asking: _Client) -> bool:
        """Whether the client was given the open task too often."""
        with self._lock:
            if asking.number != self._number or asking.times < AGAIN:
                return False
            enough = time.monotonic() - asking.latest < PAUSE_AGAIN
        if enough:
            REFUSALS.add(name, "tasks", f"has asked for one task more than {AGAIN} times: it has to wait")
        return enough

    def _give(self, asking: _Client, number: int) -> None:
        """Note that it is given the task that was opened as the ``number``-th."""
        with self._lock:
            asking.times = asking.times + 1 if asking.number == number else 1
            asking.number, asking.latest = number, time.monotonic()

    def _wait(self, asking: _Client, turn: int, number: int, end: float) -> bool:
        """Wait for `notify`, a newer request or until ``end``; whether it is worth looking for a task again."""
        with self._lock:
            seconds = end - time.monotonic()
            worth = self._open and asking.changed.wait_for(
                lambda: self._number != number or asking.turn != turn, seconds
            )
            return worth and self._open and asking.turn == turn
