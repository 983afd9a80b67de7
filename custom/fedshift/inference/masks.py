"""Write a mask in the geometry of its scan, and verify it by reading it back."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.nifti import is_nifti
from fedshift.data.scan_file import SUFFIXES, suffix_of
from fedshift.data.scans import Scan, read_scan, stem_of
from fedshift.schema.errors import DataError

TOLERANCE = 1e-3
"""Allowed difference of positions (mm) and direction cosines; NIfTI stores both as float32."""

POSITION_FIELDS = (
    *("pixdim", "qform_code", "quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z"),
    *("sform_code", "srow_x", "srow_y", "srow_z"),
)
"""Of a NIfTI header: what its qform and its sform are made of."""


def mask_path(image: Path, out: Path) -> Path:
    """The mask's path: ``<stem>_mask`` in the image's own format, or NIfTI for DICOM."""
    if image.is_dir():
        return out / f"{stem_of(image.resolve())}_mask{SUFFIXES[0]}"
    suffix = suffix_of(image)
    return out / f"{stem_of(image)}_mask{SUFFIXES[0] if suffix in (None, '.nii.zst') else suffix}"


def write_mask(mask: np.ndarray, scan: Scan, path: Path, *, source: Path) -> None:
    """Write a mask on the grid of the file that ``scan`` was read from, and read it back.

    Args:
        mask: bool, or classes uint8, ``[z, y, x]`` in RAS, as ``scan.voxels``.
        scan: its geometry, and the orientation of the original file.
        path: the suffix selects the format.
        source: the scan's file. From a NIfTI source, qform and sform are both copied with their codes, because
            readers differ in which one they use.

    Raises:
        DataError: the mask cannot be written, or reading it back gives other voxels or another geometry.
    """
    image, grid = stored_grid(mask, scan)
    try:
        if is_nifti(source):
            _write_nifti(grid, source, path)
        else:
            sitk.WriteImage(image, str(path), useCompression=True)
    except (RuntimeError, OSError):
        path.unlink(missing_ok=True)
        said = f"{path} cannot be written: free disk space or give write permission there"
        raise DataError("file-unwritable", said) from None
    back = read_scan(path)
    same = (
        np.allclose(back.stored_direction, scan.stored_direction, rtol=0, atol=TOLERANCE)
        and _lies_on(back, mask, scan)
        and (not is_nifti(source) or _position_fields(path) == _position_fields(source))
    )
    if not same:
        path.unlink()
        said = f"{path} does not match the geometry of its scan when read back, so it was deleted"
        raise DataError("mask-differs", f"{said}: export the scan again")


def stored_grid(mask: np.ndarray, scan: Scan) -> tuple[sitk.Image, np.ndarray]:
    """A mask in the orientation of the file that ``scan`` was read from, and its voxels there [z, y, x]."""
    image = stored_image(np.ascontiguousarray(mask, dtype=np.uint8), scan)
    return image, sitk.GetArrayFromImage(image)


def stored_image(voxels: np.ndarray, scan: Scan) -> sitk.Image:
    """Voxels [z, y, x] of ``scan``'s shape as an image in the orientation of the file that it was read from."""
    image = sitk.GetImageFromArray(voxels)
    image.SetSpacing(scan.spacing)
    image.SetOrigin(scan.origin)
    image.SetDirection(scan.direction)
    return sitk.DICOMOrient(image, scan.stored)


def _lies_on(back: Scan, mask: np.ndarray, scan: Scan) -> bool:
    """Whether a scan has the voxels of ``mask``, each where ``scan`` has it, whatever order their axes have.

    Axes turned by exactly 45 degrees have no nearest direction of the body, and rounding decides which they are given.
    """
    there, wanted = _affine(back), _affine(scan)
    to_back = np.rint(np.linalg.inv(there) @ wanted)  # from index to index
    placed = there @ to_back
    sizes, wanted_sizes = (np.linalg.norm(affine[:3, :3], axis=0) for affine in (placed, wanted))
    if not (
        sizes.all()
        and np.allclose(sizes, wanted_sizes, rtol=0, atol=TOLERANCE)
        and np.allclose(placed[:3, :3] / sizes, wanted[:3, :3] / wanted_sizes, rtol=0, atol=TOLERANCE)
        and np.allclose(placed[:3, 3], wanted[:3, 3], rtol=1e-6, atol=TOLERANCE)
    ):
        return False
    turn, shift = to_back[:3, :3], to_back[:3, 3]
    if not ((np.abs(turn).sum(0) == 1).all() and (np.abs(turn).sum(1) == 1).all()):
        return False
    axes = np.abs(turn).argmax(0)  # of `back`, for each of the scan's
    flipped = turn.sum(0) < 0
    placed_voxels = back.voxels.T.transpose(axes)  # views: a copy of a large scan's indices takes 100 bytes a voxel
    if not np.array_equal(shift[axes], np.where(flipped, np.array(placed_voxels.shape) - 1, 0)):
        return False
    return np.array_equal(np.flip(placed_voxels, tuple(np.flatnonzero(flipped).tolist())), mask.T)


def _affine(scan: Scan) -> np.ndarray:
    """From an index x, y, z to mm, in ITK's world."""
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(scan.direction, (3, 3)) * np.array(scan.spacing)
    affine[:3, 3] = scan.origin
    return affine


def _write_nifti(grid: np.ndarray, source: Path, path: Path) -> None:
    """Write ``grid`` [z, y, x], in the file's own orientation, with the source's header but without its text fields."""
    stored = nibabel.load(source)
    header = stored.header.copy()
    header.set_data_dtype(np.uint8)
    header.set_slope_inter(1, 0)
    header["cal_min"] = header["cal_max"] = 0
    for text_field in ("descrip", "aux_file", "intent_name"):
        header[text_field] = b""
    header.extensions.clear()
    values = np.ascontiguousarray(grid.transpose(2, 1, 0))  # one volume, also of a 4D file
    nibabel.save(type(stored)(values, None, header), path)


def _position_fields(path: Path) -> tuple[bytes, ...]:
    """The `POSITION_FIELDS` of a NIfTI file: its matrices would not do, as not every quaternion has one.

    The sizes after the third, such as seconds between the volumes of a 4D file, are no positions.
    """
    header = nibabel.load(path).header
    return tuple(np.ravel(header[name])[:4].astype(float).tobytes() for name in POSITION_FIELDS)


def volume_ml(mask: np.ndarray, scan: Scan) -> float:
    """Volume of the mask in millilitres."""
    return float(np.count_nonzero(mask) * np.prod(scan.spacing) / 1000)
