"""Run cells in parallel as child processes, within the limits of cores and memory, and stop them all at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil  # type: ignore[import-untyped]

from fedshift.tasks.machine import WORKERS, cores, free_memory, own_cores
from fedshift_bench.cell_run import EXIT_BUSY
from fedshift_bench.cells import Cell
from fedshift_bench.collect import FinishedCells
from fedshift_bench.estimate import Estimate
from fedshift_bench.store import LOG_FILE, Store, is_locked, read_status, reset_share

POLL_INTERVAL = 0.3
"""Seconds between two checks of the child processes."""
STOP_TIMEOUT = 5.0
"""Seconds that a child process has to stop after SIGTERM, before it is killed."""
USABLE_MEMORY = 0.9
"""Fraction of the free memory that cells may use."""

State = Literal["waiting", "running", "elsewhere", "done", "failed"]


@dataclass
class QueueEntry:
    """A cell to run, with all other cells that compute the same.

    ``share`` is the completed fraction; ``share_before`` that of an interrupted run, None until it has reported.
    """

    cells: list[Cell]
    estimate: Estimate
    state: State = "waiting"
    was_done: bool = False
    share: float = 0.0
    share_before: float | None = None
    reason: str = ""
    process: subprocess.Popen[bytes] | None = None

    @property
    def cell(self) -> Cell:
        """The first of the cells."""
        return self.cells[0]

    @property
    def has_ended(self) -> bool:
        """Whether the cell has finished or failed."""
        return self.state in ("done", "failed")

    @property
    def share_here(self) -> float:
        """The fraction that this command has completed."""
        return 0.0 if self.was_done else self.share - (self.share_before or 0.0)

    @property
    def names(self) -> str:
        """The first cell's name, and in brackets those of the others."""
        others = ", ".join(cell.name for cell in self.cells[1:])
        return f"{self.cell.name} (and {others})" if others else self.cell.name

    def end(self, *, failed: str = "") -> None:
        """Note that the cell is done, or why it failed."""
        self.state, self.reason = ("failed", failed) if failed else ("done", "")
        self.share = self.share if failed else 1.0


@dataclass
class GridProgress:
    """Progress of a `compare` command; ``start`` is in seconds of ``clock``."""

    entries: Sequence[QueueEntry]
    start: float
    max_parallel: int
    clock: Callable[[], float] = field(default=time.monotonic)

    def count(self, *states: State) -> int:
        """Number of cells in these states, duplicates included."""
        return sum(len(entry.cells) for entry in self.entries if entry.state in states)

    @property
    def rounds(self) -> tuple[int, int]:
        """Number of finished rounds, and of all rounds."""
        n_done = total = 0
        for entry in self.entries:
            rounds = sum(job.task.schedule.rounds for job in entry.cell.plan.jobs.values())
            total += rounds
            n_done += int((1.0 if entry.has_ended else entry.share) * rounds)
        return n_done, total

    @property
    def share(self) -> float:
        """The completed fraction of the estimated time of all cells."""
        total = sum(entry.estimate.seconds for entry in self.entries)
        spent = sum(entry.estimate.seconds * (1.0 if entry.has_ended else entry.share) for entry in self.entries)
        return spent / total if total else 1.0

    @property
    def seconds_left(self) -> float:
        """Remaining seconds from the estimates, scaled by this command's speed so far."""
        todo = [entry for entry in self.entries if not entry.was_done]
        remaining = [entry.estimate.seconds * (1 - entry.share) for entry in todo if not entry.has_ended]
        total, longest = sum(remaining), max(remaining, default=0.0)
        spent = sum(entry.estimate.seconds * entry.share_here for entry in todo if entry.state in ("done", "running"))
        elapsed = self.clock() - self.start
        # Estimated seconds per elapsed second; before anything is done, cells in parallel count as that many.
        speed = float(max(self.max_parallel, 1))
        if spent > 0.02 * (spent + total) and elapsed > 0:
            speed = spent / elapsed
        return max(total / speed, longest / max(speed, 1.0))


def make_queue(
    cells: Sequence[Cell], store: Store, estimate: Callable[[Cell], Estimate], finished: FinishedCells | None = None
) -> list[QueueEntry]:
    """Make the queue: cells that compute the same share an entry, and cells with missing inputs count as failed."""
    finished = finished or FinishedCells()
    entries: dict[str, QueueEntry] = {}
    for number, cell in enumerate(cells):
        key = cell.work.key if cell.work else f"cannot run {number}"
        if key in entries:
            entries[key].cells.append(cell)
            continue
        entry = entries[key] = QueueEntry([cell], estimate(cell))
        if finished.find(cell) is not None or (cell.work is not None and store.is_done(cell.work)):
            entry.end()
            entry.was_done = True
        elif cell.work is None:
            entry.end(failed=f"missing {'; '.join(cell.missing_inputs)}")
    return list(entries.values())


def run(
    entries: Sequence[QueueEntry],
    store: Store,
    *,
    max_parallel: int,
    on_poll: Callable[[GridProgress], None],
    on_end: Callable[[QueueEntry], None],
    memory: Callable[[], int] | None = None,
) -> None:
    """Run the cells that have not ended, the longest first: one, or more if the free bytes (``memory``) allow.

    An interrupt stops all child processes. ``on_poll`` is called a few times per second.
    """
    free = memory or free_memory
    progress = GridProgress(entries, time.monotonic(), max_parallel)
    waiting = sorted((entry for entry in entries if not entry.has_ended), key=lambda entry: -entry.estimate.seconds)
    running: list[QueueEntry] = []
    try:
        while waiting or running:
            for entry in list(running):
                if poll_child(entry, store):
                    running.remove(entry)
                    if entry.state == "elsewhere":
                        waiting.append(entry)
                    else:
                        on_end(entry)
            for entry in list(waiting):
                if _check_other_process(entry, store):
                    waiting.remove(entry)
                    on_end(entry)
                elif len(running) < max_parallel and entry.state == "waiting" and _fits(entry, running, free):
                    waiting.remove(entry)
                    start_child(entry, store, max_parallel)
                    running.append(entry)
            on_poll(progress)
            if waiting or running:
                time.sleep(POLL_INTERVAL)
    finally:
        _terminate([entry.process for entry in running if entry.process is not None])


def start_child(entry: QueueEntry, store: Store, max_parallel: int) -> None:
    """Start a cell's process."""
    assert entry.cell.work is not None
    folder = store.prepare(entry.cell.work)
    reset_share(folder)
    threads_setting = entry.cell.plan.job.task.schedule.threads
    threads = str(own_cores(max_parallel) if threads_setting == "auto" else threads_setting)
    with (folder / LOG_FILE).open("ab") as log:
        entry.process = subprocess.Popen(
            [sys.executable, "-m", "fedshift_bench.cell_run", str(folder.absolute())],
            stdin=subprocess.PIPE,  # the child ends when this is closed, however this process ends
            stdout=log,
            stderr=subprocess.STDOUT,
            # Results depend on the number of threads, and parallel cells must not use each other's cores.
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, WORKERS: str(max_parallel)},
            start_new_session=True,
        )
    entry.state = "running"


def poll_child(entry: QueueEntry, store: Store) -> bool:
    """Update an entry from its child process, and return whether that has ended."""
    assert entry.process is not None and entry.cell.work is not None
    folder = store.folder_of(entry.cell.work)
    code = entry.process.poll()
    status = read_status(folder)
    if code is None:
        # A child that has written its result removes its status, and takes some seconds to end.
        entry.share = 1.0 if store.is_done(entry.cell.work) else status.share
        if entry.share_before is None and status.share > 0:
            entry.share_before = status.share
        return False
    if entry.process.stdin is not None:
        entry.process.stdin.close()
    if store.is_done(entry.cell.work):
        entry.end()
    elif code == EXIT_BUSY:
        entry.state = "elsewhere"
    else:
        entry.end(failed=status.failed or _failure_reason(code, folder))
    return True


def _failure_reason(code: int, folder: Path) -> str:
    log = folder / LOG_FILE
    if code == -signal.SIGKILL:
        return f"was killed, perhaps because memory ran out: run fewer cells in parallel with --jobs (log: {log})"
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    last_line = next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")
    return f"ended with exit code {code}: {last_line} (log: {log})"


def _check_other_process(entry: QueueEntry, store: Store) -> bool:
    """Whether a cell that another process may be running is done; if that ended without a result, it waits again."""
    assert entry.cell.work is not None
    if store.is_done(entry.cell.work):
        entry.end()
        return True
    folder = store.folder_of(entry.cell.work)
    entry.state = "elsewhere" if is_locked(folder) else "waiting"
    if entry.state == "elsewhere":
        entry.share = read_status(folder).share
    return False


def _fits(entry: QueueEntry, running: Sequence[QueueEntry], free: Callable[[], int]) -> bool:
    """Whether memory suffices for one more cell if all running cells grow to their estimates."""
    if not running:
        return True
    growing = sum(max(other.estimate.peak_bytes - resident_bytes(other), 0) for other in running)
    return entry.estimate.peak_bytes + growing < USABLE_MEMORY * free()


def resident_bytes(entry: QueueEntry) -> int:
    """Resident memory of the child process in bytes; 0 if unknown."""
    with suppress(psutil.Error):
        if entry.process is not None:
            return int(psutil.Process(entry.process.pid).memory_info().rss)
    return 0


def default_parallel(entries: Sequence[QueueEntry], *, device: str) -> int:
    """Default number of parallel cells: as many as their threads fit the cores (``auto`` shares them), on a GPU one."""
    if device != "cpu":
        return 1
    threads = [entry.cell.plan.job.task.schedule.threads for entry in entries]
    return max(1, cores() // max((number for number in threads if number != "auto"), default=1))


def total_seconds(entries: Sequence[QueueEntry], max_parallel: int) -> tuple[float, float]:
    """The range of the total time of all entries in seconds."""

    def total(seconds: list[float]) -> float:
        return max(sum(seconds) / max(max_parallel, 1), max(seconds, default=0.0))

    ranges = [entry.estimate.range for entry in entries]
    return total([low for low, _ in ranges]), total([high for _, high in ranges])


def _terminate(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT
    for process in processes:
        try:
            process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
