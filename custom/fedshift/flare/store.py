"""Where a server keeps jobs and results. It locks the store that it uses (`flare_armour.locks`)."""

from __future__ import annotations

from pathlib import Path

from fedshift.federation.run_lock import require_unlocked
from fedshift.schema.errors import ConfigError
from flare_armour.locks import owner_of, store_lock

STORE = "store"
"""Folder in a server's kit; FLARE's default is one folder for the whole machine."""


def jobs_folder(kit: Path) -> Path:
    """Where the server of a kit keeps its jobs."""
    return kit / STORE / "jobs"


def snapshots_folder(kit: Path) -> Path:
    """Where the server of a kit keeps FLARE's snapshots."""
    return kit / STORE / "snapshots"


def is_at(place: str | Path, folder: Path) -> bool:
    """Whether a place, as FLARE takes it, is this folder, whatever links lead there."""
    return Path(place).resolve() == folder.resolve()


def holder(kit: Path) -> str | None:
    """The number of the process, or 'unknown', that runs a server in this kit's own store; None if none is known."""
    jobs = jobs_folder(kit)
    try:
        require_unlocked(jobs)
    except ConfigError:
        return owner_of(store_lock(jobs))
    return None
