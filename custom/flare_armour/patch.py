"""A replacement for a part of NVFlare, and whether NVFlare still looks as it expects."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal

log = logging.getLogger("flare_armour")

SKIP = "FLARE_ARMOUR_WITHOUT"
"""Environment variable: names of patches to leave out, separated by commas. For benchmarks, and to find faults."""

IN_PLACE: set[str] = set()
"""Names of protections and patches that have been put in place in this process."""

_fits: dict[str, bool] = {}

Kind = Literal["protects", "bounds memory", "correct", "speed"]
"""What a patch is for: another party could do harm without it; memory would grow with sites, messages or rounds;
NVFlare does something wrong; or it only takes longer."""


class ArmourError(Exception):
    """A party, or a job's process, must not go on; the message says why in one sentence."""


class NotAsExpectedError(ArmourError):
    """NVFlare is another than a protection was written for, so the process must not start."""


@dataclass(frozen=True, kw_only=True)
class Patch:
    """What a patch needs of NVFlare.

    Functions and classes are named ``module:qualified.name``. A replaced function must have the same source as when
    the patch was written, up to comments and blank lines; one that is only called must have the same parameters.
    """

    name: str
    kind: Kind
    without: str
    """What a run lacks without the patch; completes the warning's sentence."""
    apply: Callable[[], None] = lambda: None
    """Puts it in place; where this does nothing, a function of its module does so for one object."""
    replaces: Mapping[str, str] = field(default_factory=dict)
    """Function → `fingerprint` of its source."""
    calls: Mapping[str, str] = field(default_factory=dict)
    """Function → its parameters, separated by commas."""

    def fits(self) -> bool:
        """Whether to apply the patch in this process. Checked once; the first time it doesn't fit, a warning says so.

        Ask before the patch is applied: it changes what is compared here.
        """
        if self.name not in _fits:
            _fits[self.name] = self._check()
        return _fits[self.name]

    def _check(self) -> bool:
        if self.name in os.environ.get(SKIP, "").split(","):
            return False
        changed = self._changed()
        if changed:
            log.warning(
                "NVFlare %s is not as the patch %s expects it (%s), so the run goes on without the patch: %s",
                version("nvflare"),
                self.name,
                ", ".join(changed),
                self.without,
            )
        return not changed

    @property
    def in_place(self) -> bool:
        """Whether it has been put in place in this process."""
        return self.name in IN_PLACE

    def install(self) -> None:
        """Put it in place in this process, once, where NVFlare looks as expected."""
        if not self.in_place and self.fits():
            self.apply()
            IN_PLACE.add(self.name)

    def enforce(self) -> None:
        """Put a protection in place that no environment variable leaves out.

        Raises:
            NotAsExpectedError: NVFlare doesn't look as the patch expects it, so the process must not start.
        """
        if self.in_place:
            return
        changed = self._changed()
        if changed:
            raise NotAsExpectedError(
                f"NVFlare {version('nvflare')} is not as the patch {self.name} expects it ({', '.join(changed)}), and "
                f"without it {self.without}: install the version of NVFlare that the patch is written for"
            )
        self.apply()
        IN_PLACE.add(self.name)

    def _changed(self) -> list[str]:
        """What looks different from when the patch was written."""
        try:
            changed = [_short(name) for name, known in self.replaces.items() if fingerprint(name) != known]
            return changed + [_short(name) for name, known in self.calls.items() if parameters(name) != known]
        except (ImportError, AttributeError, TypeError, OSError) as error:
            return [str(error)]


def require(protection: str) -> None:
    """Refuse to go on without a protection.

    Raises:
        NotAsExpectedError: it is not in place in this process.
    """
    if protection not in IN_PLACE:
        raise NotAsExpectedError(
            f"local/resources.json does not put the {protection} in place: name the guard there as a component, and "
            "start again"
        )


def find(name: str) -> Any:
    """The object called ``module:qualified.name``.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such part.
    """
    module, _, path = name.partition(":")
    part: Any = importlib.import_module(module)
    for attribute in path.split(".") if path else ():
        part = getattr(part, attribute)
    return part


def fingerprint(name: str) -> str:
    """The first 12 hexadecimal digits of the sha256 of a function's source, without comments and blank lines."""
    lines = (line.rstrip() for line in inspect.getsource(find(name)).splitlines())
    kept = [line for line in lines if line and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:12]


def parameters(name: str) -> str:
    """The names of a function's parameters, ``self`` included."""
    return ", ".join(inspect.signature(find(name)).parameters)


def _short(name: str) -> str:
    return name.partition(":")[2]
