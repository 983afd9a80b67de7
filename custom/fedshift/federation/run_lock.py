"""Lock the folder of a run, so that no two runs write to it at a time.

The lock is on a file beside the folder, because FLARE's simulator empties the folder. The operating system releases it
when the process ends for any reason, so what a killed run leaves blocks nobody.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedshift.schema.errors import ConfigError

log = logging.getLogger("fedshift")


def lock_file(folder: Path) -> Path:
    """The file beside a run's folder that is locked."""
    folder = folder.absolute()
    return folder.with_name(f".{folder.name}.lock")


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder, which need not exist. Where no file can be locked, the run goes on without.

    Raises:
        ConfigError: another run is using the folder.
    """
    path = lock_file(folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = take(path)
    except BlockingIOError:
        raise _in_use(folder) from None
    except OSError as error:
        log.debug("%s cannot be locked: %s", path, error)
        yield
        return
    with file:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def require_unlocked(folder: Path) -> None:
    """See that no run is using a folder now; ConfigError if one is."""
    if _is_held(folder):
        raise _in_use(folder)


def was_killed(folder: Path) -> bool:
    """Whether the last run in a folder ended without a word: its lock is left and nobody holds it.

    False where nothing can be said, as on file systems without locks.
    """
    return _is_held(folder) is False


def _is_held(folder: Path) -> bool | None:
    """Whether somebody holds a folder's lock; None if there is none, or if that cannot be said. Nothing is changed."""
    try:
        with lock_file(folder).open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _in_use(folder: Path) -> ConfigError:
    owner = owner_of(lock_file(folder))
    by = f"a run that is going on (process {owner})" if owner else "a run that is going on"
    return ConfigError(
        "run-in-use", f"{folder} is in use by {by}: wait until it has ended, or give another --workspace"
    )


def take(path: Path) -> IO[str]:
    """Lock a file, made if need be, and write this process's number into it. It is locked until it is closed.

    Raises:
        BlockingIOError: another process, or another part of this one, holds the lock.
        OSError: the file cannot be locked.
    """
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_file() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.truncate(0)
                file.write(f"{os.getpid()}\n")
                file.flush()
                return file
        except FileNotFoundError:
            pass  # its former holder has removed it in this moment: it is made again
        except OSError:
            file.close()
            raise
        file.close()


def owner_of(path: Path) -> str:
    """The number of the process that holds a lock; empty if unknown."""
    try:
        owner = path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    return owner if owner.isdigit() else ""
