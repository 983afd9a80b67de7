"""Check whether a scan looks like those that the model was trained for, and describe anything unusual.

These are warnings: they never stop a prediction. What is usual is in ``apps/expected/<class>.yaml``, for classes that
have such a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.scan_file import ScanError
from fedshift.data.scans import Scan, odd_size
from fedshift.data.series import first_file, is_dicom
from fedshift.schema.names import one_line
from fedshift.schema.strict import Strict
from fedshift.schema.task_files import apps_dir
from fedshift.schema.yaml_file import read_yaml

BODY_PART, MODALITY = "0018|0015", "0008|0060"
FOLDER = "expected"
"""Of the files that say what scans of a class are like, below ``apps/``."""
MIN_INTENSITY = -100
"""A lower intensity suggests Hounsfield units or normalised intensities."""
CT = "CT"
"""The modality whose intensities are Hounsfield units."""
MOST_TAG = 64
"""Characters of a DICOM tag that are shown; the standard has at most 16 for these."""
REAL = "if the voxels are of this size, add --true-spacing"
"""The mend for a header that is taken for a placeholder."""
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
        file = first_file(path)
    except ScanError:
        return {}
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(file))
    reader.ReadImageInformation()
    # A tag may hold any bytes, and these two are shown on the terminal.
    return {
        key: one_line(reader.GetMetaData(key))[:MOST_TAG] for key in (BODY_PART, MODALITY) if reader.HasMetaDataKey(key)
    }


def check_positions(scan: Scan) -> Iterator[str]:
    """Warn if the header of a scan's file says two places of its voxels, or no orientation."""
    for unclear in scan.unclear:
        remedy = ", and the mask gets both" if unclear.is_twofold else f": {unclear.remedy}"
        yield f"{unclear.what}{':' if unclear.is_twofold else ','} {unclear.used}{remedy}"


def without_spacing(*, by_matrix: bool) -> str:
    """What is done with a scan whose header holds a placeholder, and what to do if it holds none.

    ``by_matrix``: as ``resamples_by_matrix`` of `fedshift.inference.model.Model`.
    """
    resampled = "it is resampled by data.matrix and not by its 1 mm, and " if by_matrix else ""
    return (
        f"has voxels of 1 x 1 x 1 mm and no rotation, as if its geometry had been lost: {resampled}its volume may be "
        f"wrong; {REAL}"
    )


def check_scan(scan: Scan, tags: Mapping[str, str], *, target: str, signed: bool = False) -> Iterator[str]:
    """Warn about unusual properties of a scan.

    Args:
        scan: the scan.
        tags: of `read_tags`.
        target: the foreground class.
        signed: whether the model is known to be trained on images below 0, such as CT.
    """
    if odd := odd_size(scan):
        yield f"{odd}: look at the unit of the lengths in its header"
    expected = expected_of(target)
    modality, body_part = tags.get(MODALITY, ""), tags.get(BODY_PART, "")
    low = float(scan.voxels.min())
    if low < MIN_INTENSITY and not signed and CT not in (modality, expected and expected.modality):
        yield f"has intensities down to {low:g}: right for CT; for MRI, is it an unprocessed scan?"
    if np.unique(scan.voxels.ravel()[::997]).size <= MAX_MASK_VALUES:  # most scans are told by a few of their voxels
        n_values = np.unique(scan.voxels).size
        if n_values <= MAX_MASK_VALUES:
            yield f"has only {n_values} different intensities: is it a mask?"
    if expected is None:
        return
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


def check_found(voxels: int, *, target: str) -> Iterator[str]:
    """Warn if nothing of a class was found."""
    if not voxels:
        yield f"no {target} was found: check the scan, and whether these are the right site's statistics"


def check_volume(millilitres: float, *, target: str) -> Iterator[str]:
    """Warn if the volume of the mask is unusual."""
    if not millilitres:
        yield from check_found(0, target=target)
        return
    expected = expected_of(target)
    if expected is not None and not expected.volume_ml[0] <= millilitres <= expected.volume_ml[1]:
        least, most = expected.volume_ml
        yield f"the mask has {millilitres:.1f} ml, but a {target} has {least:g} to {most:g} ml: look at the mask"
