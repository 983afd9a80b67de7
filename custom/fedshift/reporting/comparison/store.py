"""Where cells are kept, each in a folder named by what it computes, so that no two tables run one twice."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from fedshift.reporting.comparison.cells import Work
from fedshift.schema.errors import ConfigError
from fedshift.schema.files import write_text
from fedshift.schema.strict import Strict

WORK, DONE, STATUS, LOCK, LOG, RUN = "cell.json", "done.json", "status.json", "lock", "log.txt", "run"


class Done(Strict):
    """How a finished cell was made."""

    how: Literal["one process", "FLARE's simulator"]
    seconds: float
    """Of all its sittings, if it was interrupted."""
    device: str
    peak_bytes: int
    version: str
    source: str
    finished: str


class Status(Strict):
    """How far a cell is that runs or failed. ``share`` is of the whole; ``seconds`` are of earlier sittings too."""

    share: float = 0.0
    note: str = ""
    seconds: float = 0.0
    failed: str = ""


class BusyError(ConfigError):
    """Another process runs the cell."""


class Store:
    """A folder of cells."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is made when the first cell is run."""
        self.folder = folder

    def place(self, work: Work) -> Path:
        """The folder of a cell."""
        return self.folder / work.key

    def is_done(self, work: Work) -> bool:
        """Whether the cell has ended well."""
        return (self.place(work) / DONE).is_file()

    def prepare(self, work: Work) -> Path:
        """Make a cell's folder, if need be, and say in it what it holds.

        Raises:
            ConfigError: there is something else, or no writing.
        """
        folder = self.place(work)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / WORK).is_file():
                write_text(folder / WORK, work.model_dump_json(by_alias=True, indent=1))
        except OSError as error:
            raise ConfigError(f"{folder} cannot be written ({error.strerror}): name another --workspace") from None
        return folder


def read_work(folder: Path) -> Work:
    """What a cell's folder says that it holds.

    Raises:
        ConfigError: it says nothing, or what does not fit its name.
    """
    work = Work.parse(_json(folder / WORK), where=str(folder / WORK))
    if work.key != folder.name:
        raise ConfigError(f"{folder / WORK} was changed: remove the folder and repeat the command")
    return work


def read_done(folder: Path) -> Done:
    """How the cell was made.

    Raises:
        ConfigError: it has not ended, or the file is damaged.
    """
    return Done.parse(_json(folder / DONE), where=str(folder / DONE))


def read_status(folder: Path) -> Status:
    """How far a cell is; a file that is not there, or from another version, says nothing."""
    try:
        return Status.model_validate_json((folder / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Status()


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): remove its folder and repeat the command") from None


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep a cell to this process. The system lets go of it when the process ends, however it ends.

    Raises:
        BusyError: another process has it.
    """
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BusyError(
                f"{folder} is run by process {_holder(folder) or '(unknown)'}: wait until it ends"
            ) from None
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid()}) + "\n")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def is_held(folder: Path) -> bool:
    """Whether some process runs the cell now. A lock that a dead process left behind holds nothing."""
    try:
        with (folder / LOCK).open("r", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
    except OSError:
        return False
    return False


def _holder(folder: Path) -> str:
    try:
        return str(json.loads((folder / LOCK).read_text(encoding="utf-8"))["pid"])
    except (OSError, ValueError, KeyError):
        return ""


def tidy(folder: Path) -> None:
    """Remove from a finished cell what only going on with it needs."""
    for workspace in [*(folder / RUN).glob("flare"), *(folder / RUN).glob("*/flare")]:
        shutil.rmtree(workspace)
    for run in (folder / RUN).rglob("results.json"):
        for name in ("site_state", "updates"):
            shutil.rmtree(run.parent / name, ignore_errors=True)
        for name in ("server_state.pt", "former_server_state.pt"):
            (run.parent / name).unlink(missing_ok=True)
