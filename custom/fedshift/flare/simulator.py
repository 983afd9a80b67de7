"""FLARE's simulator as a child process of ``fedshift run``: the parent's end, the child's end, and a guard.

- ``python -m fedshift.flare.simulator run JOB_FOLDER [--measure]`` imports what the run needs. It then prints `READY`,
  with ``--measure`` followed by what `fedshift.federation.footprint` has measured, and waits for a line of JSON on
  standard input: the simulator's arguments, and additions to its environment. If the input ends instead, so does the
  process.
- ``python -m fedshift.flare.simulator guard PID`` waits until its standard input ends, whose other end the system
  closes with the process that has started it, however that has ended. Then it ends process PID, the simulator's, with
  all that descend from it. A thread of the simulator cannot do that: what forks workers keeps to one thread
  (`flare_armour.patches.fork_server`).
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]

from fedshift.schema.errors import FedshiftError

if TYPE_CHECKING:
    from fedshift.federation.memory import Measured
    from fedshift.flare.workspaces import RunFolders

PROGRAM = (sys.executable, "-m", "fedshift.flare.simulator")
READY = "fedshift is ready: "
"""Starts the line that the process prints when everything is imported; the measured memory follows as JSON."""
MEASURE = "--measure"
MOST_WAITING = 10_000
"""Lines of the log that are kept while they cannot be written."""


# --- the parent's end -----------------------------------------------------------------------------------


class RunFailed(FedshiftError):
    """The run ended without its result; the message is the reason, in one sentence."""


class SimulatorProcess:
    """Imports everything at once, waits for `start`, and runs the simulator. `end` it whatever happens."""

    def __init__(
        self,
        job_folder: Path,
        folders: RunFolders,
        *,
        measure: bool = False,
        on_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._process = subprocess.Popen(
            [*PROGRAM, "run", str(job_folder.absolute()), *([MEASURE] if measure else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            # FLARE's server handles messages in many threads; glibc would keep a heap with freed models for each.
            env={"MALLOC_ARENA_MAX": "2", **os.environ},
        )
        self._guard: subprocess.Popen[bytes] | None = None
        self._folders, self._log = folders, LogFile(self._process, folders, on_line)

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.poll()

    @property
    def last_error(self) -> str:
        """The message of the last error in the log; empty without one."""
        return self._log.last_error

    def ready(self) -> Measured | None:
        """Wait until the simulator can start; what the process has measured, if it was asked to and could.

        Raises:
            RunFailed: the process ended.
        """
        from fedshift.federation.memory import Measured

        assert self._process.stdout is not None
        for line in self._process.stdout:
            _, is_ready, measured = line.partition(READY)
            if is_ready:
                raw = json.loads(measured)
                return None if raw is None else Measured(**{**raw, "gpus": tuple(raw["gpus"])})
            self._log.waiting.append(line)
        reason = next((line.strip() for line in reversed(self._log.waiting) if line.strip()), "no reason given")
        raise RunFailed("run-failed", f"FLARE's simulator could not be started: {reason}")

    def start(self, job_folder: Path, *, threads: int, environ: Mapping[str, str]) -> None:
        """Start the simulator with so many clients at a time, and copy what it prints to the log."""
        self._log.start()
        self._guard = subprocess.Popen(
            [*PROGRAM, "guard", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for the others
        )
        argv = [str(job_folder), "-w", str(self._folders.workspace), "-t", str(threads)]
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin:
            self._process.stdin.write(json.dumps({"argv": argv, "env": dict(environ)}) + "\n")

    def end(self) -> None:
        """End the simulator and all its workers, which have sessions of their own."""
        try:
            family = [*psutil.Process(self._process.pid).children(recursive=True), psutil.Process(self._process.pid)]
        except psutil.NoSuchProcess:
            family = []
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.terminate()
        for member in psutil.wait_procs(family, timeout=5)[1]:
            member.kill()
        self._process.wait()
        if self._log.is_alive():
            self._log.join(timeout=10)
        if self._guard is not None:
            with self._guard as guard:
                guard.kill()


class LogFile(threading.Thread):
    """Copies what the simulator prints to the log, once the simulator has emptied the workspace."""

    def __init__(self, process: subprocess.Popen[str], folders: RunFolders, on_line: Callable[[str], None]) -> None:
        super().__init__(daemon=True)
        self._process, self._folders, self._on_line = process, folders, on_line
        self.last_error = ""
        self.waiting: list[str] = []

    def run(self) -> None:
        """Read until the last worker has closed its end of the pipe."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.waiting.append(line)
            self._on_line(line.rstrip("\n"))
            _, is_error, message = line.partition(" - ERROR - ")
            if is_error:
                self.last_error = message.strip()
            if (self._folders.workspace / "server").is_dir():
                self._write()
        self._write()

    def _write(self) -> None:
        """Write the lines that wait. On a full disk they wait on: who stopped reading would stop the simulator."""
        try:
            self._folders.workspace.mkdir(parents=True, exist_ok=True)
            with self._folders.log.open("a", encoding="utf-8") as file:
                file.write("".join(self.waiting))
        except OSError:
            del self.waiting[:-MOST_WAITING]
        else:
            self.waiting.clear()


# --- the child's end ------------------------------------------------------------------------------------


def _run(folder: Path, *, measured: bool) -> int:
    # Import what server and workers need, before anything is forked.
    import fedshift.flare.executor
    import fedshift.flare.workflow  # noqa: F401
    from fedshift.federation.footprint import measure
    from fedshift.flare.export import read_job_folder
    from fedshift.schema.components import admit
    from fedshift.tasks.libraries import libraries
    from fedshift.tasks.precision import use_threads
    from flare_armour.patches import simulator
    from flare_armour.patches.fork_server import CAN_FORK, run_in_child, serve_child

    with suppress(FedshiftError):  # a survey, or a job with which the server's workflow will end at once
        for name in libraries(read_job_folder(folder).task):
            importlib.import_module(name)

    def footprint() -> dict[str, Any]:
        use_threads(1)
        job = read_job_folder(folder)
        admit(job.packages, where=str(folder))
        return asdict(measure(job, several=True))

    def simulate(fork_server: socket.socket | None) -> int:
        simulator.use(fork_server)
        runpy.run_module("nvflare.private.fed.app.simulator.simulator", run_name="__main__", alter_sys=True)
        return 0

    memory = None
    if measured:
        memory = run_in_child(footprint) if CAN_FORK else footprint()
    sys.stdout.write(f"{READY}{json.dumps(memory)}\n")
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        return 0
    start = json.loads(line)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the simulator must not read from the terminal
    sys.argv = [sys.argv[0], *start["argv"]]
    os.environ.update(start["env"])
    return serve_child(simulate) if CAN_FORK and simulator.WORKERS.fits() else simulate(None)


def _guard(pid: int) -> int:
    try:
        simulator = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return 0
    while os.read(0, 1024):
        pass
    with suppress(psutil.NoSuchProcess):  # psutil knows a process from a later one with its number
        simulator.suspend()  # it forks no more
        for process in (*simulator.children(recursive=True), simulator):
            with suppress(psutil.NoSuchProcess):
                process.kill()  # safe at any time: files are written atomically, and the run can be resumed
    return 0


if __name__ == "__main__":
    role, argument = sys.argv[1:3]
    sys.exit(_guard(int(argument)) if role == "guard" else _run(Path(argument), measured=MEASURE in sys.argv))
