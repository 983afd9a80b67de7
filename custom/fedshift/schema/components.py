"""Networks, methods, losses and tasks of installed packages, by names such as ``acme-nets:unet``.

The colon is in no name of fedshift's own, so a package can never stand in for one of them, nor for another package's. A
package's code is imported by `load`, and only after `admit` has compared the package with what the job names, and at a
site with what its policy lists. What was not admitted in this process is refused, whoever asks.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from fedshift.schema.errors import ConfigError, PolicyError
from fedshift.schema.packages import Installed, Kind, PackageSpec, installed, offering
from fedshift.schema.strict import nearest

SIGN = ":"
HAS: Mapping[Kind, str] = {"network": "build", "method": "Config", "loss": "loss"}
"""What a component's module must have."""
PLAIN = re.compile("[a-z][a-z0-9_]*")
"""A component's name within its package."""

_admitted: dict[str, PackageSpec] = {}
_loaded: dict[str, PackageSpec] = {}
"""The packages whose code this process has imported, as they were then."""
_modules: dict[tuple[Kind, str], ModuleType] = {}
"""The components that `load` has given."""


def package_of(name: str) -> str | None:
    """The package that a component is of; None for one of fedshift's own."""
    package, sign, _ = name.partition(SIGN)
    return package if sign else None


def packages_of(names: Iterable[str]) -> list[str]:
    """The packages of some components."""
    return sorted({package for name in names if (package := package_of(name)) is not None})


def choose(names: Iterable[str]) -> dict[str, PackageSpec]:
    """Admit the packages of components that whoever sits at this machine has named, as they are installed.

    Raises:
        ConfigError: one is not installed, or such that it cannot be compared (`Installed`).
    """
    specs = {}
    for package in packages_of(names):
        _require_offering(package)
        specs[package] = installed(package).spec
    admit(specs, where="this machine")
    return specs


def admit(packages: Mapping[str, PackageSpec], *, where: str, listed: Mapping[str, PackageSpec] | None = None) -> None:
    """Let this process import the code of the packages that a job or a model file needs.

    Args:
        packages: what the job names, or the model file.
        where: the party or file, as errors begin with.
        listed: what the site's policy lists; None on a machine of one's own and at the server, where the packages that
            are installed may be used.

    Raises:
        PolicyError: at a site: the policy does not list a package, or lists another version or hash of it; or another
            one is installed.
        ConfigError: elsewhere, another one is installed, or none.
    """
    for name, needed in packages.items():
        if listed is not None and listed.get(name) != needed:
            has = f"lists {name} {listed[name]}" if name in listed else "does not list it"
            raise PolicyError(
                "package-not-allowed",
                f"{where}: the job needs package {name} {needed}, and the site's policy (privacy.packages) {has}: look "
                "at the package, then add what 'fedshift site packages' prints for it, or leave the site out",
            )
        try:
            installed_spec = installed(name).spec
            if installed_spec != needed:
                raise ConfigError(
                    "package-differs",
                    f"package {name} {needed} is needed, and {installed_spec} is installed here: install the same "
                    "wheel at all parties, or make the job anew",
                )
            if _loaded.get(name, needed) != needed:
                raise ConfigError(
                    "package-differs", f"package {name} was {_loaded[name]} when this program started: start it anew"
                )
        except ConfigError as error:
            raise (ConfigError if listed is None else PolicyError)(error.code, f"{where}: {error}") from None
        _admitted[name] = needed


def load(kind: Kind, name: str) -> ModuleType:
    """The module of a component, of a package that was admitted.

    Raises:
        ConfigError: its package was not admitted, offers no such component, or its module is missing, fails or is no
            file of the package.
    """
    package = package_of(name)
    assert package is not None, "fedshift's own are not loaded here"
    if package not in _admitted:
        raise ConfigError(
            "package-unnamed",
            f"{kind} {name} is of a package that nothing here names with version and hash: make the job anew with "
            "'fedshift job'",
        )
    if (kind, name) not in _modules:
        place, point = _point(kind, name)
        _require_own(place, point)
        _loaded[package] = _admitted[package]
        _modules[kind, name] = _imported(kind, name, place, point)
    return _modules[kind, name]


def task_file(name: str) -> Path:
    """The file of a package's task, which is data: nothing is imported.

    Its entry point names the folder, as a package would be imported; the file is ``<task>.yaml`` in it.

    Raises:
        ConfigError: the package is not installed, or offers no such task.
    """
    _require_offering(name.partition(SIGN)[0])
    place, point = _point("task", name)
    path = f"{point.module.replace('.', '/')}/{point.name}.yaml"
    if path not in place.files:
        raise ConfigError("package-broken", f"task {name}: package {place.name} has no file {path}: ask its author")
    return place.files[path]


def source_file(kind: Kind, name: str) -> Path | None:
    """The file of a component's module, which is not imported; None if its package has none of that name.

    Raises:
        ConfigError: as `task_file`.
    """
    place, point = _point(kind, name)
    path = point.module.replace(".", "/")
    return next((place.files[p] for p in (f"{path}.py", f"{path}/__init__.py") if p in place.files), None)


def names(place: Installed, kind: Kind) -> list[str]:
    """The components of a kind that a package offers."""
    return [f"{place.name}{SIGN}{point.name}" for its, point in place.points if its == kind]


def _require_offering(package: str) -> None:
    """Refuse a package that somebody here has named, and that offers nothing or is not installed."""
    known = offering()
    if package not in known:
        raise ConfigError(
            "package-missing",
            f"no package {package!r} that offers parts to fedshift is installed{nearest(package, known)}",
        )


def _point(kind: Kind, name: str) -> tuple[Installed, EntryPoint]:
    package, _, component = name.partition(SIGN)
    place = installed(package)
    points = [point for its, point in place.points if its == kind and point.name == component]
    if len(points) == 1 and PLAIN.fullmatch(component):
        return place, points[0]
    if points:
        fault = "offers it twice" if len(points) > 1 else "offers it by a name that is no a-z, 0-9 and _"
        raise ConfigError("package-broken", f"{kind} {name}: package {package} {fault}: ask its author")
    raise ConfigError(
        "unknown-component",
        f"package {package} {place.version} offers no {kind} {component!r}{nearest(name, names(place, kind))}",
    )


def _require_own(place: Installed, point: EntryPoint) -> None:
    """Refuse a module that is not, or would not be, imported from the package's own files, which have been compared.

    Of a name with dots, the first part that has a file is looked at: the rest is within it. Nothing is imported.
    """
    parts = point.module.split(".")
    for number in range(1, len(parts) + 1):
        try:
            spec = find_spec(".".join(parts[:number]))
        except ValueError:  # of what is no module that was imported from a file, such as __main__
            break
        if spec is None:
            break
        if spec.origin is not None:
            _require_file(place, point, spec.origin)
            return
    raise ConfigError(
        "package-broken",
        f"package {place.name}: there is no module {point.module}, of its {point.name}: ask its author",
    )


def _require_file(place: Installed, point: EntryPoint, file: str | None) -> None:
    if file is None or Path(file).resolve() not in {each.resolve() for each in place.files.values()}:
        raise ConfigError(
            "package-shadowed",
            f"package {place.name}: Python finds its module {point.module} in {file}, which is no file of the package: "
            "take that out of the way ($PYTHONPATH, the working folder, another package)",
        )


def _imported(kind: Kind, name: str, place: Installed, point: EntryPoint) -> ModuleType:
    try:
        module = importlib.import_module(point.module)
    except Exception as error:  # of code that is not ours
        raise ConfigError(
            "package-broken",
            f"{kind} {name} cannot be imported ({type(error).__name__}: {str(error).partition(chr(10))[0]}): install "
            f"what package {place.name} needs",
        ) from error
    _require_file(place, point, module.__file__)
    if not hasattr(module, HAS[kind]):
        raise ConfigError("package-broken", f"{kind} {name}: its module {point.module} has no {HAS[kind]!r}")
    return module
