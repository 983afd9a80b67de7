"""A replacement for parts of NVFlare, and whether NVFlare still looks as it expects."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal, TypeVar

log = logging.getLogger("flare_armour")

SKIP = "FLARE_ARMOUR_WITHOUT"
"""Environment variable: names of patches to leave out, separated by commas. For benchmarks, and to find faults."""

IN_PLACE: set[str] = set()
"""Names of protections and patches that have been put in place in this process."""

Kind = Literal["protects", "bounds memory", "correct", "speed"]
"""What a patch is for: another party could do harm without it; memory would grow with sites, messages or rounds;
NVFlare does something wrong; or it only takes longer."""
Function = TypeVar("Function", bound=Callable[..., Any])


class ArmourError(Exception):
    """A party, or a job's process, must not go on; the message says why in one sentence."""


class NotAsExpectedError(ArmourError):
    """NVFlare is another than a protection was written for, so the process must not start."""


@dataclass(kw_only=True, eq=False)
class Patch:
    """Functions that stand in for NVFlare's, and what they need of NVFlare.

    Functions and classes are named ``module:qualified.name``. A replaced function, and one that is relied on, must have
    the same source as when the patch was written, up to comments and blank lines; one that is only called must have the
    same parameters.
    """

    name: str
    kind: Kind
    without: str
    """What a run lacks without the patch; completes the warning's sentence."""
    sources: dict[str, str] = field(default_factory=dict)
    """Function or class → `fingerprint` of its source."""
    calls: Mapping[str, str] = field(default_factory=dict)
    """Function → its parameters, separated by commas."""
    also: Callable[[], object] = lambda: None
    """What else puts it in place."""
    _functions: dict[str, Callable[..., Any]] = field(default_factory=dict, init=False)
    _originals: dict[str, Any] = field(default_factory=dict, init=False)
    _fits: bool | None = field(default=None, init=False)

    def replaces(self, name: str, source: str) -> Callable[[Function], Function]:
        """Put the decorated function, which gets the original before its arguments, in the place of NVFlare's."""
        self.sources[name] = source

        def register(function: Function) -> Function:
            self._functions[name] = function
            return function

        return register

    @property
    def in_place(self) -> bool:
        """Whether it has been put in place in this process."""
        return self.name in IN_PLACE

    def fits(self) -> bool:
        """Whether it is in place, or may be. The first time that NVFlare looks different, a warning says so."""
        if self.name in os.environ.get(SKIP, "").split(","):
            return False
        if self._fits is None and not self.in_place:
            changed = self._changed()
            self._fits = not changed
            if changed:
                log.warning(
                    "NVFlare %s is not as the patch %s expects it (%s), so the run goes on without the patch: %s",
                    version("nvflare"),
                    self.name,
                    ", ".join(changed),
                    self.without,
                )
        return self._fits is not False

    def install(self) -> None:
        """Put it in place in this process, once, where NVFlare looks as expected."""
        if not self.in_place and self.fits():
            self._apply()

    def enforce(self) -> None:
        """Put a protection in place that no environment variable leaves out.

        Raises:
            NotAsExpectedError: NVFlare doesn't look as the patch expects it, so the process must not start.
        """
        if self.in_place:
            return
        if changed := self._changed():
            raise NotAsExpectedError(
                f"NVFlare {version('nvflare')} is not as the patch {self.name} expects it ({', '.join(changed)}), and "
                f"without it {self.without}: install the version of NVFlare that the patch is written for"
            )
        self._apply()

    def remove(self) -> None:
        """Put NVFlare's functions back; what `also` did stays."""
        for name, original in self._originals.items():
            owner, attribute = _place(name)
            setattr(owner, attribute, original)
        self._originals.clear()
        IN_PLACE.discard(self.name)

    def _apply(self) -> None:
        for name, function in self._functions.items():
            owner, attribute = _place(name)
            original = self._originals[name] = vars(owner)[attribute]
            bound = _bound(function, getattr(owner, attribute))
            setattr(owner, attribute, staticmethod(bound) if isinstance(original, staticmethod) else bound)
        self.also()
        IN_PLACE.add(self.name)

    def _changed(self) -> list[str]:
        """What looks different from when the patch was written."""
        try:
            changed = [name for name, known in self.sources.items() if fingerprint(name) != known]
            changed += [name for name, known in self.calls.items() if parameters(name) != known]
            return [name.partition(":")[2] for name in changed]
        except (ImportError, AttributeError, TypeError, OSError) as error:
            return [str(error)]


def _bound(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def replacement(*args: Any, **named: Any) -> Any:
        return function(original, *args, **named)

    return replacement


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
    return functools.reduce(getattr, filter(None, path.split(".")), importlib.import_module(module))


def fingerprint(name: str) -> str:
    """The first 12 hexadecimal digits of the sha256 of a function's source, without comments and blank lines."""
    lines = (line.rstrip() for line in inspect.getsource(find(name)).splitlines())
    kept = [line for line in lines if line and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:12]


def parameters(name: str) -> str:
    """The names of a function's parameters, ``self`` included."""
    return ", ".join(inspect.signature(find(name)).parameters)


def _place(name: str) -> tuple[Any, str]:
    """What a function is an attribute of, and that attribute's name."""
    module, _, path = name.partition(":")
    owner, _, attribute = path.rpartition(".")
    return find(f"{module}:{owner}"), attribute
