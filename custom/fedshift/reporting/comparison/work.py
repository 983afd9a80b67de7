"""Runs one cell in a process of its own that ends with its parent.

Command: ``python -m fedshift.reporting.comparison.work FOLDER``.
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

from fedshift.reporting.comparison.store import (
    DONE,
    RUN,
    STATUS,
    BusyError,
    Done,
    Status,
    held,
    read_status,
    read_work,
    tidy,
)
from fedshift.schema.errors import DataError, FedshiftError
from fedshift.schema.files import write_text
from fedshift.schema.job import JobSpec

FAILED, BUSY = 2, 3
"""Exit codes."""

Starter = Callable[[JobSpec, Mapping[str, Path], Path, Callable[[float], None]], None]
"""Runs one job with each site's data in a folder, and tells what share of it is done."""


def perform(folder: Path, start: Starter | None = None) -> None:
    """Run the cell in ``folder``, or go on with it; nothing is done if it has ended.

    Args:
        folder: a cell's, as `Store.prepare` made it.
        start: runs a federation; by default in this process. Centralised references always run in this process.

    Raises:
        BusyError: another process runs it.
        FedshiftError: the run failed; its status says why.
    """
    with held(folder):
        if (folder / DONE).is_file():
            return
        earlier, own = read_status(folder).seconds, identity()
        watch = _Watch(folder, earlier)
        try:
            used = _run(folder, start, watch)
        except FedshiftError as error:
            watch.fail(str(error))
            raise
        done = Done(
            how="FLARE's simulator" if used else "one process",
            seconds=round(watch.seconds, 3),
            device=_device(),
            peak_bytes=_peak(),
            **own,
            finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )
        write_text(folder / DONE, done.model_dump_json(indent=1))
        tidy(folder)
        (folder / STATUS).unlink(missing_ok=True)


class _Watch:
    """Notes how far the cell is, at most twice a second."""

    def __init__(self, folder: Path, earlier: float) -> None:
        self._path, self._earlier = folder / STATUS, earlier
        self._began = self._noted = time.monotonic()
        self._share = 0.0

    @property
    def seconds(self) -> float:
        return self._earlier + time.monotonic() - self._began

    def share(self, share: float, note: str = "") -> None:
        now = time.monotonic()
        if now - self._noted > 0.5 or share <= 0:
            self._noted, self._share = now, share
            write_text(self._path, Status(share=share, note=note, seconds=self.seconds).model_dump_json())

    def fail(self, reason: str) -> None:
        write_text(self._path, Status(share=self._share, seconds=self.seconds, failed=reason).model_dump_json())


def _run(folder: Path, start: Starter | None, watch: _Watch) -> bool:
    """Whether ``start`` has run it."""
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
            raise DataError(f"{path} has changed since the command began: repeat it")
    device, run, total = own_device(), folder / RUN, len(work.jobs)
    pooled = method_set.pooled_reference(first.methods) is not None
    begin = _pooled(device) if pooled else start or _federation(device)
    watch.share(0.0)
    if work.kind == "cross_site":
        # Models are only there while the last round is: an interrupted one begins anew.
        shutil.rmtree(run, ignore_errors=True)
        protocols.cross_site(first, data, run, device=device, on_progress=_tell(watch.share))
    elif work.kind == "leave_one_out":
        ended = 0

        def on_site(site: str, has_ended: bool) -> None:
            nonlocal ended
            ended += 1

        def one(job: JobSpec, place: Path) -> None:
            begin(job, data, place, lambda share: watch.share((ended - 1 + share) / total))

        protocols.leave_one_out(work.jobs, run, name=work.name, run=one, on_site=on_site)
    else:
        protocols.claim(run, first)
        begin(first, data, run, watch.share)
    return work.kind != "cross_site" and not pooled and start is not None


def _federation(device: str) -> Starter:
    def start(job: JobSpec, data: Mapping[str, Path], folder: Path, tell: Callable[[float], None]) -> None:
        from fedshift.federation.in_process import run_in_process

        run_in_process(job, data, folder, device=device, resume=True, on_progress=_tell(tell))

    return start


def _pooled(device: str) -> Starter:
    def start(job: JobSpec, data: Mapping[str, Path], folder: Path, tell: Callable[[float], None]) -> None:
        from fedshift.federation.in_process import run_pooled

        run_pooled(job, data, folder, device=device, resume=True, on_progress=_tell(tell))

    return start


def _tell(tell: Callable[[float], None]) -> Callable[..., None]:
    """A coordinator's progress as a share; statistics and evaluation are half a round each."""

    def told(coordinator: object) -> None:
        from fedshift.federation.server.coordinator import Coordinator

        assert isinstance(coordinator, Coordinator)
        inside = len(coordinator.answered) / max(len(coordinator.invited), 1)
        done = max(coordinator.round - 1 + inside, 0.0) + (0.5 if coordinator.round else 0.5 * inside)
        tell(min(done / (coordinator.rounds + 1), 1.0))

    return told


def _device() -> str:
    from fedshift.tasks.device import own_device

    return own_device()


def identity() -> dict[str, str]:
    """Version and source of the fedshift that runs."""
    from fedshift.schema.identity import own_identity

    own = own_identity()
    return {"version": own.version, "source": own.source}


def _peak() -> int:
    """The most memory that this process has had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _end_with_parent() -> None:
    """The parent holds the other end of the standard input, and closes it by ending, however it ends."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os._exit(FAILED)  # files are written whole or not at all, and the run goes on from the last round

    threading.Thread(target=wait, daemon=True).start()


def main() -> int:
    """Run the cell that the command line names; 0 if it is done, else `FAILED` or `BUSY`."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    _end_with_parent()
    try:
        perform(Path(sys.argv[1]))
    except BusyError:
        return BUSY
    except FedshiftError as error:
        logging.getLogger("fedshift").error("%s", error)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
