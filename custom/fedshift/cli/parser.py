"""The argument parser of all commands: errors show the usage of the command that was called, and the nearest name."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from fedshift.schema.strict import closest, nearest


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` whose sub-parsers report their own unknown arguments.

    argparse returns them to the top-level parser, which knows neither the options nor the usage of the command.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse ``args``; unknown ones end the program with exit code 2."""
        found, extra = super().parse_known_args(args, namespace)
        if extra:
            self.error(self._unknown(extra[0]))
        return found, extra

    def _unknown(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"unexpected argument {argument!r}: see '{self.prog} --help'"
        option = argument.partition("=")[0]
        near = closest(option, self._option_string_actions)
        return f"unknown option {option}" + (f"; did you mean {near}?" if near else f": see '{self.prog} --help'")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse what is none of the choices, as argparse does, and name the nearest."""
        choices: Iterable[Any] | None = action.choices
        if choices is None or value in choices:
            return
        is_command = isinstance(action, argparse._SubParsersAction)
        what = f"unknown {str(action.metavar or 'command').lower()}" if is_command else "unknown value"
        message = f"{what} {str(value)!r}{nearest(str(value), map(str, choices))}"
        raise argparse.ArgumentError(None if is_command else action, message)
