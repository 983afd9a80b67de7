"""Runs cells side by side as child processes, as many as cores and memory allow, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil  # type: ignore[import-untyped]

from fedshift.reporting.comparison.cells import Cell
from fedshift.reporting.comparison.estimate import Estimate
from fedshift.reporting.comparison.store import LOG, Store, is_held, read_status
from fedshift.reporting.comparison.work import BUSY
from fedshift.tasks.machine import WORKERS, cores, free_memory, own_cores

LOOK = 0.3
"""Seconds between two looks at the children."""
PATIENCE = 5.0
"""Seconds that a child has to end when it is asked to."""
SPARE = 0.9
"""This part of the free memory may be planned with."""

State = Literal["waiting", "running", "elsewhere", "done", "failed"]


@dataclass
class Job:
    """A cell to run; cells that compute the same are one. ``was_done`` before the command began."""

    cells: list[Cell]
    estimate: Estimate
    state: State = "waiting"
    was_done: bool = False
    share: float = 0.0
    reason: str = ""
    process: subprocess.Popen[bytes] | None = None

    @property
    def cell(self) -> Cell:
        """The first of them."""
        return self.cells[0]

    @property
    def has_ended(self) -> bool:
        """Well or not."""
        return self.state in ("done", "failed")


@dataclass
class Moment:
    """How far a command is."""

    jobs: Sequence[Job]
    began: float
    at_a_time: int
    clock: Callable[[], float] = field(default=time.monotonic)

    def count(self, *states: State) -> int:
        """Cells in these states; cells that compute the same count each."""
        return sum(len(job.cells) for job in self.jobs if job.state in states)

    @property
    def rounds(self) -> tuple[int, int]:
        """Rounds done, and of how many."""
        of = [sum(j.task.schedule.rounds for j in job.cell.plan.jobs.values()) for job in self.jobs]
        shares = [1.0 if job.has_ended else job.share for job in self.jobs]
        return sum(int(share * n) for share, n in zip(shares, of, strict=True)), sum(of)

    @property
    def share(self) -> float:
        """Of the estimated time of all."""
        total = sum(job.estimate.seconds for job in self.jobs)
        done = sum(job.estimate.seconds * (1.0 if job.has_ended else job.share) for job in self.jobs)
        return done / total if total else 1.0

    @property
    def seconds_left(self) -> float:
        """By the estimates, and by how fast this command has been so far."""
        mine = [job for job in self.jobs if not job.was_done]
        ahead = sum(job.estimate.seconds * (1 - job.share) for job in mine if not job.has_ended)
        longest = max((job.estimate.seconds * (1 - job.share) for job in mine if not job.has_ended), default=0.0)
        done = sum(job.estimate.seconds * job.share for job in mine if job.state in ("done", "running"))
        took = self.clock() - self.began
        speed = done / took if done > 0.02 * (done + ahead) and took > 0 else float(max(self.at_a_time, 1))
        return max(ahead / speed, longest / max(speed, 1.0))


def gather(cells: Sequence[Cell], store: Store, estimate: Callable[[Cell], Estimate]) -> list[Job]:
    """Cells as jobs, those that compute the same together; a cell that lacks something has failed already."""
    jobs: dict[str, Job] = {}
    for number, cell in enumerate(cells):
        key = cell.work.key if cell.work else f"lacking {number}"
        if key in jobs:
            jobs[key].cells.append(cell)
            continue
        job = jobs[key] = Job([cell], estimate(cell))
        if cell.work is None:
            job.state, job.reason = "failed", f"lacks {'; '.join(cell.lacking)}"
        elif store.is_done(cell.work):
            job.state, job.share, job.was_done = "done", 1.0, True
    return list(jobs.values())


def run(
    jobs: Sequence[Job],
    store: Store,
    *,
    at_a_time: int,
    on_look: Callable[[Moment], None],
    on_end: Callable[[Job], None],
    memory: Callable[[], int] | None = None,
) -> None:
    """Run what has not ended, the longest first. On an interrupt the children are ended, and it goes up.

    Args:
        jobs: as `gather` made them.
        store: where the cells are.
        at_a_time: cells side by side, if memory allows; one always runs.
        on_look: called a few times a second.
        on_end: called when a job has ended, well or not.
        memory: free bytes; by default this machine's.
    """
    free = memory or free_memory
    moment = Moment(jobs, time.monotonic(), at_a_time)
    waiting = sorted((job for job in jobs if not job.has_ended), key=lambda job: -job.estimate.seconds)
    running: list[Job] = []
    try:
        while waiting or running:
            for job in list(running):
                if _look(job, store):
                    running.remove(job)
                    if job.state == "elsewhere":
                        waiting.append(job)
                    else:
                        on_end(job)
            for job in list(waiting):
                if _done_elsewhere(job, store):
                    waiting.remove(job)
                    on_end(job)
                elif len(running) < at_a_time and job.state == "waiting" and _fits(job, running, free):
                    waiting.remove(job)
                    _start(job, store, at_a_time)
                    running.append(job)
            on_look(moment)
            if waiting or running:
                time.sleep(LOOK)
    finally:
        _end([job.process for job in running if job.process is not None])


def _start(job: Job, store: Store, at_a_time: int) -> None:
    assert job.cell.work is not None
    folder = store.prepare(job.cell.work)
    asked = job.cell.plan.job.task.schedule.threads
    threads = str(own_cores(at_a_time) if asked == "auto" else asked)
    with (folder / LOG).open("ab") as log:
        job.process = subprocess.Popen(
            [sys.executable, "-m", "fedshift.reporting.comparison.work", str(folder.absolute())],
            stdin=subprocess.PIPE,  # it ends when this closes, whatever becomes of this process
            stdout=log,
            stderr=subprocess.STDOUT,
            # Sums depend on the number of threads, and cells side by side would take each other's cores.
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, WORKERS: str(at_a_time)},
            start_new_session=True,
        )
    job.state = "running"


def _look(job: Job, store: Store) -> bool:
    """Whether the child has ended; then the job's state says how."""
    assert job.process is not None and job.cell.work is not None
    folder = store.place(job.cell.work)
    code = job.process.poll()
    status = read_status(folder)
    if code is None:
        job.share = max(job.share, status.share)
        return False
    if job.process.stdin is not None:
        job.process.stdin.close()
    if store.is_done(job.cell.work):
        job.state, job.share = "done", 1.0
    elif code == BUSY:
        job.state = "elsewhere"
    else:
        job.state, job.reason = "failed", status.failed or _why(code, folder)
    return True


def _why(code: int, folder: Path) -> str:
    log = folder / LOG
    if code == -signal.SIGKILL:
        return f"was killed, perhaps for want of memory: run fewer at a time with --jobs (log: {log})"
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    said = next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")
    return f"ended with exit code {code}: {said} (log: {log})"


def _done_elsewhere(job: Job, store: Store) -> bool:
    """Look at a cell that another process may be running; it is this one's again when that has ended."""
    assert job.cell.work is not None
    if store.is_done(job.cell.work):
        job.state, job.share = "done", 1.0
        return True
    folder = store.place(job.cell.work)
    job.state = "elsewhere" if is_held(folder) else "waiting"
    if job.state == "elsewhere":
        job.share = read_status(folder).share
    return False


def _fits(job: Job, running: Sequence[Job], free: Callable[[], int]) -> bool:
    """Whether memory allows one more: what runs may yet grow to its estimate."""
    if not running:
        return True
    growing = sum(max(other.estimate.peak_bytes - _resident(other), 0) for other in running)
    return job.estimate.peak_bytes + growing < SPARE * free()


def _resident(job: Job) -> int:
    with suppress(psutil.Error):
        if job.process is not None:
            return int(psutil.Process(job.process.pid).memory_info().rss)
    return 0


def side_by_side(jobs: Sequence[Job], *, device: str) -> int:
    """How many cells at a time by default: as their threads fit the cores (``auto`` shares them); on a GPU one."""
    if device != "cpu":
        return 1
    threads = [job.cell.plan.job.task.schedule.threads for job in jobs]
    return max(1, cores() // max((number for number in threads if number != "auto"), default=1))


def total_seconds(jobs: Sequence[Job], at_a_time: int) -> tuple[float, float]:
    """The range of what jobs take together."""

    def total(each: list[float]) -> float:
        return max(sum(each) / max(at_a_time, 1), max(each, default=0.0))

    ranges = [job.estimate.range for job in jobs]
    return total([low for low, _ in ranges]), total([high for _, high in ranges])


def by_row(jobs: Sequence[Job]) -> Mapping[str, list[Job]]:
    """Jobs by their cells' first label."""
    rows: dict[str, list[Job]] = {}
    for job in jobs:
        rows.setdefault(next(iter(job.cell.labels.values())), []).append(job)
    return rows


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the children and whatever they started."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    until = time.monotonic() + PATIENCE
    for process in processes:
        try:
            process.wait(max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
