"""Installed packages that offer networks, methods, losses and tasks: which there are, and the hash of their files.

A hospital may install a package; a job may not bring code. So a job names each package that it needs with version and
hash (`PackageSpec`), and every party compares these with what it has installed. Nothing of a package is imported here.

The hash is the SHA-256 of a text with one line for each file, ``<sha256 of the file>  <its path>``, in the order of the
paths, as ``sha256sum`` writes them. The files are those that the package's list (``RECORD``) names in the folder of
Python packages, without what was compiled here (``__pycache__``); of its ``dist-info`` only ``METADATA`` and
``entry_points.txt``, since the others tell how it was installed. Scripts, which name a machine's Python, are elsewhere
and do not count.
"""

from __future__ import annotations

import csv
import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import all_suffixes
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from pathlib import Path, PurePath, PurePosixPath
from typing import Annotated, Literal

from packaging.utils import canonicalize_name
from pydantic import Field

from fedshift.schema.errors import ConfigError
from fedshift.schema.names import Line
from fedshift.schema.strict import Strict

Kind = Literal["network", "method", "loss", "task"]
"""What a package may offer."""
GROUPS: dict[Kind, str] = {
    "network": "fedshift.networks",
    "method": "fedshift.methods",
    "loss": "fedshift.losses",
    "task": "fedshift.tasks",
}
"""The entry points that name it."""
COUNTED = ("METADATA", "entry_points.txt")
"""Of a ``dist-info`` folder: version and dependencies, and the components."""
CACHE = "__pycache__"

PackageName = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64)]
"""A package as Python's package index writes it: lower case, with ``-``."""


class PackageSpec(Strict):
    """A package that a job needs, or that a policy allows.

    ``version``: of the package. ``sha256``: of its installed files (`fedshift.schema.packages`).
    """

    version: Line
    sha256: str = Field(pattern="^[0-9a-f]{64}$")

    def __str__(self) -> str:
        """``0.1.0 (sha256 0123456789ab…)``."""
        return f"{self.version} (sha256 {self.sha256[:12]}…)"


@dataclass(frozen=True)
class Installed:
    """An installed package."""

    name: str
    distribution: Distribution

    @property
    def version(self) -> str:
        return self.distribution.version

    @property
    def points(self) -> list[tuple[Kind, EntryPoint]]:
        """What it offers, by kind and name."""
        points = self.distribution.entry_points
        return [(kind, point) for kind, group in GROUPS.items() for point in sorted(points.select(group=group))]

    @cached_property
    def _recorded(self) -> dict[str, str]:
        """Path in the folder of Python packages -> hash, as written when it was installed; empty for what has none.

        It is read here, because ``Distribution.files`` leaves missing files out, as of Python 3.12 and wherever the
        package ``importlib_metadata`` was imported.
        """
        text = self.distribution.read_text("RECORD")
        if text is None:
            raise ConfigError(
                "package-unlisted", f"package {self.name} has no list of its files (RECORD): install its wheel with pip"
            )
        return {row[0]: row[1] for row in csv.reader(text.splitlines()) if len(row) == 3}

    @cached_property
    def files(self) -> dict[str, Path]:
        """The files that count: path in the folder of Python packages -> file.

        Raises:
            ConfigError: it has no list of its files, or is installed such that they may change.
        """
        if self._is_editable or any(name.endswith(".pth") for name in self._recorded):
            raise ConfigError(
                "package-editable",
                f"package {self.name} is installed as editable, so that its files change without its version: install "
                "its wheel ('pip install --force-reinstall --no-deps .', without -e)",
            )
        return {
            name: Path(str(self.distribution.locate_file(name)))
            for name, recorded in sorted(self._recorded.items())
            if _counts(name, recorded)
        }

    @cached_property
    def spec(self) -> PackageSpec:
        """Its version, and the hash of its files as they are now.

        Raises:
            ConfigError: as `files`; or a file is missing, or is not as it was installed, or one was added.
        """
        lines = []
        for name, file in self.files.items():
            try:
                with file.open("rb") as content:
                    digest = hashlib.file_digest(content, "sha256")
            except OSError:
                raise self._changed(name, "is missing") from None
            was = self._recorded[name]
            if was.startswith("sha256=") and was != _as_recorded(digest.digest()):
                raise self._changed(name, "is not as it was installed")
            lines.append(f"{digest.hexdigest()}  {name}\n")
        for added in self._added():
            raise self._changed(added.name, "is not among the files that were installed")
        return PackageSpec(version=self.version, sha256=hashlib.sha256("".join(lines).encode()).hexdigest())

    def _changed(self, name: str, how: str) -> ConfigError:
        return ConfigError(
            "package-changed",
            f"package {self.name} {self.version}: its file {name} {how}: install it again, from a wheel that you trust",
        )

    @property
    def _is_editable(self) -> bool:
        try:
            about = json.loads(self.distribution.read_text("direct_url.json") or "{}")
            return bool(about.get("dir_info", {}).get("editable"))
        except (ValueError, AttributeError):
            raise self._changed("direct_url.json", "says nothing that can be read") from None

    def _added(self) -> Iterator[Path]:
        """Modules in the package's folders that its list does not name: one may be imported in place of one it names.

        Folders that several packages share have no ``__init__.py``, and are not looked through.
        """
        known = {file.resolve() for file in self.files.values()}
        folders = {file.parent for file in self.files.values() if file.name == "__init__.py"}
        for folder in sorted(folder for folder in folders if folder.parent not in folders):
            for file in sorted(folder.rglob("*")):
                is_module = file.name.endswith(tuple(all_suffixes())) and not _is_cached(file)
                if is_module and file.resolve() not in known:
                    yield file


def _is_cached(path: PurePath) -> bool:
    return path.suffix == ".pyc" and path.parent.name == CACHE


def _counts(name: str, recorded: str) -> bool:
    """Whether a file counts; what was compiled when it was installed has no recorded hash, what came compiled has one.

    Python runs some compiled files without a look at their source.
    """
    path = PurePosixPath(name)
    parts = path.parts
    if ".." in parts or path.is_absolute() or (_is_cached(path) and not recorded):
        return False
    return not parts[0].endswith(".dist-info") or parts[-1] in COUNTED


def _as_recorded(digest: bytes) -> str:
    """A hash as RECORD writes it."""
    return f"sha256={urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def installed(name: str) -> Installed:
    """The package of that name.

    Raises:
        ConfigError: it is not installed, or twice. The sentence names no folder, as it may leave a site.
    """
    copies = {(str(each.locate_file("")), each.version): each for each in distributions(name=name)}
    if not copies or canonicalize_name(name) != name:
        raise ConfigError("package-missing", f"package {name} is not installed here: install its wheel")
    if len(copies) > 1:
        versions = " and ".join(sorted(each.version for each in copies.values()))
        raise ConfigError(
            "package-twice", f"package {name} is installed twice here ({versions}): uninstall it until one is left"
        )
    return Installed(name, *copies.values())


def offering() -> list[str]:
    """The names of the installed packages that offer something."""
    return sorted({package for kind in GROUPS for package, _ in offered(kind)})


def offered(kind: Kind) -> list[tuple[str, str]]:
    """Package and name of every component of a kind, whether or not it can be used."""
    points = entry_points(group=GROUPS[kind])
    return sorted((canonicalize_name(point.dist.name), point.name) for point in points if point.dist is not None)
