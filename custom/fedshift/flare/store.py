"""Where a server keeps jobs and results, and that no two servers do so in one place.

A kit that is copied or moved keeps the paths in its ``local/resources.json``, so its server would work in the store of
the first one. Each server therefore locks the store that it uses for as long as it runs; the operating system
releases the lock when it ends for any reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from fedshift.federation.run_lock import lock_file, owner_of, require_unlocked, take_when_free
from fedshift.schema.errors import ConfigError

log = logging.getLogger("fedshift")

STORE = "store"
"""Folder in a server's kit; FLARE's default is one folder for the whole machine."""
PATIENCE = 3.0
"""Seconds that a lock is tried for: ``fedshift site check`` has it for a moment, a server that ends a little longer."""


def jobs_folder(kit: Path) -> Path:
    """Where the server of a kit keeps its jobs."""
    return kit / STORE / "jobs"


def snapshots_folder(kit: Path) -> Path:
    """Where the server of a kit keeps FLARE's snapshots."""
    return kit / STORE / "snapshots"


def is_at(place: str | Path, folder: Path) -> bool:
    """Whether a place, as FLARE takes it, is this folder, whatever links lead there."""
    return Path(place).resolve() == folder.resolve()


def hold(jobs: Path, *, wait: Callable[[float], None] = time.sleep) -> IO[str] | None:
    """Lock the store that these jobs are in, until what is returned is closed; None where nothing can be locked.

    Raises:
        ConfigError: another server holds it.
    """
    path = lock_file(jobs)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return take_when_free(path, patience=PATIENCE, wait=wait)
    except BlockingIOError:
        raise ConfigError(
            f"{jobs} is in use by another server (process {owner_of(path) or 'unknown'}): it has been started already, "
            "or this kit is a copy of its kit. For a copy run 'fedshift site init' with --force, and start again"
        ) from None
    except OSError as error:
        log.warning("%s cannot be locked (%s): see that no other server uses this store", path, error)
        return None


def holder(kit: Path) -> str | None:
    """The number of the process, or 'unknown', that runs a server in this kit's own store; None if none is known."""
    jobs = jobs_folder(kit)
    try:
        require_unlocked(jobs)
    except ConfigError:
        return owner_of(lock_file(jobs)) or "unknown"
    return None
