"""FLARE's simulator, with clients that keep their names and workers that are there at once.

NVFlare 2.9 puts the name of the client that it starts into one dictionary for all of its threads. Two threads that
start their workers at the same moment may so send both the same name: one site is then run twice, another never. Here
each thread finds the name that it has put in itself. Workers are forked (`fedshift.flare.zygote`), and what FLARE looks
for once a second is looked for more often. All else is FLARE's own.

``python -m fedshift.flare.simulator JOB_FOLDER [--measure]`` imports what the run needs, prints `READY` and, if it is
asked to, what `fedshift.training.footprint` has found; then it waits for a line with the simulator's arguments and
environment, `Start`, or for the end of its input.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nvflare.private.fed.app.simulator import simulator_runner

from fedshift.flare.export import read_job_folder
from fedshift.flare.start import MEASURE, READY, Start
from fedshift.flare.zygote import Forks, Zygote, apart

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


def _main() -> int:
    # What the server and the workers import, but for what their tasks ask for.
    import fedshift.flare.executor
    import fedshift.flare.workflow  # noqa: F401
    from fedshift.training.footprint import measure
    from fedshift.training.precision import use_threads

    # Elsewhere a process that has loaded libraries is not safe to fork.
    forks = sys.platform == "linux"
    found = None

    def measured() -> dict[str, Any]:
        use_threads(1)
        return asdict(measure(read_job_folder(Path(sys.argv[1]))))

    if MEASURE in sys.argv:
        found = apart(measured) if forks else measured()
    sys.stdout.write(f"{READY}{json.dumps(found)}\n")
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        return 0
    start: Start = json.loads(line)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # nobody below waits for words
    sys.argv = [sys.argv[0], *start["argv"]]
    os.environ.update(start["env"])
    return Zygote(_simulator).run() if forks else _simulator(None)


if __name__ == "__main__":
    sys.exit(_main())
