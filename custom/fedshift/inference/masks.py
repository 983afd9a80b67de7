"""A mask in the geometry of the scan that it was found in, written and read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.scans import SUFFIXES, Scan, read_scan, stem_of, suffix_of
from fedshift.errors import DataError

TOLERANCE = 1e-3
"""Millimetres, and direction cosines: NIfTI holds 32 bits of each."""


def mask_path(image: Path, out: Path) -> Path:
    """``<stem>_mask`` in the image's own format; of a DICOM folder NIfTI."""
    suffix = None if image.is_dir() else suffix_of(image)
    return out / f"{stem_of(image)}_mask{suffix or SUFFIXES[0]}"


def write_mask(mask: np.ndarray, scan: Scan, path: Path) -> None:
    """Write a mask on the grid of the file that ``scan`` was read from, and read it back.

    Args:
        mask: bool, as ``scan.voxels``: RAS, ``[z, y, x]``.
        scan: gives the geometry, and how the file itself was oriented.
        path: its suffix chooses the format.

    Raises:
        DataError: it cannot be written, or is not the same when it is read.
    """
    image = sitk.GetImageFromArray(np.ascontiguousarray(mask, dtype=np.uint8))
    image.SetSpacing(scan.spacing)
    image.SetOrigin(scan.origin)
    image.SetDirection(scan.direction)
    try:
        sitk.WriteImage(sitk.DICOMOrient(image, scan.stored), str(path), useCompression=True)
    except RuntimeError:
        raise DataError(f"{path} cannot be written: make room or give write permission there") from None
    back = read_scan(path)
    same = (
        np.array_equal(back.voxels, mask)
        and back.stored == scan.stored
        and np.allclose(back.spacing, scan.spacing, rtol=0, atol=TOLERANCE)
        and np.allclose(back.origin, scan.origin, rtol=1e-6, atol=TOLERANCE)
        and np.allclose(back.stored_direction, scan.stored_direction, rtol=0, atol=TOLERANCE)
    )
    if not same:
        path.unlink()
        raise DataError(f"{path} does not lie on its scan when it is read again, so it was deleted: save the scan anew")


def volume_ml(mask: np.ndarray, scan: Scan) -> float:
    """Volume of what is True, in millilitres."""
    return float(np.count_nonzero(mask) * np.prod(scan.spacing) / 1000)
