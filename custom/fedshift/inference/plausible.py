"""Check whether a scan looks like those that the model was trained for, and describe anything unusual.

These are warnings: they never stop a prediction. What is usual is in ``apps/expected/<class>.yaml``, for classes that
have such a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import nibabel
import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.casefiles import is_dummy
from fedshift.data.scans import Scan
from fedshift.data.series import NoSeries, is_dicom, is_series, list_series
from fedshift.inference.masks import is_nifti
from fedshift.schema.job import read_yaml
from fedshift.schema.names import one_line
from fedshift.schema.strict import Strict
from fedshift.schema.task_files import apps_dir

BODY_PART, MODALITY = "0018|0015", "0008|0060"
FOLDER = "expected"
"""Of the files that say what scans of a class are like, below ``apps/``."""
MIN_INTENSITY = -100
"""A lower intensity suggests Hounsfield units or normalised intensities."""
MAX_POSITION_DIFFERENCE_MM = 0.1
"""Positions that differ by less than this count as the same."""
MOST_TAG = 64
"""Characters of a DICOM tag that are shown; the standard has at most 16 for these."""
MAX_MASK_VALUES = 16
"""A volume with at most this many distinct intensities may be a mask."""


class Expected(Strict):
    """Expected ranges: lengths in mm, number of slices, foreground volume in ml; ``body_parts`` are DICOM terms."""

    modality: str
    body_parts: tuple[str, ...]
    field_of_view: tuple[float, float]
    pixel: tuple[float, float]
    slice_distance: tuple[float, float]
    slices: tuple[int, int]
    volume_ml: tuple[float, float]


@cache
def expected_of(target: str) -> Expected | None:
    """What scans of a foreground class are like; None if no file says."""
    for path in (apps_dir() / FOLDER).glob("*.yaml"):
        if path.stem == target:
            return Expected.parse(read_yaml(path), where=str(path))
    return None


def read_tags(path: Path) -> dict[str, str]:
    """Modality and body part from the first slice of a DICOM series; empty for other files."""
    if not is_dicom(path):
        return {}
    try:
        file = list_series(path).files[0] if is_series(path) else path
    except NoSeries:
        return {}
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(file))
    reader.ReadImageInformation()
    # A tag may hold any bytes, and these two are shown on the terminal.
    return {
        key: one_line(reader.GetMetaData(key))[:MOST_TAG] for key in (BODY_PART, MODALITY) if reader.HasMetaDataKey(key)
    }


def check_positions(path: Path) -> Iterator[str]:
    """Warn if the qform and sform of a NIfTI file disagree, or if its qform is no rotation."""
    if not is_nifti(path):
        return
    header = nibabel.load(path).header
    if not (header["qform_code"] and header["sform_code"]):
        return
    shape, sform = header.get_data_shape(), header.get_sform()
    try:
        qform = header.get_qform()
    except ValueError:  # nibabel computes none; SimpleITK, which reads the scan, takes one or the other
        is_sform = _most_apart(_affine_read(path), sform, shape) <= MAX_POSITION_DIFFERENCE_MM
        used = "the sform" if is_sform else "the quaternion, scaled to length 1,"
        yield (
            f"has a qform that is no rotation, because its quaternion is longer than 1: {used} is used, and the mask "
            "gets both"
        )
        return
    most = _most_apart(qform, sform, shape)
    if most > MAX_POSITION_DIFFERENCE_MM:
        yield (
            f"has a qform and an sform in its header that differ by up to {most:.3g} mm: the volume in ml is computed "
            "from the qform, and the mask gets both"
        )


def _most_apart(one: np.ndarray, other: np.ndarray, shape: Sequence[int]) -> float:
    """Largest distance in mm between the places of a volume's corners by two affines."""
    corners = np.array([[i, j, k, 1] for i in (0, 1) for j in (0, 1) for k in (0, 1)], float)
    corners[:, :3] *= np.array(shape[:3]) - 1
    apart = corners @ (one - other).T
    return float(np.linalg.norm(apart[:, :3], axis=1).max())


def _affine_read(path: Path) -> np.ndarray:
    """The affine with which SimpleITK reads a file, in the world of NIfTI, which points right, anterior, superior."""
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    n = reader.GetDimension()
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(reader.GetDirection(), (n, n))[:3, :3] * np.array(reader.GetSpacing()[:3])
    affine[:3, 3] = reader.GetOrigin()[:3]
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine


def check_scan(scan: Scan, tags: Mapping[str, str], *, target: str, signed: bool = False) -> Iterator[str]:
    """Warn about unusual properties of a scan.

    Args:
        scan: the scan.
        tags: of `read_tags`.
        target: the foreground class.
        signed: whether the model was trained on images below 0, such as CT.
    """
    low = float(scan.voxels.min())
    if low < MIN_INTENSITY and not signed:
        yield f"has intensities down to {low:g}, as CT or normalised images have: is it an unprocessed MRI scan?"
    n_values = len(np.unique(scan.voxels))
    if n_values <= MAX_MASK_VALUES:
        yield f"has only {n_values} different intensities: is it a mask?"
    if is_dummy(scan):
        yield "has voxels of 1 x 1 x 1 mm and no rotation, as if its geometry had been lost: its volume may be wrong"
    expected = expected_of(target)
    if expected is None:
        return
    modality, body_part = tags.get(MODALITY, ""), tags.get(BODY_PART, "")
    if modality and modality != expected.modality:
        yield f"has modality {modality}, but the model was trained on {expected.modality} only"
    if body_part and not any(name in body_part.upper().replace(" ", "") for name in expected.body_parts):
        yield f"has body part {body_part}, but the model segments the {target}"
    z, y, x = scan.voxels.shape
    sx, sy, sz = scan.spacing
    for what, values, (least, most), unit in (
        ("field of view", (x * sx, y * sy), expected.field_of_view, " mm"),
        ("pixel size", (sx, sy), expected.pixel, " mm"),
        ("slice distance", (sz,), expected.slice_distance, " mm"),
        ("number of slices", (z,), expected.slices, ""),
    ):
        if min(values) < least or max(values) > most:
            measured = " x ".join(f"{value:.4g}" for value in values)
            yield f"has a {what} of {measured}{unit}; axial scans of the {target} have {least:g} to {most:g}{unit}"


def check_volume(millilitres: float, *, target: str) -> Iterator[str]:
    """Warn if the volume of the mask is unusual."""
    if not millilitres:
        yield f"no {target} was found: check the scan, and whether these are the right site's statistics"
        return
    expected = expected_of(target)
    if expected is not None and not expected.volume_ml[0] <= millilitres <= expected.volume_ml[1]:
        least, most = expected.volume_ml
        yield f"the mask has {millilitres:.1f} ml, but a {target} has {least:g} to {most:g} ml: look at the mask"
