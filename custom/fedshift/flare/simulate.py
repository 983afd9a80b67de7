"""Run FLARE's simulator as a child process, watch it through ``progress.json``, and make sure that it ends."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from fedshift.data.local_sites import find_sites
from fedshift.federation.memory import Measured, choose_workers, needs_of
from fedshift.flare.export import share_out
from fedshift.flare.hosts import balanced, hosts, work_of
from fedshift.flare.run_folders import RunFolders
from fedshift.flare.simulator_state import VARIABLE, aside_of, discard_aside, put_aside
from fedshift.flare.start import MEASURE, READY, Start
from fedshift.reporting.progress import Progress, mark_stopped, read_progress
from fedshift.schema.errors import ConfigError, FedshiftError
from fedshift.schema.job import JobSpec
from fedshift.tasks.machine import WORKERS, cores

log = logging.getLogger("fedshift")

INTERVAL = 0.2
"""Seconds between two looks at ``progress.json``."""
MOST_WAITING = 10_000
"""Lines of the log that are kept while they cannot be written."""
END_AFTER_FAILURE = 90.0
"""Seconds for the simulator to end after the run has failed: every site may be busy with a batch."""
END_AFTER_SUCCESS = 0.5
"""The same after the run has finished. All files are written by then, and FLARE would sleep for seven seconds."""


class RunFailed(FedshiftError):
    """The run ended without a model; the message is the reason, in one sentence."""


def simulate(
    job: JobSpec,
    job_folder: Path,
    workspace: Path,
    *,
    parallel: int | None = None,
    resume: bool = False,
    ignore_memory: bool = False,
    on_look: Callable[[Progress | None], None] = lambda progress: None,
    on_line: Callable[[str], None] = lambda line: None,
    on_note: Callable[[str], None] = log.warning,
) -> RunFolders:
    """Run a job folder in FLARE's simulator; returns when the run has finished.

    Args:
        job: the job in ``job_folder``.
        job_folder: as `fedshift.flare.export.write_job` made it.
        workspace: the simulator's folder; an earlier run in it is removed, or continued with ``resume``.
        parallel: how many sites train at a time, each in a process that serves its share of them. By default one per
            core, or as many as the job has ``federation.hosts``, or fewer if they would not fit into memory.
        resume: go on after the last round that an interrupted run in ``workspace`` has closed; ``parallel`` may be
            another than it was then.
        ignore_memory: run the job whether or not it fits into memory.
        on_look: called several times a second with the latest progress.
        on_line: called with every line that the simulator and its workers print.
        on_note: called with a sentence if memory is scarce or limits how many sites work at a time.

    Raises:
        ConfigError: ``workspace`` holds something other than a run, ``parallel`` does not fit, or kinds of data mix.
        DataError: a site has no data.
        TooLittleMemory: the run would not fit into memory; an earlier run has not been removed.
        RunFailed: the run ended without a model.
    """
    clients, count = len(hosts(job)), sites_at_a_time(job, parallel)
    data = find_sites(job)
    folders = RunFolders(workspace.absolute())
    others = _others(folders)
    with tempfile.TemporaryDirectory() as scratch:
        on_look(None)
        process = _launch(job_folder, measure=not ignore_memory)
        logger = _LogFile(process, folders, on_line)
        try:
            measured = _ready(process, logger.waiting)
            if measured is not None:
                needs = needs_of(job, data, measured)
                count, note = choose_workers(needs, wanted=count, asked=parallel is not None)
                if note:
                    on_note(note)
            environ = {WORKERS: str(count)}
            if resume:
                environ[VARIABLE] = str(put_aside(folders))
            else:
                discard_aside(folders.workspace)
            for path in others:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            folder = job_folder.absolute()
            if count < clients:
                # With fewer threads than clients FLARE starts another process for every task.
                folder = Path(scratch) / folder.name
                share_out(job, job_folder, folder, shares=balanced(work_of(job, data), count))
            logger.start()
            argv = [str(folder), "-w", str(folders.workspace), "-t", str(count)]
            _start(process, {"argv": argv, "env": environ})
            finished = _watch(process, folders, on_look)
        except KeyboardInterrupt:
            _end(process)
            mark_stopped(folders.server)
            raise
        finally:
            _end(process)
            if logger.is_alive():
                logger.join(timeout=10)
    if finished:
        discard_aside(folders.workspace)
        return folders
    progress = read_progress(folders.server)
    if progress is not None and progress.reason:
        raise RunFailed(progress.reason)
    raise RunFailed(
        f"FLARE's simulator ended with exit code {process.returncode}: {logger.last_error or 'no reason given'}"
    )


def sites_at_a_time(job: JobSpec, parallel: int | None) -> int:
    """How many of a job's sites train at a time, if memory allows; ``parallel`` as in `simulate`.

    Raises:
        ConfigError: ``parallel`` does not fit.
    """
    clients = len(hosts(job))
    if parallel is None:
        each = job.task.schedule.threads
        at_a_time = clients if job.federation.hosts is not None else max(1, cores() // (1 if each == "auto" else each))
        return min(clients, at_a_time)
    if not 1 <= parallel <= clients:
        what = "sites" if job.federation.hosts is None else "hosts"
        raise ConfigError(f"--parallel {parallel} does not fit: the job has {clients} {what}")
    return parallel


def _launch(job_folder: Path, *, measure: bool) -> subprocess.Popen[str]:
    """Start the simulator's process, which imports everything and then waits for `_start`."""
    command = [sys.executable, "-m", "fedshift.flare.simulator", str(job_folder.absolute())]
    return subprocess.Popen(
        [*command, MEASURE] if measure else command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        # FLARE's server handles messages in many threads; glibc would keep a heap with freed models for each of them.
        env={"MALLOC_ARENA_MAX": "2", **os.environ},
    )


def _ready(process: subprocess.Popen[str], waiting: list[str]) -> Measured | None:
    """Wait until the simulator can start; what it has measured, if it could. ``waiting`` collects what it prints.

    Raises:
        RunFailed: the process ended.
    """
    assert process.stdout is not None
    for line in process.stdout:
        _, found, measured = line.partition(READY)
        if found:
            raw = json.loads(measured)
            return None if raw is None else Measured(**{**raw, "gpus": tuple(raw["gpus"])})
        waiting.append(line)
    reason = next((line.strip() for line in reversed(waiting) if line.strip()), "no reason given")
    raise RunFailed(f"FLARE's simulator could not be started: {reason}")


def _start(process: subprocess.Popen[str], start: Start) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(json.dumps(start) + "\n")


def _watch(process: subprocess.Popen[str], folders: RunFolders, on_look: Callable[[Progress | None], None]) -> bool:
    """Watch the run until the simulator has ended or may be ended; whether the run has finished."""
    ended: float | None = None
    while process.poll() is None:
        progress = read_progress(folders.server)
        on_look(progress)
        if progress is not None and progress.state != "running":
            ended = ended or time.monotonic()
            finished = progress.state == "finished"
            if time.monotonic() - ended > (END_AFTER_SUCCESS if finished else END_AFTER_FAILURE):
                return finished
        time.sleep(INTERVAL)
    progress = read_progress(folders.server)
    on_look(progress)
    return progress is not None and progress.state == "finished" and process.returncode == 0


def _end(process: subprocess.Popen[str]) -> None:
    """End the simulator and all its workers, which have sessions of their own."""
    try:
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    except psutil.NoSuchProcess:
        family = []
    for member in family:
        try:
            member.terminate()
        except psutil.NoSuchProcess:
            continue
    for member in psutil.wait_procs(family, timeout=5)[1]:
        member.kill()
    process.wait()


def _others(folders: RunFolders) -> list[Path]:
    """What is in the workspace, which the simulator would delete; an error unless it is a former run."""
    workspace = folders.workspace
    if workspace.exists() and not workspace.is_dir():
        raise ConfigError(f"{workspace} is not a folder: give another -w")
    kept = {"local", "startup"}  # by the simulator, from run to run
    others = [path for path in workspace.glob("*") if path.name not in kept]
    if others and not folders.server.is_dir() and not aside_of(workspace).is_dir():
        raise ConfigError(f"{workspace} holds something other than a run, and would be emptied: give another -w")
    return others


class _LogFile(threading.Thread):
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
