"""Cases with several sequences: a file each, ``<case>_0000.nii.gz``, ``<case>_0001.nii.gz`` and so on, as nnU-Net."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedshift.data.scan_file import ScanError, suffix_of
from fedshift.data.scans import Scan, read_scan, stem_of
from fedshift.data.series import is_series
from fedshift.schema.errors import ConfigError

_NUMBERED = re.compile(r"(.+)_(\d{4})")
SAME_MM = 1e-3
"""Positions that differ by less are the same."""


def first_files(images: Sequence[Path], sequences: Sequence[str]) -> list[Path]:
    """Of the given files the first of each case; all of them for a model of one sequence.

    Raises:
        ConfigError: a file has no number of a sequence in its name, or one of a case is missing.
    """
    if len(sequences) < 2:
        return list(images)
    listed = ", ".join(f"_{number:04d} is {name}" for number, name in enumerate(sequences))
    first: dict[Path, None] = {}
    for image in images:
        found = _NUMBERED.fullmatch(stem_of(image)) if not is_series(image) else None
        if found is None or int(found[2]) >= len(sequences):
            raise ConfigError(f"{image}: the model takes {len(sequences)} files of a case, whose names end in {listed}")
        first[image.with_name(f"{found[1]}_0000{suffix_of(image)}")] = None
    for image in first:
        missing = next((path for path in files_of(image, sequences) if not path.is_file()), None)
        if missing is not None:
            raise ConfigError(
                f"{missing} does not exist, and the model takes {len(sequences)} files of a case: {listed}"
            )
    return list(first)


def case_of(image: Path, sequences: Sequence[str]) -> Path:
    """The path of a case's first file without the number of the sequence."""
    if len(sequences) < 2:
        return image
    return image.with_name(f"{stem_of(image).removesuffix('_0000')}{suffix_of(image)}")


def files_of(image: Path, sequences: Sequence[str]) -> list[Path]:
    """The files of the case whose first file is ``image``."""
    if len(sequences) < 2:
        return [image]
    case = stem_of(case_of(image, sequences))
    return [image.with_name(f"{case}_{number:04d}{suffix_of(image)}") for number in range(len(sequences))]


def read_case(image: Path, sequences: Sequence[str]) -> tuple[Scan, np.ndarray]:
    """The first scan of a case, and the voxels of all its sequences (S, z, y, x).

    Raises:
        ScanError: a file cannot be read, is the same everywhere, or lies on another grid than the first.
    """
    files = files_of(image, sequences)
    scans = [read_scan(path) for path in files]
    for path, scan in zip(files, scans, strict=True):
        if scan.voxels.min() == scan.voxels.max():
            raise ScanError(path, "has the same intensity everywhere", "export the scan again")
        same = scan.voxels.shape == scans[0].voxels.shape and all(
            np.allclose(getattr(scan, what), getattr(scans[0], what), rtol=0, atol=SAME_MM)
            for what in ("spacing", "origin", "direction")
        )
        if not same:
            raise ScanError(path, f"lies on another grid than {files[0]}", "resample it to that scan's grid")
    return scans[0], np.stack([scan.voxels for scan in scans])
