"""The store of cells: each has a folder named by the hash of what it computes, so that tables share it."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from fedshift.federation.run_lock import owner_of, take
from fedshift.schema.errors import ConfigError
from fedshift.schema.files import write_text
from fedshift.schema.strict import Strict
from fedshift_bench.cells import WorkItem

WORK_FILE, DONE_FILE, STATUS_FILE = "cell.json", "done.json", "status.json"
LOCK_FILE, LOG_FILE, RUN_FOLDER = "lock", "log.txt", "run"


class CellOutcome(Strict):
    """How a finished cell was made; ``seconds`` include those before interruptions."""

    how: Literal["one process", "FLARE's simulator"]
    seconds: float
    device: str
    peak_bytes: int
    version: str
    source: str
    finished: str


class Status(Strict):
    """A running or failed cell: the completed fraction, and seconds with those before interruptions."""

    share: float = 0.0
    note: str = ""
    seconds: float = 0.0
    failed: str = ""


class BusyError(ConfigError):
    """Another process is running the cell."""


class Store:
    """The folder that contains the cells' folders; it is created when the first cell is run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def folder_of(self, work: WorkItem) -> Path:
        """The folder of a cell."""
        return self.folder / work.key

    def is_done(self, work: WorkItem) -> bool:
        """Whether the cell has finished successfully."""
        return (self.folder_of(work) / DONE_FILE).is_file()

    def prepare(self, work: WorkItem) -> Path:
        """Create a cell's folder and its ``cell.json`` if they do not exist."""
        folder = self.folder_of(work)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / WORK_FILE).is_file():
                write_text(folder / WORK_FILE, work.model_dump_json(by_alias=True, indent=1))
        except OSError as error:
            what = f"{folder} cannot be written ({error.strerror})"
            raise ConfigError("file-write", f"{what}: name another --workspace") from None
        return folder

    def forget(self, work: WorkItem) -> None:
        """Remove a cell's run and results, so that it runs again from its start."""
        folder = self.folder_of(work)
        if folder.is_dir():
            with lock_cell(folder):
                (folder / DONE_FILE).unlink(missing_ok=True)
                (folder / STATUS_FILE).unlink(missing_ok=True)
                shutil.rmtree(folder / RUN_FOLDER, ignore_errors=True)


def read_work(folder: Path) -> WorkItem:
    """Read a cell's ``cell.json``."""
    path = folder / WORK_FILE
    work = WorkItem.parse(_json(path), where=str(path))
    if work.key != folder.name:
        raise ConfigError("cell-changed", f"{path} was changed: remove the folder and repeat the command")
    return work


def read_outcome(folder: Path) -> CellOutcome:
    """Read how a finished cell was run."""
    return CellOutcome.parse(_json(folder / DONE_FILE), where=str(folder / DONE_FILE))


def read_status(folder: Path) -> Status:
    """Read a cell's progress; a missing file or one of another version counts as no progress."""
    try:
        return Status.model_validate_json((folder / STATUS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Status()


def reset_share(folder: Path) -> None:
    """Set the completed fraction of a cell that is about to start to 0: how much a run can resume, the run reports."""
    if (folder / STATUS_FILE).is_file():
        write_text(folder / STATUS_FILE, Status(seconds=read_status(folder).seconds).model_dump_json())


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        what = f"{path} cannot be read ({error})"
        raise ConfigError("file-read", f"{what}: remove its folder and repeat the command") from None


@contextmanager
def lock_cell(folder: Path) -> Iterator[None]:
    """Lock a cell for this process. The operating system releases the lock when the process ends for any reason."""
    path = folder / LOCK_FILE
    try:
        file = take(path)
    except BlockingIOError:
        owner = owner_of(path) or "(unknown)"
        raise BusyError("cell-busy", f"{folder} is being run by process {owner}: wait until it ends") from None
    with file:
        try:
            yield
        finally:
            file.truncate(0)


def is_locked(folder: Path) -> bool:
    """Whether a process is running the cell now; the lock file of a dead process does not count."""
    try:
        with (folder / LOCK_FILE).open("r", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
    except OSError:
        return False
    return False


def remove_resume_files(folder: Path) -> None:
    """Remove the files of a finished cell that are needed only to resume it."""
    for workspace in [*(folder / RUN_FOLDER).glob("flare"), *(folder / RUN_FOLDER).glob("*/flare")]:
        shutil.rmtree(workspace)
    for run in (folder / RUN_FOLDER).rglob("results.json"):
        for name in ("site_state", "updates"):
            shutil.rmtree(run.parent / name, ignore_errors=True)
        for name in ("server_state.pt", "former_server_state.pt"):
            (run.parent / name).unlink(missing_ok=True)
