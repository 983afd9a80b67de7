"""FLARE's simulator: its workers are forks of one process, in any folder, each with the name of its own client.

NVFlare 2.9: starts every worker as a Python process of its own, which imports all that the job needs; with fewer
threads than clients it starts one for every task of every site. It writes the name of the client that it starts into
one dictionary that all its threads share, and a worker's command as one text, paths as they are, which it divides as a
shell would. Its threads sleep for a second at a time.
Cost: seconds at launch, and 400 MB of memory for each worker; with the bare command, which runs one client at a time,
most of a round. Two threads that start their workers at the same moment may send the same name: one site then runs
twice, the other never, and the run waits for it in vain. In a folder with blanks or quotes in its name no worker
understands its options.
Instead: where the simulator's module expects ``subprocess``, `Forks` stands, which has workers forked by
`flare_armour.patches.fork_server`. Each thread sends the name that it has set itself. The text is divided where its
options begin, and what lies between two of them is one value. The threads sleep for at most `SHORT` seconds at a time.
A command of one's own calls `use` with the process that it has prepared; with NVFlare's command the server's workflow,
which runs before any client is started, calls `use_in_bare_simulator`.
Fixed in NVFlare when: workers are forked, or kept between tasks; ``do_one_task`` sends a dictionary of its own, and
passes a list of arguments to ``subprocess.Popen``; ``run_client_thread`` does not sleep before it starts a worker.
"""

from __future__ import annotations

import importlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from flare_armour.patch import Patch, find
from flare_armour.patches.fork_server import CAN_FORK, Forks, ForkServer

CLIENT_NAME = "client_name"
SHORT = 0.05
MODULE = "nvflare.private.fed.app.simulator.simulator_runner"
RUNNER = f"{MODULE}:SimulatorClientRunner"
_OPTION = re.compile(r" (-m|-o|--[a-z_]+) ")


def use(fork_server: socket.socket | None) -> None:
    """Patch the simulator of this process; without a fork server NVFlare starts its workers."""
    for patch in (NAMES, PATHS, SLEEPS, WORKERS):
        patch.install()
    if fork_server is not None and WORKERS.in_place:
        importlib.import_module(MODULE).subprocess = Forks(fork_server)  # type: ignore[attr-defined]


def use_in_bare_simulator(modules: Sequence[str]) -> None:
    """Patch the simulator of this process, unless `use` was called. Workers need these ``modules``."""
    if not WORKERS.in_place:
        use(_start(modules) if CAN_FORK and WORKERS.fits() else None)


def _start(modules: Sequence[str]) -> socket.socket:
    """The socket of a new fork server, which ends with this process."""
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno()), *modules],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    return ours


class ThreadNames(dict[str, Any]):
    """NVFlare's context for workers. Pickled, it has the client's name that the pickling thread has set."""

    def __init__(self, context: dict[str, Any]) -> None:
        """``context`` is shared by all threads."""
        super().__init__(context)
        self._thread = threading.local()

    def __setitem__(self, key: str, value: Any) -> None:
        if key == CLIENT_NAME:
            self._thread.name = value
        else:
            super().__setitem__(key, value)

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, ({**self, **({CLIENT_NAME: self._thread.name} if hasattr(self._thread, "name") else {})},)


class Command:
    """Stands where the simulator's module expects Python's ``shlex``."""

    @staticmethod
    def split(command: str, comments: bool = False) -> list[str]:
        """A Python program, then options that each have one value; ``comments`` is NVFlare's, and there are none."""
        return _OPTION.split(command)


class Clock:
    """Stands where the simulator's module expects Python's ``time``."""

    time = staticmethod(time.time)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Sleep for at most `SHORT`: every caller does so in a loop."""
        time.sleep(min(seconds, SHORT))


DO_ONE_TASK = {f"{RUNNER}.do_one_task": "b087997b1053"}
NAMES = Patch(
    name="simulator_names",
    kind="correct",
    without="now and then the simulator runs one site twice and another never",
    sources=dict(DO_ONE_TASK),
)
PATHS = Patch(
    name="simulator_paths",
    kind="correct",
    without="the simulator starts no site in a folder with blanks or quotes in its name",
    also=lambda: setattr(find(MODULE), "shlex", Command),
    sources=dict(DO_ONE_TASK),
)
SLEEPS = Patch(
    name="simulator_sleeps",
    kind="speed",
    without="the simulator takes a second longer to start a worker",
    also=lambda: setattr(find(MODULE), "time", Clock),
    sources={f"{RUNNER}.run_client_thread": "543328f3de8e", f"{RUNNER}._create_connection": "ed32258220ad"},
)
WORKERS = Patch(
    name="simulator_workers",
    kind="speed",
    without="every worker imports all that a job needs by itself",
    sources={**DO_ONE_TASK, f"{RUNNER}._cleanup_process": "69000ee690b5"},
)


@NAMES.replaces(f"{RUNNER}.__init__", "0964157c0e4a")
def _name_workers(original: Callable[..., None], self: Any, *args: Any) -> None:
    *others, context = args
    original(self, *others, ThreadNames(context))


def _main() -> int:
    for name in sys.argv[2:]:
        importlib.import_module(name)
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        return ForkServer(requests).run()


if __name__ == "__main__":
    sys.exit(_main())
