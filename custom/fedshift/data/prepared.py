"""The scans of a prepared site: ``volumes/<case>.nii.gz`` and ``volumes/<case>_mask.nii.gz``.

With several sequences a case has a file for each, ``volumes/<case>_0000.nii.gz`` and so on in the manifest's order. All
files of a case have the same grid. A mask holds the number of each voxel's class among the manifest's classes.

A site of pictures has ``volumes/<case>.png`` for all sequences of a case, and ``volumes/<case>_mask.png``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Case, Manifest, Stored

FOLDER = "volumes"
SUFFIX: dict[Stored, str] = {"nifti": ".nii.gz", "png": ".png"}


def image_files(site_dir: Path, manifest: Manifest, case: str) -> tuple[Path, ...]:
    """The file of each sequence of a case; of a picture one file for all."""
    return sequence_files(site_dir, len(manifest.sequences), case, manifest.stored)


def sequence_files(site_dir: Path, sequences: int, case: str, stored: Stored = "nifti") -> tuple[Path, ...]:
    """The image files of a case with so many sequences; none or one is one file."""
    folder, suffix = site_dir / FOLDER, SUFFIX[stored]
    if sequences < 2 or stored == "png":
        return (folder / f"{case}{suffix}",)
    return tuple(folder / f"{case}_{number:04d}{suffix}" for number in range(sequences))


def mask_file(site_dir: Path, case: str, stored: Stored = "nifti") -> Path:
    return site_dir / FOLDER / f"{case}_mask{SUFFIX[stored]}"


def read_images(site_dir: Path, manifest: Manifest, case: Case) -> np.ndarray:
    """The sequences of a case, (sequences, z, y, x) in RAS orientation, as stored.

    Raises:
        DataError: a file cannot be read, or has another shape than the manifest says.
    """
    files = image_files(site_dir, manifest, case.id)
    if manifest.stored == "png":
        return _read_picture(files[0], case, max(len(manifest.sequences), 1))
    return np.stack([_read(path, case) for path in files])


def read_labels(site_dir: Path, case: Case, stored: Stored = "nifti") -> np.ndarray:
    """The class of each voxel, (z, y, x) uint8 in RAS orientation.

    Raises:
        DataError: the file cannot be read, or has another shape than the manifest says.
    """
    file = mask_file(site_dir, case.id, stored)
    if stored == "png":
        return np.asarray(_read_picture(file, case, 1)[0])
    return _read(file, case).astype(np.uint8)


def _read_picture(path: Path, case: Case, sequences: int) -> np.ndarray:
    """A prepared PNG, (sequences, 1, rows, columns) uint8 or uint16, turned as all volumes are."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as stored:
            pixels = np.asarray(stored)
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError) as error:
        raise DataError("file-damaged", f"{path} cannot be read ({error}): prepare the site again") from None
    planes = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
    if (len(planes), 1, *planes.shape[1:]) != (sequences, *case.shape):
        what = f"{path} has shape {planes.shape}, the manifest says {case.shape} and {sequences} sequence(s)"
        raise DataError("array-shape", f"{what}: prepare the site again")
    return np.ascontiguousarray(planes[:, None, ::-1, ::-1])


def _read(path: Path, case: Case) -> np.ndarray:
    from fedshift.data.scans import read_scan  # imports SimpleITK, which training does not need

    voxels = read_scan(path).voxels
    if voxels.shape != case.shape:
        what = f"{path} has shape {voxels.shape}, the manifest says {case.shape}: prepare the site again"
        raise DataError("array-shape", what)
    return voxels
