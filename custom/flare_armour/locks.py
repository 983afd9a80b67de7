"""No two processes run from one kit, and no two servers in one store.

Two would write the same files. NVFlare 2.9 takes a site that registers again for the same site started anew: the last
one to register counts, and the former goes on in vain. A kit that is copied or moved keeps the paths in its
``local/resources.json``, so its server would work in the store of the first one. A lock is the operating system's and
ends with the process, however that ends; the files stay. A copy of a site's kit on another machine is not found here;
the server then says that the site has registered again (`flare_armour.readmission`).
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from flare_armour.patch import ArmourError

log = logging.getLogger("flare_armour")

KIT_PATIENCE, STORE_PATIENCE = 5.0, 3.0
"""Seconds that a process which is just ending is waited for; whoever checks a store has its lock for a moment."""
PAUSE = 0.5
KIT_IN_USE = (
    "{place} is in use by another process ({owner}), which is this site already: a second one would take its place in "
    "running jobs. Stop one of the two"
)
STORE_IN_USE = (
    "{place} is in use by another server (process {owner}): it has been started already, or this kit is a copy of its "
    "kit, whose local/resources.json names the other's store"
)

Wait = Callable[[float], None]


class InUseError(ArmourError):
    """Another process holds the lock."""


def kit_lock(kit: Path) -> Path:
    """The file in a kit that its process locks."""
    return kit / ".running.lock"


def store_lock(jobs: Path) -> Path:
    """The file beside the folder of a server's jobs that it locks."""
    jobs = jobs.absolute()
    return jobs.with_name(f".{jobs.name}.lock")


def hold_kit(kit: Path, *, wait: Wait = time.sleep) -> IO[str] | None:
    """Lock a site's kit until what is returned is closed; None where nothing can be locked.

    Raises:
        InUseError: another process runs from it.
    """
    return _hold(kit_lock(kit), KIT_IN_USE, kit, KIT_PATIENCE, wait)


def hold_store(jobs: Path, *, wait: Wait = time.sleep) -> IO[str] | None:
    """Lock the store that these jobs are in until what is returned is closed; None where nothing can be locked.

    Raises:
        InUseError: another server holds it.
    """
    return _hold(store_lock(jobs), STORE_IN_USE, jobs, STORE_PATIENCE, wait)


def owner_of(path: Path) -> str:
    """The number of the process that holds a lock, or ``unknown``."""
    try:
        owner = path.read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"
    return owner if owner.isdigit() else "unknown"


def _hold(path: Path, in_use: str, place: Path, patience: float, wait: Wait) -> IO[str] | None:
    waited, file = 0.0, None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waited >= patience:
                    file.close()
                    raise InUseError(in_use.format(place=place, owner=owner_of(path))) from None
                wait(PAUSE)
                waited += PAUSE
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
    except OSError as error:
        if file is not None:
            file.close()
        log.warning("%s cannot be locked (%s): see that no other process uses what it guards", path, error)
        return None
    return file
