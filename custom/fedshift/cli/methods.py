"""``fedshift methods`` and ``fedshift tasks``: what there is to choose from."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from fedshift.methods.listing import available, of_packages, summary
from fedshift.schema.errors import ConfigError


def add_methods(parser: Any) -> None:
    parser.add_argument("name", nargs="?", metavar="METHOD", help="one method, in upper or lower case")
    parser.add_argument("--leaves", action="store_true", help="tables of what leaves a site with each method")
    parser.set_defaults(func=show_methods)


def add_tasks(parser: Any) -> None:
    parser.set_defaults(func=show_tasks)


def show_methods(args: argparse.Namespace) -> int:
    if args.leaves:
        from fedshift.reporting.transmitted_data import transmitted_data_page

        print(transmitted_data_page(), end="")
    elif args.name is not None:
        _show_method(args.name.lower())
    else:
        for name in (*available(), *of_packages()):
            print(f"{name:<16} {_summary(name)}")
    return 0


def _summary(name: str) -> str:
    """A method's idea, or why its package cannot be used."""
    try:
        return summary(name)
    except ConfigError as error:
        return f"cannot be used: {error}"


def _show_method(name: str) -> None:
    from fedshift.methods import method_set
    from fedshift.methods.shared import search
    from fedshift.reporting.transmitted_data import reference_job, transmitted_data_section
    from fedshift.schema.components import choose
    from fedshift.schema.settings import settings

    choose([name])
    module = method_set.find(name)
    print((module.__doc__ or "").strip())
    print("\nOptions (--set METHOD.OPTION=VALUE), and where 'fedshift compare' draws settings from:")
    drawn = search.space(module)
    for setting in settings(module.Config):
        where = f"    drawn: {drawn[setting.key]}" if setting.key in drawn else ""
        print(f"  {name}.{setting.key} = {setting.default}    {setting.type}{where}")
        print(textwrap.indent(textwrap.fill(setting.meaning, 100), "      "))
    leaves = transmitted_data_section(name, reference_job(name)).lstrip().removeprefix(f"## {name}").strip()
    print(f"\nWhat leaves a site:\n{leaves}")


def show_tasks(args: argparse.Namespace) -> int:
    from fedshift.schema import components
    from fedshift.schema.packages import offered
    from fedshift.schema.task_files import apps_dir, tasks
    from fedshift.schema.yaml_file import read_yaml

    theirs = [f"{package}{components.SIGN}{name}" for package, name in offered("task")]
    for name in (*tasks(), *theirs):
        try:
            raw = read_yaml(components.task_file(name) if name in theirs else apps_dir() / f"{name}.yaml")
        except ConfigError as error:
            print(f"{name:<18} cannot be used: {error}")
            continue
        protocols = ", ".join(["default", *raw.get("protocols", {})])
        out = f"; held out {_sites(raw['held_out'])}" if raw.get("held_out") else ""
        print(f"{name:<18} {raw['kind']}; sites {_sites(raw['sites'])}{out}; protocols {protocols}")
    return 0


def _sites(named: list[str] | dict[str, Any]) -> str:
    return ", ".join(named) if isinstance(named, list) else f"{named['prefix']}… ({named['count']})"
