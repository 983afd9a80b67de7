"""Run one cell in its own process, which ends with its parent.

Command: ``python -m fedshift_bench.work FOLDER``.
"""

from __future__ import annotations

import datetime
import logging
import os
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedshift.schema.errors import DataError, FedshiftError
from fedshift.schema.files import write_text
from fedshift.schema.job import JobSpec
from fedshift_bench.store import (
    DONE_FILE,
    RUN_FOLDER,
    STATUS_FILE,
    BusyError,
    Done,
    Status,
    lock_cell,
    read_status,
    read_work,
    remove_resume_files,
)

EXIT_FAILED, EXIT_BUSY = 2, 3
"""Exit codes."""

JobRunner = Callable[[JobSpec, Mapping[str, Path], Path, Callable[[float], None]], None]
"""Runs a job: takes the job, each site's data folder, the run's folder, and a callback for the completed fraction."""


def run_cell(folder: Path, run_federation: JobRunner | None = None) -> None:
    """Run or resume the cell in ``folder``; do nothing if it has finished.

    Args:
        folder: the cell's folder, made by `Store.prepare`.
        run_federation: runs a federation; by default in this process. Centralised references and cross-site
            evaluations always run in this process.

    Raises:
        BusyError: another process is running the cell.
        FedshiftError: the run failed; the reason is also in the cell's status.
    """
    with lock_cell(folder):
        if (folder / DONE_FILE).is_file():
            return
        own, status = own_version(), _StatusWriter(folder, earlier_seconds=read_status(folder).seconds)
        try:
            in_simulator = _run(folder, run_federation, status)
        except FedshiftError as error:
            status.fail(str(error))
            raise
        done = Done(
            how="FLARE's simulator" if in_simulator else "one process",
            seconds=round(status.seconds, 3),
            device=_device(),
            peak_bytes=_peak(),
            **own,
            finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )
        write_text(folder / DONE_FILE, done.model_dump_json(indent=1))
        remove_resume_files(folder)
        (folder / STATUS_FILE).unlink(missing_ok=True)


class _StatusWriter:
    """Writes the cell's progress, at most twice per second."""

    def __init__(self, folder: Path, *, earlier_seconds: float) -> None:
        self._path, self._earlier_seconds = folder / STATUS_FILE, earlier_seconds
        self._start = self._last_written = time.monotonic()
        self._share = 0.0

    @property
    def seconds(self) -> float:
        return self._earlier_seconds + time.monotonic() - self._start

    def share(self, share: float, note: str = "") -> None:
        now = time.monotonic()
        if now - self._last_written > 0.5 or share <= 0:
            self._last_written, self._share = now, share
            write_text(self._path, Status(share=share, note=note, seconds=self.seconds).model_dump_json())

    def fail(self, reason: str) -> None:
        write_text(self._path, Status(share=self._share, seconds=self.seconds, failed=reason).model_dump_json())


def _run(folder: Path, run_federation: JobRunner | None, status: _StatusWriter) -> bool:
    """Run or resume a cell.

    Returns:
        Whether ``run_federation`` was used.

    Raises:
        FedshiftError: the run failed, or the data have changed.
    """
    from fedshift.data.local_sites import find_sites
    from fedshift.federation import protocols
    from fedshift.methods import method_set
    from fedshift.schema.manifest import manifest_sha256
    from fedshift.tasks.device import own_device

    work = read_work(folder)
    first = next(iter(work.jobs.values()))
    data = find_sites(first)
    for site, path in data.items():
        if manifest_sha256(path) != work.data.get(site):
            raise DataError(f"{path} has changed since the command started: repeat the command")
    device, run, total = own_device(), folder / RUN_FOLDER, len(work.jobs)
    pooled = method_set.pooled_reference(first.methods) is not None
    run_job = _pooled_runner(device) if pooled else run_federation or _federation_runner(device)
    status.share(0.0)
    if work.kind == "cross_site":
        # Sites' own models are in memory until the end of the run, so an interrupted run starts again.
        shutil.rmtree(run, ignore_errors=True)
        protocols.cross_site(first, data, run, device=device, on_progress=_report_share(status.share))
    elif work.kind == "leave_one_out":
        n_started = 0

        def on_site(site: str, has_ended: bool) -> None:
            nonlocal n_started
            n_started += 1

        def run_site_job(job: JobSpec, job_folder: Path) -> None:
            run_job(job, data, job_folder, lambda share: status.share((n_started - 1 + share) / total))

        protocols.leave_one_out(work.jobs, run, name=work.name, run=run_site_job, on_site=on_site)
    else:
        protocols.claim(run, first)
        run_job(first, data, run, status.share)
    return work.kind != "cross_site" and not pooled and run_federation is not None


def _federation_runner(device: str) -> JobRunner:
    """Runs federations in this process."""

    def run(job: JobSpec, data: Mapping[str, Path], folder: Path, on_share: Callable[[float], None]) -> None:
        from fedshift.federation.in_process import run_in_process

        run_in_process(job, data, folder, device=device, resume=True, on_progress=_report_share(on_share))

    return run


def _pooled_runner(device: str) -> JobRunner:
    """Runs centralised references in this process."""

    def run(job: JobSpec, data: Mapping[str, Path], folder: Path, on_share: Callable[[float], None]) -> None:
        from fedshift.federation.in_process import run_pooled

        run_pooled(job, data, folder, device=device, resume=True, on_progress=_report_share(on_share))

    return run


def _report_share(on_share: Callable[[float], None]) -> Callable[..., None]:
    """A callback that converts a coordinator's progress to a fraction; statistics and evaluation count half a round."""

    def report(coordinator: object) -> None:
        from fedshift.federation.server.coordinator import Coordinator

        assert isinstance(coordinator, Coordinator)
        in_step = len(coordinator.answered) / max(len(coordinator.invited), 1)
        done = max(coordinator.round - 1 + in_step, 0.0) + (0.5 if coordinator.round else 0.5 * in_step)
        on_share(min(done / (coordinator.rounds + 1), 1.0))

    return report


def _device() -> str:
    from fedshift.tasks.device import own_device

    return own_device()


def own_version() -> dict[str, str]:
    """The running fedshift's version and source hash."""
    from fedshift.schema.identity import own_identity

    own = own_identity()
    return {"version": own.version, "source": own.source}


def _peak() -> int:
    """Peak resident memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _end_with_parent() -> None:
    """End this process when its parent ends, which closes this process's standard input."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os._exit(EXIT_FAILED)  # safe at any time: files are written atomically, and the run can be resumed

    threading.Thread(target=wait, daemon=True).start()


def main() -> int:
    """Run the cell named on the command line.

    Returns:
        The exit code: 0 if the cell is done, otherwise `EXIT_FAILED` or `EXIT_BUSY`.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    _end_with_parent()
    try:
        run_cell(Path(sys.argv[1]))
    except BusyError:
        return EXIT_BUSY
    except FedshiftError as error:
        logging.getLogger("fedshift").error("%s", error)
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
