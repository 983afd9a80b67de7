"""Which fedshift a process runs. Server and sites must run the same one, or their numbers mean different things."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import fedshift


@dataclass(frozen=True)
class Identity:
    """Version, and a hash over all source files of the package."""

    version: str
    source: str

    def __str__(self) -> str:
        return f"{self.version} (source {self.source})"


@cache
def own_identity() -> Identity:
    """The identity of the package that this process has imported."""
    return Identity(fedshift.__version__, source_hash(Path(fedshift.__file__).parent))


def source_hash(package: Path) -> str:
    """Twelve hex digits over names and contents of all Python files below ``package``."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
