"""What a NIfTI header says of the voxels' places: it may say so twice (qform and sform), differently, or not at all.

ITK takes voxel sizes from ``pixdim``, which the qform goes with, also where only the sform says how the axes lie;
nibabel takes them from the sform.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.file_header import Unclear
from fedshift.data.nifti_header import UNITS, affine_in_mm, as_itk_reads, header_of, length_code

MAX_POSITION_DIFFERENCE_MM = 0.1
"""Positions that differ by less than this count as the same."""
QUATERNION_ROUNDING = 4e-7
"""By which a² may be off in a quaternion: a header has b, c and d in 32 bits, and a is what they leave to length 1."""
SPACING_DIFFERENCE = 5e-3
"""Relative difference of voxel sizes up to which they are one, rounded differently."""


def spacing_fault(path: Path) -> str | None:
    """Describe a header whose only affine, the sform, has other voxel sizes than its pixdim; None if it has not."""
    header = header_of(path)
    if header is None or header["qform_code"] or not header["sform_code"]:
        return None
    of_sform = np.linalg.norm(header.get_sform()[:3, :3], axis=0)
    of_pixdim = np.asarray(header["pixdim"], float)[1:4]
    if np.allclose(of_pixdim, of_sform, rtol=SPACING_DIFFERENCE, atol=0):
        return None
    pixdim, sform = (" x ".join(f"{size:.4g}" for size in sizes) for sizes in (of_pixdim, of_sform))
    return f"has voxels of {pixdim} mm by its pixdim, which ITK reads, and of {sform} mm by its sform, as nibabel reads"


def unclear_positions(path: Path) -> Iterator[Unclear]:
    """What is unclear in where the voxels of a NIfTI file lie; nothing of another file."""
    header = header_of(path)
    if header is None:
        return
    if (code := length_code(header)) not in UNITS:
        mend = "write the unit of its lengths into its header"
        yield Unclear(
            "unit-unknown",
            f"has lengths in a unit that NIfTI does not have (code {code})",
            "they are taken for mm",
            mend,
        )
    has_qform, has_sform = bool(header["qform_code"]), bool(header["sform_code"])
    if not (has_qform or has_sform):
        direction = _direction_and_affine(path)[0]
        code = sitk.DICOMOrientImageFilter.GetOrientationFromDirectionCosines(direction)
        what = "says no orientation in its header, neither as qform nor as sform"
        yield Unclear(
            "orientation-missing",
            what,
            f"it is taken for {code}",
            "check that front and back are right",
            is_twofold=False,
        )
        return
    mend = "look where the image and its mask lie in a viewer, and write the header again with both the same"
    if not (has_qform and has_sform):
        return
    try:
        apart = _forms_apart(header)
    except ValueError:  # nibabel computes none; SimpleITK, which reads the scan, takes one or the other
        shape, sform = header.get_data_shape(), affine_in_mm(header.get_sform(), header)
        is_sform = _most_apart(_direction_and_affine(path)[1], sform, shape) <= MAX_POSITION_DIFFERENCE_MM
        used = "the sform" if is_sform else "the quaternion, scaled to length 1,"
        what = "has a qform that is no rotation, because its quaternion is longer than 1"
        yield Unclear("forms-differ", what, f"{used} is used", mend)
        return
    if apart is not None:
        what = f"has a qform and an sform in its header that differ by up to {apart:.3g} mm"
        yield Unclear("forms-differ", what, "the volume in ml is computed from the qform", mend)


def geometry_words(path: Path) -> str:
    """From what of the header ITK takes the voxels' places."""
    header = header_of(path)
    if not (header["qform_code"] or header["sform_code"]):
        return "voxel sizes alone, neither qform nor sform"
    if not header["sform_code"]:
        return "qform"
    if not header["qform_code"]:
        return "sform"
    try:
        apart = _forms_apart(header)
    except ValueError:
        return "qform or sform, which differ"
    return "qform and sform, which agree" if apart is None else "qform; the sform differs"


def _forms_apart(header: Any) -> float | None:
    """How far qform and sform put a voxel apart at most, in mm; None if it is no more than rounding.

    Raises:
        ValueError: there is no qform.
    """
    shape = header.get_data_shape()
    qform, sform = (affine_in_mm(form, header) for form in (header.get_qform(), header.get_sform()))
    most, at_first_voxel = _most_apart(qform, sform, shape), _most_apart(qform, sform, (1, 1, 1))
    rounding = _turn_by_rounding(header) * _extent(sform, shape)
    differ = at_first_voxel > MAX_POSITION_DIFFERENCE_MM or most > MAX_POSITION_DIFFERENCE_MM + rounding
    return most if differ else None


def _turn_by_rounding(header: Any) -> float:
    """Radians by which rounding may have turned a qform; most, a thousandth, near half a turn, as axial scans have."""
    b, c, d = (float(header[f"quatern_{axis}"]) for axis in "bcd")
    a2 = max(0.0, 1 - b * b - c * c - d * d)
    least, most = math.sqrt(max(0.0, a2 - QUATERNION_ROUNDING)), math.sqrt(a2 + QUATERNION_ROUNDING)
    return 2 * max(most - math.sqrt(a2), math.sqrt(a2) - least)


def _extent(affine: np.ndarray, shape: Sequence[int]) -> float:
    """The distance in mm from a volume's first voxel to its last."""
    return float(np.linalg.norm(affine[:3, :3] @ (np.array(shape[:3]) - 1)))


def _most_apart(one: np.ndarray, other: np.ndarray, shape: Sequence[int]) -> float:
    """Largest distance in mm between the places of a volume's corners by two affines."""
    corners = np.array([[i, j, k, 1] for i in (0, 1) for j in (0, 1) for k in (0, 1)], float)
    corners[:, :3] *= np.array(shape[:3]) - 1
    apart = corners @ (one - other).T
    return float(np.linalg.norm(apart[:, :3], axis=1).max())


def _direction_and_affine(path: Path) -> tuple[tuple[float, ...], np.ndarray]:
    """The direction that SimpleITK reads, and its affine in the world of NIfTI (right, anterior, superior)."""
    reader = sitk.ImageFileReader()
    with as_itk_reads(path) as file:
        reader.SetFileName(str(file))
        reader.ReadImageInformation()
    n = reader.GetDimension()
    direction = np.reshape(reader.GetDirection(), (n, n))[:3, :3]
    affine = np.eye(4)
    affine[:3, :3] = direction * np.array(reader.GetSpacing()[:3])
    affine[:3, 3] = reader.GetOrigin()[:3]
    return tuple(direction.ravel().tolist()), np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
