"""Which scans ``predict`` and ``adapt`` are to take, of the files and folders that a command line names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedshift.schema.errors import ConfigError
from fedshift.schema.names import printable

if TYPE_CHECKING:
    from fedshift.inference.model import Model
    from fedshift.inference.monai_bundle import Bundle
    from fedshift.inference.sequences import ScanCase


def scan_cases(model: Model | Bundle, images: Sequence[Path], args: argparse.Namespace) -> list[ScanCase]:
    """As `find_scans`, by the options of a command line."""
    if args.bits is not None:
        message = f"{args.model} takes scans, whose values are taken as they are: leave out --bits"
        raise ConfigError("no-effect", message)
    return find_scans(model, images, volume=args.volume, true_spacing=args.true_spacing)


def find_scans(
    model: Model | Bundle, images: Sequence[Path], *, volume: int | None, true_spacing: bool
) -> list[ScanCase]:
    """The cases in what a command line names; prints what is not read, and which file is which sequence."""
    from fedshift.data.scan_folders import not_read, pictures_in, scans_in
    from fedshift.inference.sequences import find_cases, in_case_folders, picture_cases

    for line in () if model.of_pictures else not_read(images):
        print(printable(line))
    if model.of_pictures:
        cases = picture_cases(pictures_in(images), model.sequences)
        for value, option in ((volume, "--volume"), (true_spacing, "--true-spacing")):
            if value:
                raise ConfigError(
                    "no-effect", f"{model.path} segments pictures, which have no volumes: leave out {option}"
                )
    else:
        scans = scans_in(in_case_folders(images, model.sequences))
        cases = find_cases(scans, model.sequences, volume=volume)
    for line in dict.fromkeys(case.assignment for case in cases if case.assignment):
        print(printable(line))
    return cases
