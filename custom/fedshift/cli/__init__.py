"""``fedshift …``: parse the command line, run the command, turn errors into one sentence and exit code 2."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from pkgutil import resolve_name

import fedshift
from fedshift.cli.arguments import Parser, check_paths, chosen_device, phantom_data
from fedshift.schema.errors import FedshiftError
from fedshift.schema.identity import parts_of_satellites

COMMANDS = (
    ("data", "data:add_arguments", "prepare and check a site's images"),
    ("job", "job:add_arguments", "write a job folder for FLARE from a task and its methods"),
    ("run", "run:add_run", "run a job folder in FLARE's simulator, sites side by side"),
    ("watch", "watch:add_watch", "a run on a screen while it goes on"),
    ("status", "watch:add_status", "a run in one line; the exit code is 1 if it failed or was stopped"),
    ("pooled", "run:add_pooled", "train a centralised reference on all sites' images, in one process"),
    ("leave-one-out", "protocols:add_leave_one_out", "every site in turn is held out and the others train"),
    ("cross-site", "protocols:add_cross_site", "score every site's own model at every site (simulation only)"),
    ("report", "report:add_report", "write the results of runs, comparisons and evaluations as one HTML file"),
    ("evaluate", "evaluate:add_arguments", "score a segmentation model on scans with masks"),
    ("adapt", "adapt:add_arguments", "adapt a model to the scans of one hospital, if there is evidence that it helps"),
    ("postprocess", "postprocess:add_arguments", "a model whose masks keep only the largest part of some structures"),
    ("predict", "predict:add_arguments", "masks of scans, or classes of pictures, with a trained model"),
    ("serve", "serve:add_arguments", "masks for each new study of a PACS, stored there"),
    (
        "card",
        "report:add_card",
        "write a model card: what a model was trained on, its use and limits, scores, privacy, versions",
    ),
    ("export", "export:add_arguments", "write a model as a MONAI bundle, ONNX or torch.export file"),
    ("site", "site:add_arguments", "set up, check and try out the kit of a site, or of the server"),
    ("doctor", "doctor:add_arguments", "check a machine, and a kit if there is one: what is wrong, and how to mend it"),
    ("mailbox", "mailbox:add_arguments", "a federation by files in a shared folder: no port, no server process"),
    (
        "methods",
        "methods:add_methods",
        "list the methods, or show one's paper, formula, options and what leaves a site",
    ),
    ("tasks", "methods:add_tasks", "list the tasks with their sites and protocols"),
)
"""Of the core: name, what adds its arguments (imported when the command is named), and help, in the order of
``--help``."""


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
    from fedshift.data.locate import settle_root  # brings pydantic and numpy, which --help does not need
    from fedshift.schema.names import printable

    try:
        check_paths(args)
        settle_root()
        device = chosen_device(getattr(args, "train_on", None), getattr(args, "devices", None))
        with phantom_data(getattr(args, "only_phantom", False)), device:
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


def _add_arguments(place: str, parser: Parser) -> None:
    resolve_name(f"{__name__}.{place}")(parser)


def _parser() -> Parser:
    parser = Parser(
        prog="fedshift",
        description="Federated learning under feature shift. Research use only; not a medical device.",
    )
    parser.add_argument("--version", action="version", version=f"fedshift {fedshift.__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks and debug messages")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, place, help_ in COMMANDS:
        commands.add_parser(name, help=help_, fill=partial(_add_arguments, place))
    for satellite in parts_of_satellites("fedshift.commands"):
        satellite.add_parsers(commands)
    return parser
