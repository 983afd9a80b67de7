"""Options that several commands share, and what is checked of every command line."""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedshift.data.locate import DATA, DEVICE, phantom_home
from fedshift.schema.errors import ConfigError


def add_phantom(parser: Any) -> None:
    """``--phantom``; `phantom_data` acts on it."""
    parser.add_argument(
        "--phantom",
        dest="only_phantom",  # 'fedshift site init' has an option of this name that means something else
        action="store_true",
        help="train on the simulated scans of 'fedshift data phantom', whatever other data are prepared",
    )


def add_parallel(parser: Any, *, note: str = "") -> None:
    """``--parallel``: sites that work at a time in FLARE's simulator."""
    parser.add_argument(
        "-p", "--parallel", type=int, metavar="N", help=f"{note}sites that train at a time (default: one per core)"
    )


def add_true_spacing(parser: Any) -> None:
    """``--true-spacing``."""
    parser.add_argument(
        "--true-spacing", action="store_true", help="voxels of 1 x 1 x 1 mm are real, not a header's placeholder"
    )


def add_trust_voxels(parser: Any) -> None:
    """``--trust-voxels``."""
    parser.add_argument(
        "--trust-voxels",
        action="store_true",
        help="accept files whose header differs from the image's if the number of voxels is the same",
    )


def add_interpolate(parser: Any) -> None:
    """``--interpolate``."""
    parser.add_argument(
        "--interpolate",
        action="store_true",
        help="fill slices that lie between two contours of an RT Structure Set, as planning systems do",
    )


def add_empty(parser: Any) -> None:
    """``--empty``."""
    parser.add_argument(
        "--empty",
        action="store_true",
        help="take cases without the structure, whose masks are empty (default: as the task says, data.empty)",
    )


def add_memory(parser: Any) -> None:
    """``--ignore-memory``."""
    parser.add_argument(
        "--ignore-memory", action="store_true", help="run it even if it is not expected to fit into memory"
    )


def add_earlier_run(parser: Any) -> None:
    """``--resume`` or ``--force``: what to do with a run that is in the workspace already."""
    earlier = parser.add_mutually_exclusive_group()
    earlier.add_argument("--resume", action="store_true", help="go on with the run in the workspace")
    earlier.add_argument("--force", action="store_true", help="replace the run in the workspace")


def add_device(parser: Any) -> None:
    """``--device``; `chosen_device` acts on it."""
    parser.add_argument(
        "--device",
        dest="train_on",  # 'fedshift predict' has an option of this name that it passes on itself
        metavar="NAME",
        help="cpu, cuda, cuda:1 … for all sites (default: $FEDSHIFT_DEVICE, else a GPU if any)",
    )


@contextmanager
def chosen_device(asked: str | None) -> Iterator[None]:
    """While it is open, this process and those it starts train on the device ``asked`` for, if it is not None.

    Raises:
        ConfigError: this machine has no such device.
    """
    if asked is None:
        yield
        return
    from fedshift.tasks.device import choose_device  # brings torch

    choose_device(asked)
    former = os.environ.get(DEVICE)
    os.environ[DEVICE] = asked
    try:
        yield
    finally:
        del os.environ[DEVICE]
        if former is not None:
            os.environ[DEVICE] = former


@contextmanager
def phantom_data(asked: bool) -> Iterator[None]:
    """While it is open, this process and those it starts find the phantom and no other data, if ``asked``."""
    former = os.environ.get(DATA)
    if asked:
        os.environ[DATA] = str(phantom_home().absolute())
    try:
        yield
    finally:
        if asked:
            del os.environ[DATA]
            if former is not None:
                os.environ[DATA] = former


def check_paths(args: argparse.Namespace) -> None:
    """Refuse a path with a stray space, which a shell or a script has left there, unless it exists.

    Raises:
        ConfigError: a part of a path begins or ends with a space.
    """
    for name, value in vars(args).items():
        if not isinstance(value, Path) or value.exists():
            continue
        odd = next((part for part in value.parts if part != part.strip()), None)
        if odd is not None:
            raise ConfigError(
                "invalid-value",
                f"{name} is {str(value)!r}, in which {odd!r} begins or ends with a space: write it without the space",
            )


def add_bits(parser: Any) -> None:
    """``--bits``."""
    parser.add_argument(
        "--bits",
        type=int,
        choices=range(8, 17),
        metavar="N",
        help="of grey pictures of 16 bits: how many are used (default: 8, 10, 12, 14 or 16, by their largest value)",
    )


def make_folder(folder: Path) -> None:
    """Make the folder that ``--out`` names, before long work whose result goes there.

    Raises:
        ConfigError: it cannot be made, or nothing can be written into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            "folder-unwritable", f"{folder} cannot be made ({error.strerror}): name another folder with --out"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        reason = os.strerror(errno.EACCES)
        raise ConfigError("folder-unwritable", f"{folder} cannot be written ({reason}): name another folder with --out")


def add_volume(parser: Any) -> None:
    """Add ``--volume``."""
    parser.add_argument(
        "--volume",
        type=positive,
        metavar="N",
        help="of series and 4D files that hold several volumes (time points, echoes, b-values) take the N-th, from 1",
    )


def positive(text: str) -> int:
    """A whole number from 1.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)
