"""A mask in the geometry of the scan that it was found in, written and read back."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.scans import SUFFIXES, Scan, read_scan, stem_of, suffix_of
from fedshift.schema.errors import DataError

TOLERANCE = 1e-3
"""Millimetres, and direction cosines: NIfTI holds 32 bits of each."""


def mask_path(image: Path, out: Path) -> Path:
    """``<stem>_mask`` in the image's own format; of a DICOM folder NIfTI."""
    suffix = None if image.is_dir() else suffix_of(image)
    return out / f"{stem_of(image.resolve() if image.is_dir() else image)}_mask{suffix or SUFFIXES[0]}"


def write_mask(mask: np.ndarray, scan: Scan, path: Path, *, source: Path) -> None:
    """Write a mask on the grid of the file that ``scan`` was read from, and read it back.

    Args:
        mask: bool, as ``scan.voxels``: RAS, ``[z, y, x]``.
        scan: gives the geometry, and how the file itself was oriented.
        path: its suffix chooses the format.
        source: the scan's file. Of NIfTI the mask has both of the header's positions (qform and sform) with their
            codes, since readers differ in which they believe.

    Raises:
        DataError: it cannot be written, or is not the same when it is read.
    """
    image = sitk.GetImageFromArray(np.ascontiguousarray(mask, dtype=np.uint8))
    image.SetSpacing(scan.spacing)
    image.SetOrigin(scan.origin)
    image.SetDirection(scan.direction)
    image = sitk.DICOMOrient(image, scan.stored)
    try:
        if is_nifti(source):
            _write_nifti(sitk.GetArrayFromImage(image), source, path)
        else:
            sitk.WriteImage(image, str(path), useCompression=True)
    except (RuntimeError, OSError):
        path.unlink(missing_ok=True)
        raise DataError(f"{path} cannot be written: make room or give write permission there") from None
    back = read_scan(path)
    same = (
        np.array_equal(back.voxels, mask)
        and back.stored == scan.stored
        and np.allclose(back.spacing, scan.spacing, rtol=0, atol=TOLERANCE)
        and np.allclose(back.origin, scan.origin, rtol=1e-6, atol=TOLERANCE)
        and np.allclose(back.stored_direction, scan.stored_direction, rtol=0, atol=TOLERANCE)
        and (not is_nifti(source) or _positions(path) == _positions(source))
    )
    if not same:
        path.unlink()
        raise DataError(f"{path} does not lie on its scan when it is read again, so it was deleted: save the scan anew")


def is_nifti(path: Path) -> bool:
    """Whether a path names a NIfTI file."""
    return not path.is_dir() and suffix_of(path) in (".nii", ".nii.gz")


def _write_nifti(grid: np.ndarray, source: Path, path: Path) -> None:
    """``grid`` [z, y, x] as the file itself is oriented, under the source's header without its words."""
    stored = nibabel.load(source)
    header = stored.header.copy()
    header.set_data_dtype(np.uint8)
    header.set_slope_inter(1, 0)
    header["cal_min"] = header["cal_max"] = 0
    for words in ("descrip", "aux_file", "intent_name"):
        header[words] = b""
    header.extensions.clear()
    values = np.ascontiguousarray(grid.transpose(2, 1, 0)).reshape(stored.shape)
    nibabel.save(type(stored)(values, None, header), path)


def _positions(path: Path) -> tuple[object, ...]:
    header = nibabel.load(path).header
    forms = header.get_qform(), header.get_sform()
    return *(form.tobytes() for form in forms), int(header["qform_code"]), int(header["sform_code"])


def volume_ml(mask: np.ndarray, scan: Scan) -> float:
    """Volume of what is True, in millilitres."""
    return float(np.count_nonzero(mask) * np.prod(scan.spacing) / 1000)
