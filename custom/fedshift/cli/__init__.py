"""``fedshift …``: parse the command line, run the command, turn errors into one sentence and exit code 2."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence

import fedshift
from fedshift.cli import data, evaluate, export, job, methods, predict, protocols, report, run, site, watch
from fedshift.cli.arguments import Parser, check_paths, chosen_device, phantom_data
from fedshift.data.locate import settle_root
from fedshift.schema.errors import FedshiftError
from fedshift.schema.identity import parts_of_satellites
from fedshift.schema.names import printable

COMMANDS: tuple[Callable[[argparse._SubParsersAction[Parser]], None], ...] = (
    data.add_parsers,
    job.add_parsers,
    run.add_run,
    watch.add_parsers,
    run.add_pooled,
    protocols.add_leave_one_out,
    protocols.add_cross_site,
    report.add_report,
    evaluate.add_parsers,
    predict.add_parsers,
    report.add_card,
    export.add_parsers,
    site.add_parsers,
    methods.add_methods,
    methods.add_tasks,
)
"""Each adds a command of the core, in the order of ``--help``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0, 1 for findings, 2 for errors that the user can correct. It is 1, without a message, if the
        reader of the output has closed it, as ``head`` does.
    """
    try:
        try:
            return _run(argv)
        finally:
            print(end="", flush=True)  # a failure at the interpreter's exit couldn't be caught
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(argv: Sequence[str] | None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.DEBUG if args.debug else logging.WARNING, format="%(levelname)s %(message)s")
    try:
        check_paths(args)
        settle_root()
        with phantom_data(getattr(args, "only_phantom", False)), chosen_device(getattr(args, "train_on", None)):
            code: int = args.func(args)
    except FedshiftError as error:
        if args.debug:
            raise
        print(f"fedshift: {printable(str(error))} [{error.code}]", file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        if args.debug:
            raise
        print(f"fedshift: {printable(_unusable(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fedshift: stopped", file=sys.stderr)
        return 130
    return code


def _unusable(error: OSError) -> str:
    """An error of the operating system that the command itself did not expect, as a sentence."""
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is None:  # such as of a disk that fills up
        return f"the machine refused ({reason}): see to its disk, and repeat the command (--debug shows where it ended)"
    return f"{error.filename} cannot be used ({reason}): name another place, or see to its disk and its permissions"


def _parser() -> Parser:
    parser = Parser(
        prog="fedshift",
        description="Federated learning under feature shift. Research use only; not a medical device.",
    )
    parser.add_argument("--version", action="version", version=f"fedshift {fedshift.__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks and debug messages")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (*COMMANDS, *(module.add_parsers for module in parts_of_satellites("fedshift.commands"))):
        add(commands)
    return parser
