"""The sites that the project's admin has disabled, in a file of the server's kit: since when, and by whom.

The server's process between jobs writes it (`flare_armour.guard.disabling`), and it and the processes of jobs read
it, so that all of them know at once.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from flare_armour.patch import ArmourError

log = logging.getLogger("flare_armour")

FILE = "disabled_sites.json"
"""In the server's kit, beside NVFlare's ``disabled_clients.json``, which has the names alone."""


class DamagedFileError(ArmourError):
    """The file cannot be read: a site that was disabled would take part again."""


@dataclass(frozen=True)
class Disabling:
    """Who has disabled a site, and when, as ``2026-11-27 21:30:05 UTC``."""

    by: str
    since: str

    def __str__(self) -> str:
        return f"by {self.by} since {self.since}"


class DisabledSites:
    """The file in the server's kit. Other parties have none, and nobody is disabled until `use` names a kit."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] = ()
        self._sites: Mapping[str, Disabling] = {}

    def use(self, kit: Path | None) -> None:
        """Keep to the file of this kit from now on.

        Raises:
            DamagedFileError: it cannot be read.
        """
        self._path, self._stamp, self._sites = kit and kit / FILE, (), {}
        if self._path is not None and self._path.exists():
            self._sites = _parse(self._path)

    def all(self) -> Mapping[str, Disabling]:
        """Name → who has disabled it and when. Cheap: the file is read when it has changed."""
        if self._path is None:
            return {}
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._stamp, self._sites = (), {}
            return self._sites
        stamp = status.st_mtime_ns, status.st_ino, status.st_size
        if stamp != self._stamp:
            try:
                self._sites = _parse(self._path)
            except DamagedFileError as error:
                log.error("%s; until then it is as it was", error)
            self._stamp = stamp
        return self._sites

    def add(self, names: Iterable[str], *, by: str) -> None:
        """Disable these sites. One that is disabled stays so since then.

        Raises:
            OSError: it cannot be written down, so nothing has changed.
        """
        now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        with self._lock:  # two consoles may do so at once
            self._write({**dict.fromkeys(names, Disabling(by, now)), **self.all()})

    def remove(self, names: Iterable[str]) -> None:
        """Let these sites in again.

        Raises:
            OSError: it cannot be written down, so they stay out.
        """
        out = set(names)
        with self._lock:
            self._write({name: disabling for name, disabling in self.all().items() if name not in out})

    def _write(self, sites: Mapping[str, Disabling]) -> None:
        if self._path is None:
            raise OSError("this party is no server")
        partial = self._path.with_name(f".{FILE}.partial")
        with partial.open("w", encoding="utf-8") as file:
            json.dump({name: asdict(disabling) for name, disabling in sorted(sites.items())}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)
        self.all()


DISABLED = DisabledSites()
"""Those of this process's kit."""


def _parse(path: Path) -> dict[str, Disabling]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): Disabling(str(each["by"]), str(each["since"])) for name, each in content.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedFileError(
            f"{path} cannot be read ({error}), and a site that was disabled would take part again: restore it from a "
            "backup, or delete it and disable the sites anew"
        ) from None
