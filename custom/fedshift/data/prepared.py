"""The scans of a prepared site: ``volumes/<case>.nii.gz`` and ``volumes/<case>_mask.nii.gz``.

With several sequences a case has a file for each, ``volumes/<case>_0000.nii.gz`` and so on in the manifest's order. All
files of a case have the same grid. A mask holds the number of each voxel's class among the manifest's classes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Case, Manifest

FOLDER = "volumes"


def image_files(site_dir: Path, manifest: Manifest, case: str) -> tuple[Path, ...]:
    return sequence_files(site_dir, len(manifest.sequences), case)


def sequence_files(site_dir: Path, sequences: int, case: str) -> tuple[Path, ...]:
    """The image files of a case with so many sequences; none or one is one file."""
    folder = site_dir / FOLDER
    if sequences < 2:
        return (folder / f"{case}.nii.gz",)
    return tuple(folder / f"{case}_{number:04d}.nii.gz" for number in range(sequences))


def mask_file(site_dir: Path, case: str) -> Path:
    return site_dir / FOLDER / f"{case}_mask.nii.gz"


def read_images(site_dir: Path, manifest: Manifest, case: Case) -> np.ndarray:
    """The sequences of a case, (sequences, z, y, x) in RAS orientation, as stored.

    Raises:
        DataError: a file cannot be read, or has another shape than the manifest says.
    """
    return np.stack([_read(path, case) for path in image_files(site_dir, manifest, case.id)])


def read_labels(site_dir: Path, case: Case) -> np.ndarray:
    """The class of each voxel, (z, y, x) uint8 in RAS orientation.

    Raises:
        DataError: the file cannot be read, or has another shape than the manifest says.
    """
    return _read(mask_file(site_dir, case.id), case).astype(np.uint8)


def _read(path: Path, case: Case) -> np.ndarray:
    from fedshift.data.scans import read_scan  # imports SimpleITK, which training does not need

    voxels = read_scan(path).voxels
    if voxels.shape != case.shape:
        what = f"{path} has shape {voxels.shape}, the manifest says {case.shape}: prepare the site again"
        raise DataError("array-shape", what)
    return voxels
