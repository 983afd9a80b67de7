"""FLARE's simulator, with clients that keep their names and workers that are there at once.

NVFlare 2.9 puts the name of the client that it starts into one dictionary for all of its threads. Two threads that
start their workers at the same moment may so send both the same name: one site is then run twice, another never. Here
each thread finds the name that it has put in itself. Workers are forked (`fedshift.flare.zygote`), and what FLARE looks
for once a second is looked for more often. All else is FLARE's own: ``python -m fedshift.flare.simulator`` takes the
same arguments as its simulator.
"""

from __future__ import annotations

import runpy
import socket
import sys
import threading
import time
from typing import Any

from nvflare.private.fed.app.simulator import simulator_runner

from fedshift.flare.zygote import Forks, Zygote

NAME = "client_name"
SHORT = 0.05


class OwnNames(dict[str, Any]):
    """FLARE's context for its clients; what is sent has the name that the sending thread has set."""

    def __init__(self, context: dict[str, Any]) -> None:
        """``context`` is shared by all threads."""
        super().__init__(context)
        self._own = threading.local()

    def __setitem__(self, key: str, value: Any) -> None:
        if key == NAME:
            self._own.name = value
        else:
            super().__setitem__(key, value)

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, ({**self, **({NAME: self._own.name} if hasattr(self._own, "name") else {})},)


class ClientRunner(simulator_runner.SimulatorClientRunner):
    """Starts FLARE's workers."""

    def __init__(self, *args: Any) -> None:
        """As FLARE's; the last argument is the context."""
        *others, context = args
        super().__init__(*others, OwnNames(context))


class Clock:
    """Stands where FLARE's simulator expects Python's ``time``."""

    time = staticmethod(time.time)

    @staticmethod
    def sleep(seconds: float) -> None:
        """At most `SHORT`: it sleeps in loops."""
        time.sleep(min(seconds, SHORT))


def _simulator(zygote: socket.socket | None) -> int:
    simulator_runner.SimulatorClientRunner = ClientRunner
    simulator_runner.time = Clock
    if zygote is not None:
        simulator_runner.subprocess = Forks(zygote)
    runpy.run_module("nvflare.private.fed.app.simulator.simulator", run_name="__main__", alter_sys=True)
    return 0


def _prepare() -> None:
    """What workers import, but for what their tasks ask for."""
    import fedshift.flare.executor  # noqa: F401


if __name__ == "__main__":
    # Elsewhere a process that has loaded libraries is not safe to fork.
    sys.exit(Zygote(_simulator, _prepare).run() if sys.platform == "linux" else _simulator(None))
