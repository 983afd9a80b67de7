"""The running fedshift: its version and source hash, which server and sites must share, and what satellites add to it.

The core imports no satellite: entry points name what they add.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fedshift

ARMOUR = "flare_armour"
"""What protects a party from the others: with another one, or none, a party is another program."""


@dataclass(frozen=True)
class Identity:
    """Package version and a hash of all source files."""

    version: str
    source: str

    def __str__(self) -> str:
        return f"{self.version} (source {self.source})"


@cache
def own_identity() -> Identity:
    """Identity of the packages imported by this process."""
    return Identity(fedshift.__version__, source_hash(own_packages()))


def own_packages() -> tuple[Path, ...]:
    """Folders of the core and of its armour, which a job with its code in it carries."""
    armour = find_spec(ARMOUR)  # nothing is imported
    folders = [Path(fedshift.__file__).parent]
    return (*folders, *(Path(place) for place in (armour.submodule_search_locations or () if armour else ())))


def source_hash(packages: Iterable[Path]) -> str:
    """First 12 hex digits of a SHA-256 over names and contents of all Python files of some packages."""
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted(package.rglob("*.py")):
            digest.update(f"{package.name}/{path.relative_to(package).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def parts_of_satellites(group: str) -> list[Any]:
    """What the entry points of a group name, such as ``fedshift.commands``, by the entry points' names."""
    return [point.load() for point in sorted(entry_points(group=group), key=lambda point: point.name)]
