"""Task files (``apps/*.yaml``): where they are, and the numbered sites that they may name."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

import fedshift
from fedshift.schema.errors import ConfigError
from fedshift.schema.strict import Strict

MOST_SITES = 100_000


def apps_dir() -> Path:
    """Folder of the task files: inside an installed wheel, else next to ``custom`` in a checkout."""
    package = Path(fedshift.__file__).resolve().parent
    for folder in (package / "apps", package.parents[1] / "apps"):
        if folder.is_dir():
            return folder
    raise ConfigError("installation", "the folder 'apps' with the task files is missing: install fedshift again")


def tasks() -> list[str]:
    return sorted(path.stem for path in apps_dir().glob("*.yaml"))


class Numbered(Strict):
    """Numbered sites ``site_000``, ``site_001``, …, which a task file may give in place of a list of names."""

    prefix: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=100)
    count: int = Field(ge=1, le=MOST_SITES)

    @property
    def names(self) -> list[str]:
        """All names, zero-padded to at least three digits so that they sort."""
        digits = max(3, len(str(self.count)))
        return [f"{self.prefix}{number:0{digits}d}" for number in range(self.count)]
