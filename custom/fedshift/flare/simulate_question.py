"""A job with one question in FLARE's simulator, as a child process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedshift.flare.simulator import RunFailed, SimulatorProcess
from fedshift.flare.workspaces import RunFolders

INTERVAL = 0.1
"""Seconds between two looks at whether the record is there."""
MOST_AT_A_TIME = 16
"""Clients at a time. With fewer than there are sites, FLARE starts another process for each task."""
START_AND_END = 120.0
"""Seconds for the simulator to start, and to end after the sites' time is over."""


def simulate_question(
    job: Path,
    folders: RunFolders,
    record: str,
    *,
    sites: int,
    timeout: float,
    log: Path | None = None,
    on_look: Callable[[], None] = lambda: None,
    on_line: Callable[[str], None] = lambda line: None,
) -> None:
    """Ask every site in FLARE's simulator, which is ended as soon as the record is written: FLARE would go on.

    Args:
        job: the job's folder.
        folders: of the run.
        record: the name of the file in the server's folder with which the job ends.
        sites: how many are asked.
        timeout: seconds for them to answer.
        log: what an error names; by default the run's own.
        on_look: called several times a second.
        on_line: called with each line that is printed.

    Raises:
        RunFailed: the simulator ended without a record, or took too long.
    """
    deadline = time.monotonic() + timeout + START_AND_END
    path = folders.server / record
    process = SimulatorProcess(job, folders, on_line=on_line)
    try:
        process.ready()
        process.start(job, threads=min(sites, MOST_AT_A_TIME), environ={})
        while process.returncode is None and not path.is_file() and time.monotonic() < deadline:
            on_look()
            time.sleep(INTERVAL)
    finally:
        process.end()
    on_look()
    if path.is_file():
        return
    reason = "it took too long" if time.monotonic() >= deadline else process.last_error or "no reason given"
    raise RunFailed("run-failed", f"FLARE's simulator ended without a record: {reason} (log: {log or folders.log})")
