"""Does a scan look like those that the model was made for? What is odd about it, in sentences.

Nothing here stops a prediction. Ranges are wide: those of the public prostate data, and beyond.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.casefiles import is_dummy
from fedshift.data.scans import Scan
from fedshift.inference.masks import is_nifti

BODY_PART, MODALITY = "0018|0015", "0008|0060"
LOWEST = -100
"""Below it intensities are Hounsfield units or have been normalised."""
APART = 0.1
"""Millimetres between two positions that are the same."""
FEW_VALUES = 16
"""So many different intensities a mask may have, an MRI scan has more."""


@dataclass(frozen=True)
class Expected:
    """Ranges of a kind of scan: millimetres, numbers of slices, millilitres. Body parts are DICOM's words."""

    modality: str
    body_parts: tuple[str, ...]
    field_of_view: tuple[float, float]
    pixel: tuple[float, float]
    slice_distance: tuple[float, float]
    slices: tuple[int, int]
    volume_ml: tuple[float, float]


EXPECTED = {
    "prostate": Expected(
        modality="MR",
        body_parts=("PROSTATE", "PELVIS", "ABDOMEN", "WHOLEBODY"),
        field_of_view=(90, 450),
        pixel=(0.2, 2.0),
        slice_distance=(0.8, 6.0),
        slices=(8, 160),
        volume_ml=(5, 250),
    )
}
"""By what is segmented."""


def tags_of(path: Path) -> dict[str, str]:
    """What the first slice of a DICOM folder says of modality and body part; nothing of other files."""
    if not path.is_dir():
        return {}
    series = sitk.ImageSeriesReader.GetGDCMSeriesIDs(str(path))
    files = sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(path), series[0]) if series else ()
    if not files:
        return {}
    reader = sitk.ImageFileReader()
    reader.SetFileName(files[0])
    reader.ReadImageInformation()
    return {key: reader.GetMetaData(key).strip() for key in (BODY_PART, MODALITY) if reader.HasMetaDataKey(key)}


def about_positions(path: Path) -> Iterator[str]:
    """Whether a NIfTI file says two different things of where it lies."""
    if not is_nifti(path):
        return
    header = nibabel.load(path).header
    if not (header["qform_code"] and header["sform_code"]):
        return
    corners = np.array([[i, j, k, 1] for i in (0, 1) for j in (0, 1) for k in (0, 1)], float)
    corners[:, :3] *= np.array(header.get_data_shape()[:3]) - 1
    apart = corners @ (header.get_qform() - header.get_sform()).T
    most = float(np.linalg.norm(apart[:, :3], axis=1).max())
    if most > APART:
        yield (
            f"has two positions in its header, up to {most:.3g} mm apart (qform and sform): the volume is that of the "
            "qform, the mask has both"
        )


def about_scan(scan: Scan, tags: Mapping[str, str], *, target: str) -> Iterator[str]:
    """What is odd about a scan, before anything is predicted; ``target`` is the foreground's class."""
    low = float(scan.voxels.min())
    if low < LOWEST:
        yield f"has intensities down to {low:g}, as CT or normalised images have: is it the MRI itself?"
    different = len(np.unique(scan.voxels))
    if different <= FEW_VALUES:
        yield f"has {different} different intensities only: is it a mask?"
    if is_dummy(scan):
        yield "has voxels of 1 x 1 x 1 mm and no rotation, as if its geometry had been lost: the volume may be wrong"
    expected = EXPECTED.get(target)
    if expected is None:
        return
    modality, part = tags.get(MODALITY, ""), tags.get(BODY_PART, "")
    if modality and modality != expected.modality:
        yield f"says it is of modality {modality}, the model knows {expected.modality} only"
    if part and not any(word in part.upper().replace(" ", "") for word in expected.body_parts):
        yield f"says it shows {part}, the model looks for {target}"
    z, y, x = scan.voxels.shape
    sx, sy, sz = scan.spacing
    for what, values, (least, most), unit in (
        ("field of view", (x * sx, y * sy), expected.field_of_view, " mm"),
        ("pixel size", (sx, sy), expected.pixel, " mm"),
        ("distance of slices", (sz,), expected.slice_distance, " mm"),
        ("number of slices", (z,), expected.slices, ""),
    ):
        if min(values) < least or max(values) > most:
            said = " x ".join(f"{value:.4g}" for value in values)
            yield f"has a {what} of {said}{unit}, axial scans of the {target} have {least:g} to {most:g}{unit}"


def about_volume(millilitres: float, *, target: str) -> Iterator[str]:
    """What is odd about what was found."""
    if not millilitres:
        yield f"no {target} was found: is it the right scan, and the right site's statistics?"
        return
    expected = EXPECTED.get(target)
    if expected is not None and not expected.volume_ml[0] <= millilitres <= expected.volume_ml[1]:
        least, most = expected.volume_ml
        yield f"{millilitres:.1f} ml were found, a {target} has {least:g} to {most:g} ml: look at the mask"
