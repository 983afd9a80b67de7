"""Version and source hash of the running fedshift. Server and sites must run the same one; others are refused."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import fedshift


@dataclass(frozen=True)
class Identity:
    """Package version and a hash of all its source files."""

    version: str
    source: str

    def __str__(self) -> str:
        return f"{self.version} (source {self.source})"


@cache
def own_identity() -> Identity:
    """Identity of the package imported by this process."""
    return Identity(fedshift.__version__, source_hash(Path(fedshift.__file__).parent))


def source_hash(package: Path) -> str:
    """First 12 hex digits of a SHA-256 over names and contents of all Python files below ``package``."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
