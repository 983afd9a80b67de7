"""``fedshift site packages``: what installed packages offer to jobs, and how a site's policy allows them.

Nothing of them is imported.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from fedshift.data.locate import SITE_FILE, read_settings
from fedshift.methods.listing import idea
from fedshift.schema.components import names, source_file
from fedshift.schema.errors import ConfigError
from fedshift.schema.packages import GROUPS, Installed, PackageSpec, installed, offering
from fedshift.schema.policy import Policy


def show(args: argparse.Namespace) -> int:
    """Exit code 1 if a package cannot be used as it is installed."""
    listed = None if args.kit is None else _listed(args.kit)
    packages = offering()
    if not packages:
        print("no installed package offers networks, methods, losses or tasks")
    usable: dict[str, PackageSpec] = {}
    for name in packages:
        try:
            package = installed(name)
            usable[name] = package.spec
        except ConfigError as error:
            print(f"{name}: cannot be used: {error}")
            continue
        print(f"{name} {package.version}{_allowed(name, package.spec, listed)}")
        for line in _components(package):
            print(f"  {line}")
    missing = {name: spec for name, spec in usable.items() if (listed or {}).get(name) != spec}
    if missing:
        print(f"\nA site whose policy has these lines, in local/{SITE_FILE} of its kit, lets jobs use them:")
        print(textwrap.indent(lines(missing), "  "), end="")
    return int(len(usable) < len(packages))


def lines(packages: Mapping[str, PackageSpec]) -> str:
    """The part of a policy that lists some packages."""
    content = {"privacy": {"packages": {name: spec.model_dump() for name, spec in packages.items()}}}
    return yaml.safe_dump(content, sort_keys=False)


def _listed(kit: Path) -> Mapping[str, PackageSpec]:
    from fedshift.flare.kit import open_kit

    return (read_settings(open_kit(kit).local).privacy or Policy()).packages


def _allowed(name: str, spec: PackageSpec, listed: Mapping[str, PackageSpec] | None) -> str:
    if listed is None:
        return ""
    if name not in listed:
        return ": the policy does not list it"
    return ": the policy lists it" if listed[name] == spec else f": the policy lists another, {listed[name]}"


def _components(package: Installed) -> Iterator[str]:
    for kind in GROUPS:
        for name in names(package, kind):
            description = "" if kind == "task" else idea(source_file(kind, name))
            yield f"{kind:<8} {name}{f'  {description}' if description else ''}"
