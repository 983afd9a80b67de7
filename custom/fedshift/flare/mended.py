"""What is changed in FLARE's simulator, in the process that runs it.

NVFlare 2.9 puts the name of the client that it starts into one dictionary for all of its threads. Two threads that
start their workers at the same moment may so send both the same name: one site is then run twice, another never. Here
each thread finds the name that it has put in itself. Workers are forked (`fedshift.flare.zygote`), and what FLARE looks
for once a second is looked for more often. All else is FLARE's own.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from nvflare.private.fed.app.simulator import simulator_runner

from fedshift.flare.zygote import Forks

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


def mend(forks: Forks | None) -> None:
    """Change the simulator of this process; without ``forks`` its workers are started as FLARE does it."""
    simulator_runner.SimulatorClientRunner = ClientRunner
    simulator_runner.time = Clock
    if forks is not None:
        simulator_runner.subprocess = forks


def is_mended() -> bool:
    """Whether the simulator of this process is changed already."""
    return simulator_runner.time is Clock
