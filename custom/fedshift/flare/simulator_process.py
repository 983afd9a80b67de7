"""The child process in which FLARE's simulator runs: started, fed, copied to a log file, and ended with its workers.

It also ends if this process is killed: `fedshift.flare.simulator_guard` sees to that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from fedshift.federation.memory import Measured
from fedshift.flare.run_folders import RunFolders
from fedshift.flare.start import MEASURE, READY, Start
from fedshift.schema.errors import FedshiftError

MOST_WAITING = 10_000
"""Lines of the log that are kept while they cannot be written."""


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
        command = [sys.executable, "-m", "fedshift.flare.simulator", str(job_folder.absolute())]
        self._process = subprocess.Popen(
            [*command, MEASURE] if measure else command,
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
        assert self._process.stdout is not None
        for line in self._process.stdout:
            _, found, measured = line.partition(READY)
            if found:
                raw = json.loads(measured)
                return None if raw is None else Measured(**{**raw, "gpus": tuple(raw["gpus"])})
            self._log.waiting.append(line)
        reason = next((line.strip() for line in reversed(self._log.waiting) if line.strip()), "no reason given")
        raise RunFailed("run-failed", f"FLARE's simulator could not be started: {reason}")

    def start(self, job_folder: Path, *, threads: int, environ: Mapping[str, str]) -> None:
        """Start the simulator with so many clients at a time, and copy what it prints to the log."""
        self._log.start()
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "fedshift.flare.simulator_guard", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for the others
        )
        argv = [str(job_folder), "-w", str(self._folders.workspace), "-t", str(threads)]
        start: Start = {"argv": argv, "env": dict(environ)}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin:
            self._process.stdin.write(json.dumps(start) + "\n")

    def end(self) -> None:
        """End the simulator and all its workers, which have sessions of their own."""
        try:
            family = [*psutil.Process(self._process.pid).children(recursive=True), psutil.Process(self._process.pid)]
        except psutil.NoSuchProcess:
            family = []
        for member in family:
            try:
                member.terminate()
            except psutil.NoSuchProcess:
                continue
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
        waiting = self.waiting
        for line in self._process.stdout:
            waiting.append(line)
            self._on_line(line.rstrip("\n"))
            _, found, message = line.partition(" - ERROR - ")
            if found:
                self.last_error = message.strip()
            if (self._folders.workspace / "server").is_dir():
                self._write(waiting)
        self._write(waiting)

    def _write(self, waiting: list[str]) -> None:
        """Write the lines that wait. On a full disk they wait on: who stopped reading would stop the simulator."""
        try:
            self._folders.workspace.mkdir(parents=True, exist_ok=True)
            with self._folders.log.open("a", encoding="utf-8") as file:
                file.write("".join(waiting))
        except OSError:
            del waiting[:-MOST_WAITING]
        else:
            waiting.clear()
