"""Run one cell in its own process, which ends with its parent.

Command: ``python -m fedshift_bench.cell_run FOLDER``.
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

from fedshift.schema.components import admit
from fedshift.schema.errors import DataError, FedshiftError
from fedshift.schema.files import write_text
from fedshift.schema.job import JobSpec
from fedshift_bench.store import (
    DONE_FILE,
    RUN_FOLDER,
    STATUS_FILE,
    BusyError,
    CellOutcome,
    Status,
    lock_cell,
    read_status,
    read_work,
    remove_resume_files,
)

EXIT_FAILED, EXIT_BUSY = 2, 3

JobRunner = Callable[[JobSpec, Mapping[str, Path], Path, Callable[[float], None]], None]
"""Runs a job: takes the job, each site's data folder, the run's folder, and a callback for the completed fraction."""


def run_cell(folder: Path, run_federation: JobRunner | None = None) -> None:
    """Run or resume the cell in ``folder`` (`Store.prepare`); do nothing if it has finished.

    ``run_federation`` runs a federation, by default in this process, as centralised references and cross-site
    evaluations always do.

    Raises:
        BusyError: another process is running the cell.
        FedshiftError: the run failed; the reason is also in the cell's status.
    """
    from fedshift.schema.identity import own_identity
    from fedshift.tasks.device import own_device

    with lock_cell(folder):
        if (folder / DONE_FILE).is_file():
            return
        identity, status = own_identity(), _StatusWriter(folder)
        try:
            in_simulator = _run(folder, run_federation, status.share)
        except FedshiftError as error:
            status.fail(str(error))
            raise
        outcome = CellOutcome(
            how="FLARE's simulator" if in_simulator else "one process",
            seconds=round(status.seconds, 3),
            device=own_device(),
            peak_bytes=_peak(),
            version=identity.version,
            source=identity.source,
            finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )
        write_text(folder / DONE_FILE, outcome.model_dump_json(indent=1))
        remove_resume_files(folder)
        (folder / STATUS_FILE).unlink(missing_ok=True)


class _StatusWriter:
    """Writes the cell's progress, at most twice per second."""

    def __init__(self, folder: Path) -> None:
        self._path, self._seconds_before = folder / STATUS_FILE, read_status(folder).seconds
        self._start = self._last_written = time.monotonic()
        self._share = 0.0

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._start

    def share(self, share: float) -> None:
        now = time.monotonic()
        if now - self._last_written > 0.5 or share <= 0:
            self._last_written, self._share = now, share
            write_text(self._path, Status(share=share, seconds=self.seconds).model_dump_json())

    def fail(self, reason: str) -> None:
        write_text(self._path, Status(share=self._share, seconds=self.seconds, failed=reason).model_dump_json())


def _run(folder: Path, run_federation: JobRunner | None, on_share: Callable[[float], None]) -> bool:
    """Run or resume a cell, and return whether ``run_federation`` was used."""
    from fedshift.data.locate import find_sites
    from fedshift.federation import protocols
    from fedshift.methods import method_set
    from fedshift.schema.manifest import manifest_sha256
    from fedshift.tasks.device import own_device

    work = read_work(folder)
    first = next(iter(work.jobs.values()))
    admit(first.packages, where=str(folder))
    data = find_sites(first)
    for site, path in data.items():
        if manifest_sha256(path) != work.data.get(site):
            raise DataError("data-changed", f"{path} has changed since the command started: repeat the command")
    run, total = folder / RUN_FOLDER, len(work.jobs)
    pooled = method_set.pooled_reference(first.methods) is not None
    run_job = _run_here if pooled or run_federation is None else run_federation
    on_share(0.0)
    if work.kind == "cross_site":
        # Sites' own models are in memory until the end of the run, so an interrupted run starts again.
        shutil.rmtree(run, ignore_errors=True)
        protocols.cross_site(first, data, run, device=own_device(), on_progress=_as_share(on_share))
    elif work.kind == "leave_one_out":
        n_started = 0

        def on_site(site: str, has_ended: bool) -> None:
            nonlocal n_started
            n_started += 1

        def run_site_job(job: JobSpec, job_folder: Path) -> None:
            run_job(job, data, job_folder, lambda share: on_share((n_started - 1 + share) / total))

        protocols.leave_one_out(work.jobs, run, name=work.name, run=run_site_job, on_site=on_site)
    else:
        protocols.claim(run, first)
        run_job(first, data, run, on_share)
    return work.kind != "cross_site" and not pooled and run_federation is not None


def _run_here(job: JobSpec, data: Mapping[str, Path], folder: Path, on_share: Callable[[float], None]) -> None:
    from fedshift.federation.in_process import run_in_process, run_pooled
    from fedshift.methods import method_set
    from fedshift.tasks.device import own_device

    run = run_in_process if method_set.pooled_reference(job.methods) is None else run_pooled
    run(job, data, folder, device=own_device(), resume=True, on_progress=_as_share(on_share))


def _as_share(on_share: Callable[[float], None]) -> Callable[..., None]:
    """A callback that converts a coordinator's progress to a fraction; statistics and evaluation count half a round."""

    def report(coordinator: object) -> None:
        from fedshift.federation.server.coordinator import Coordinator

        assert isinstance(coordinator, Coordinator)
        in_step = len(coordinator.answered) / max(len(coordinator.invited), 1)
        n_rounds = max(coordinator.round - 1 + in_step, 0.0) + (0.5 if coordinator.round else 0.5 * in_step)
        on_share(min(n_rounds / (coordinator.rounds + 1), 1.0))

    return report


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
    """Run the cell named on the command line. The exit code is 0 if it is done, else `EXIT_FAILED` or `EXIT_BUSY`."""
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
