"""The page of commands, written from what each ``--help`` says."""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from unittest import mock

SHOWN = {"COLUMNS": "88", "XDG_DATA_HOME": "~/.local/share", "HOME": "~"}
"""So that the defaults that are shown are a reader's."""


def helps() -> str:
    """Every command, with its help."""
    return "\n".join(_sections())


def _sections() -> Iterator[str]:
    from fedshift.cli import _parser

    environ = {key: value for key, value in os.environ.items() if key != "FEDSHIFT_DATA"} | SHOWN
    with mock.patch.dict(os.environ, environ, clear=True):
        for parser in _every(_parser()):
            depth = min(parser.prog.count(" ") + 1, 3) if " " in parser.prog else 2
            yield f"{'#' * max(depth, 2)} {parser.prog}\n\n```text\n{_help(parser)}```\n"


def _every(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its sub-commands, in order."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _every(child)


def _help(parser: argparse.ArgumentParser) -> str:
    """What ``--help`` prints; some parsers learn their options only then."""
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        parser.parse_args(["--help"])
    return printed.getvalue()
