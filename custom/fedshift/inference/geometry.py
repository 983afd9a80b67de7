"""Voxels as their file has them: from the RAS orientation in which scans are read to the file's, and back."""

from __future__ import annotations

import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.scans import ORIENTATION, Scan


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


def as_stored(voxels: np.ndarray, scan: Scan) -> tuple[np.ndarray, sitk.Image]:
    """Voxels [z, y, x] in RAS as MONAI's readers give them: [i, j, k] as in the file, with the file's grid."""
    image = stored_image(np.ascontiguousarray(voxels, dtype=np.float32), scan)
    return np.ascontiguousarray(sitk.GetArrayFromImage(image).T), image


def from_stored(grid: np.ndarray, stored: sitk.Image) -> np.ndarray:
    """[i, j, k] as in the file as voxels [z, y, x] in RAS."""
    image = sitk.GetImageFromArray(np.ascontiguousarray(grid.T))
    image.CopyInformation(stored)
    back: np.ndarray = sitk.GetArrayFromImage(sitk.DICOMOrient(image, ORIENTATION))
    return back


def stored_affine(stored: sitk.Image) -> np.ndarray:
    """From indices [i, j, k] to mm in the world of MONAI and nibabel, which points right, anterior, superior."""
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(stored.GetDirection(), (3, 3)) * np.array(stored.GetSpacing())
    affine[:3, 3] = stored.GetOrigin()
    lps_to_ras: np.ndarray = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    return lps_to_ras
