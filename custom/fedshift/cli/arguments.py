"""The argument parser of all commands, options that several share, and what is checked of every command line."""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedshift.schema.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` whose sub-parsers report their own unknown arguments, with the nearest name.

    argparse returns them to the top-level parser, which knows neither the options nor the usage of the command.
    """

    def __init__(self, *, fill: Callable[[Parser], None] | None = None, **kwargs: Any) -> None:
        """``fill`` adds the arguments when they are first needed, with the imports that only this command needs."""
        super().__init__(**kwargs)
        self._fill = fill

    def complete(self) -> None:
        """Add the arguments that are still to be added."""
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse ``args``; unknown ones end the program with exit code 2."""
        self.complete()
        known, extra = super().parse_known_args(args, namespace)
        if extra:
            self.error(self._unknown(extra[0]))
        return known, extra

    def _unknown(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"unexpected argument {argument!r}: see '{self.prog} --help'"
        from fedshift.schema.strict import closest  # brings pydantic

        option = argument.partition("=")[0]
        near = closest(option, self._option_string_actions)
        return f"unknown option {option}" + (f"; did you mean {near}?" if near else f": see '{self.prog} --help'")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse what is none of the choices, as argparse does, and name the nearest."""
        choices: Iterable[Any] | None = action.choices
        if choices is None or value in choices:
            return
        from fedshift.schema.strict import nearest

        is_command = isinstance(action, argparse._SubParsersAction)
        what = f"unknown {str(action.metavar or 'command').lower()}" if is_command else "unknown value"
        message = f"{what} {str(value)!r}{nearest(str(value), map(str, choices))}"
        raise argparse.ArgumentError(None if is_command else action, message)


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


SWITCH: dict[str, Any] = {"action": "store_true"}
SHARED: dict[str, dict[str, Any]] = {
    # `phantom_data` acts on it; 'fedshift site init' has an option of this name that means something else
    "--phantom": SWITCH
    | {
        "dest": "only_phantom",
        "help": "train on the simulated scans of 'fedshift data phantom', whatever other data are prepared",
    },
    # `chosen_device` acts on it; 'fedshift predict' has an option of this name that it passes on itself
    "--device": {
        "dest": "train_on",
        "metavar": "NAME",
        "help": "cpu, cuda, cuda:1 … for all sites (default: $FEDSHIFT_DEVICE, else a GPU if any)",
    },
    "--devices": {
        "type": positive,
        "metavar": "N",
        "help": "devices that share each batch at every site, as GPUs or cores (default: $FEDSHIFT_DEVICES, else 1)",
    },
    "--true-spacing": SWITCH | {"help": "voxels of 1 x 1 x 1 mm are real, not a header's placeholder"},
    "--trust-voxels": SWITCH
    | {"help": "accept files whose header differs from the image's if the number of voxels is the same"},
    "--interpolate": SWITCH
    | {"help": "fill slices that lie between two contours of an RT Structure Set, as planning systems do"},
    "--empty": SWITCH
    | {"help": "take cases without the structure, whose masks are empty (default: as the task says, data.empty)"},
    "--ignore-memory": SWITCH | {"help": "run it even if it is not expected to fit into memory"},
    "--bits": {
        "type": int,
        "choices": range(8, 17),
        "metavar": "N",
        "help": "of grey pictures of 16 bits: how many are used (default: 8, 10, 12, 14 or 16, by their largest value)",
    },
    "--subject": {
        "metavar": "PATTERN",
        "help": "whose scan a case is, by its name: '*' is the subject, as in 'Image_*[LR]', or a regular expression "
        "with one group; cases of a subject stay together",
    },
    "--volume": {
        "type": positive,
        "metavar": "N",
        "help": "of series and 4D files that hold several volumes (time points, echoes, b-values) take the N-th, "
        "from 1",
    },
}
"""Options that have one meaning wherever a command takes them."""


def add_shared(parser: Any, *options: str) -> None:
    """Add some of the `SHARED` options."""
    for option in options:
        parser.add_argument(option, **SHARED[option])


def add_parallel(parser: Any, *, note: str = "") -> None:
    """``--parallel``: sites that work at a time in FLARE's simulator."""
    parser.add_argument(
        "-p", "--parallel", type=int, metavar="N", help=f"{note}sites that train at a time (default: one per core)"
    )


def add_resume_or_force(parser: Any) -> None:
    """``--resume`` or ``--force``: what to do with a run that is in the workspace already."""
    former = parser.add_mutually_exclusive_group()
    former.add_argument("--resume", action="store_true", help="go on with the run in the workspace")
    former.add_argument("--force", action="store_true", help="replace the run in the workspace")


@contextmanager
def chosen_device(asked: str | None, number: int | None = None) -> Iterator[None]:
    """While it is open, this process and those it starts train on the device ``asked`` for, and on so many.

    None leaves them as they are.
    """
    from fedshift.data.locate import DEVICE, DEVICES  # brings pydantic and numpy

    with _environment(DEVICE, asked), _environment(DEVICES, None if number is None else str(number)):
        if asked is not None or number is not None:
            from fedshift.data.locate import read_settings
            from fedshift.tasks.device import choose_devices  # brings torch

            settings = read_settings(None)
            choose_devices(settings.device, settings.devices)
        yield


@contextmanager
def phantom_data(asked: bool) -> Iterator[None]:
    """While it is open, this process and those it starts find the phantom and no other data, if ``asked``."""
    from fedshift.data.locate import DATA, phantom_home

    with _environment(DATA, str(phantom_home().absolute()) if asked else None):
        yield


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable, unless ``value`` is None, and put back what it was."""
    if value is None:
        yield
        return
    former = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if former is not None:
            os.environ[name] = former


def check_paths(args: argparse.Namespace) -> None:
    """Refuse a path with a stray space, which a shell or a script has left there, unless it exists."""
    for name, value in vars(args).items():
        if not isinstance(value, Path) or value.exists():
            continue
        odd = next((part for part in value.parts if part != part.strip()), None)
        if odd is not None:
            raise ConfigError(
                "invalid-value",
                f"{name} is {str(value)!r}, in which {odd!r} begins or ends with a space: write it without the space",
            )


def check_new_model(out: Path, model: Path, *, force: bool) -> None:
    """Refuse a file for a new model that is the model itself, a folder, in no folder, or there (ConfigError)."""
    if out.is_dir():
        raise ConfigError("output-exists", f"{out} is a folder: name a file with --out")
    if out.exists() and (not force or out.samefile(model)):
        same = out.samefile(model)
        remedy = "name another file" if same else "name another file, or replace it with --force"
        raise ConfigError("output-exists", f"{out} {'is MODEL' if same else 'already exists'}: {remedy}")
    if not out.parent.is_dir():
        raise ConfigError("folder-missing", f"{out} is in a folder that does not exist: name another file")


def make_folder(folder: Path) -> None:
    """Make the folder that ``--out`` names, before long work whose result goes there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            "folder-unwritable", f"{folder} cannot be made ({error.strerror}): name another folder with --out"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        reason = os.strerror(errno.EACCES)
        raise ConfigError("folder-unwritable", f"{folder} cannot be written ({reason}): name another folder with --out")
