"""Run FLARE's simulator as a child process, watch it through ``progress.json``, and make sure that it ends."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedshift.data.locate import find_sites
from fedshift.data.splits import about_counts
from fedshift.federation.memory import choose_workers, needs_in_simulator
from fedshift.federation.run_lock import lock_run
from fedshift.flare.export import hosts, share_out
from fedshift.flare.simulator import RunFailed, SimulatorProcess
from fedshift.flare.workspaces import VARIABLE, RunFolders, discard_aside, find_former, put_aside
from fedshift.reporting import trackers
from fedshift.reporting.progress import Progress, mark_stopped, read_progress
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest
from fedshift.tasks.machine import WORKERS, cores

log = logging.getLogger("fedshift")

INTERVAL = 0.2
"""Seconds between two looks at ``progress.json``."""
END_AFTER_FAILURE = 90.0
"""Seconds for the simulator to end after the run has failed: every site may be busy with a batch."""
END_AFTER_SUCCESS = 0.5
"""The same after the run has finished. All files are written by then, and FLARE would sleep for seven seconds."""
END_TRACKED = 10.0 + trackers.END
"""The same if a tracker gets the curves: it may be slow, and then FLARE sleeps."""
FORWARD = 1 / 3
"""Cost of scoring an image relative to training on it."""


def simulate(
    job: JobSpec,
    job_folder: Path,
    workspace: Path,
    *,
    parallel: int | None = None,
    resume: bool = False,
    force: bool = False,
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
        force: remove an earlier run in ``workspace`` also if it was made in one process.
        ignore_memory: run the job whether or not it fits into memory.
        on_look: called several times a second with the latest progress.
        on_line: called with every line that the simulator and its workers print.
        on_note: called with a sentence if memory is scarce or limits how many sites work at a time.

    Raises:
        ConfigError: another run is using ``workspace``; or it holds something other than a run, or one in one process
            without ``force``; ``parallel`` does not fit, or kinds of data mix.
        DataError: a site has no data.
        TooLittleMemory: the run would not fit into memory; an earlier run has not been removed.
        RunFailed: the run ended without a model.
    """
    clients, count = len(hosts(job)), sites_at_a_time(job, parallel)
    data = find_sites(job)
    folders = RunFolders(workspace.absolute())
    with lock_run(folders.workspace), tempfile.TemporaryDirectory() as scratch:
        former = find_former(folders.workspace, in_process=False, force=force)
        on_look(None)
        process = SimulatorProcess(job_folder, folders, measure=not ignore_memory, on_line=on_line)
        try:
            measured = process.ready()
            if measured is not None:
                needs = needs_in_simulator(job, data, measured)
                count, note = choose_workers(needs, wanted=count, asked=parallel is not None)
                if note:
                    on_note(note)
            environ = {WORKERS: str(count)}
            if resume:
                environ[VARIABLE] = str(put_aside(folders))
            else:
                discard_aside(folders.workspace)
            former.remove()
            folder = job_folder.absolute()
            if count < clients:
                # With fewer threads than clients FLARE starts another process for every task.
                folder = Path(scratch) / folder.name
                share_out(job, job_folder, folder, shares=balanced(work_of(job, data), count))
            process.start(folder, threads=count, environ=environ)
            tracked = job.federation.tracking != "tensorboard"
            finished = _watch(process, folders, on_look, after_success=END_TRACKED if tracked else END_AFTER_SUCCESS)
        except KeyboardInterrupt:
            process.end()
            mark_stopped(folders.server)
            raise
        finally:
            process.end()
        if finished:
            discard_aside(folders.workspace)
            return folders
    progress = read_progress(folders.server)
    if progress is not None and progress.reason:
        raise RunFailed("run-failed", progress.reason)
    raise RunFailed(
        "run-failed",
        f"FLARE's simulator ended with exit code {process.returncode}: {process.last_error or 'no reason given'}",
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
        raise ConfigError("invalid-value", f"--parallel {parallel} does not fit: the job has {clients} {what}")
    return parallel


def balanced(work: Mapping[str, float], count: int) -> tuple[tuple[str, ...], ...]:
    """Divide the sites among ``count`` hosts with about equal work: largest first, each to the host with the least."""
    shares: list[list[str]] = [[] for _ in range(count)]
    for site in sorted(work, key=lambda site: -work[site]):
        min(shares, key=lambda share: (sum(work[other] for other in share), len(share))).append(site)
    order = list(work)
    return tuple(tuple(sorted(share, key=order.index)) for share in shares)


def work_of(job: JobSpec, data: Mapping[str, Path]) -> dict[str, float]:
    """Each site's approximate work in a round, in training images. ``data``: site → its folder."""
    schedule, work = job.task.schedule, {}
    for site in job.task.everyone:
        counts = about_counts(read_manifest(data[site]), job.task.data)
        steps = schedule.local_steps
        trained = schedule.local_epochs * counts["train"] if steps is None else steps * schedule.batch_size
        work[site] = FORWARD * counts["val"] + (0 if site in job.task.held_out else trained)
    return work


def _watch(
    process: SimulatorProcess,
    folders: RunFolders,
    on_look: Callable[[Progress | None], None],
    *,
    after_success: float,
) -> bool:
    """Watch the run until the simulator has ended or may be ended; whether the run has finished."""
    ended: float | None = None
    while process.returncode is None:
        progress = read_progress(folders.server)
        on_look(progress)
        if progress is not None and progress.state != "running":
            ended = ended or time.monotonic()
            finished = progress.state == "finished"
            if time.monotonic() - ended > (after_success if finished else END_AFTER_FAILURE):
                return finished
        time.sleep(INTERVAL)
    progress = read_progress(folders.server)
    on_look(progress)
    return progress is not None and progress.state == "finished" and process.returncode == 0
