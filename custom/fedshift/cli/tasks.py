"""``fedshift tasks``."""

from __future__ import annotations

import argparse
from typing import Any


def add_parsers(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("tasks", help="list the tasks with their sites and protocols")
    parser.set_defaults(func=show)


def show(args: argparse.Namespace) -> int:
    """``fedshift tasks``."""
    from fedshift.schema import task_files
    from fedshift.schema.job import read_yaml

    for name in task_files.tasks():
        raw = read_yaml(task_files.apps_dir() / f"{name}.yaml")
        protocols = ", ".join(["default", *raw.get("protocols", {})])
        out = f"; held out {_sites(raw['held_out'])}" if raw.get("held_out") else ""
        print(f"{name:<18} {raw['kind']}; sites {_sites(raw['sites'])}{out}; protocols {protocols}")
    return 0


def _sites(named: list[str] | dict[str, Any]) -> str:
    return ", ".join(named) if isinstance(named, list) else f"{named['prefix']}… ({named['count']})"
