"""``fedshift …``: parse the command line, call what does the work, turn errors into one sentence and exit code 2."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import fedshift
from fedshift.cli.arguments import check_paths, phantom_data
from fedshift.schema.errors import FedshiftError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0, 1 for findings, 2 for errors that the user can mend.

    It is 1, without a word, if whoever reads the output has gone, as ``head`` does.
    """
    try:
        try:
            return _run(argv)
        finally:
            print(end="", flush=True)  # what fails at the interpreter's end cannot be caught
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(argv: Sequence[str] | None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.DEBUG if args.debug else logging.WARNING, format="%(levelname)s %(message)s")
    try:
        check_paths(args)
        with phantom_data(getattr(args, "only_phantom", False)):
            code: int = args.func(args)
    except FedshiftError as error:
        if args.debug:
            raise
        print(f"fedshift: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fedshift: stopped", file=sys.stderr)
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedshift",
        description="Federated learning under feature shift. Research use only; not a medical device.",
    )
    parser.add_argument("--version", action="version", version=f"fedshift {fedshift.__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks and debug messages")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_data(commands)
    from fedshift.cli import compare, cross_site, job, leave_one_out, pooled, predict, report, run, site

    for command in (job, run, pooled, leave_one_out, cross_site):
        command.add_parser(commands)
    compare.add_parsers(commands)
    report.add_parsers(commands)
    predict.add_parsers(commands)
    site.add_parsers(commands)
    methods = commands.add_parser(
        "methods", help="list the methods, or one's paper, formula, options and what leaves a site"
    )
    methods.add_argument("name", nargs="?")
    methods.add_argument("--leaves", action="store_true", help="tables of what leaves a site with each method")
    methods.set_defaults(func=_methods)
    commands.add_parser("tasks", help="list the tasks").set_defaults(func=_tasks)
    return parser


def _add_data(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from fedshift.cli import data, phantom

    parser = commands.add_parser("data", help="prepare and check a site's images")
    kinds = parser.add_subparsers(required=True, metavar="COMMAND")
    data.add_parsers(kinds)
    phantom.add_parser(kinds)


def _methods(args: argparse.Namespace) -> int:
    from fedshift.methods import method_set

    if args.leaves:
        from fedshift.reporting.leaves import leaves_page

        print(leaves_page(), end="")
        return 0
    if args.name is not None:
        from fedshift.reporting.leaves import leaves_section, reference_job

        module = method_set.find(args.name)
        print((module.__doc__ or "").strip())
        print("\nOptions (--set METHOD.OPTION=VALUE):")
        for name, field in module.Config.model_fields.items():
            choices = str(field.annotation).replace("typing.", "").replace("<class '", "").replace("'>", "")
            print(f"  {args.name}.{name} = {field.default!r}    {choices}")
        leaves = leaves_section(args.name, reference_job(args.name)).lstrip().removeprefix(f"## {args.name}").strip()
        print(f"\nWhat leaves a site:\n{leaves}")
        return 0
    for name in method_set.available():
        first = (method_set.find(name).__doc__ or "").strip().splitlines()[0]
        print(f"{name:<16} {first.partition(': ')[2] or first}")
    return 0


def _tasks(args: argparse.Namespace) -> int:
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
