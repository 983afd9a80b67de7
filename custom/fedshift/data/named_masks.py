"""Masks whose structures have names: DICOM SEG, RT Structure Sets, and 3D Slicer's segmentations."""

from __future__ import annotations

from pathlib import Path

from fedshift.data import dicom_masks, slicer_masks
from fedshift.data.dicom_masks import is_dicom_mask
from fedshift.data.labels import Labels
from fedshift.data.scans import Scan
from fedshift.data.slicer_masks import is_slicer_mask
from fedshift.data.structures import Remark


def names_structures(path: Path) -> bool:
    """Whether a mask names its structures; of another one the values have to be known.

    Raises:
        ScanError: it may not be read.
    """
    return is_slicer_mask(path) or is_dicom_mask(path)


def structures_in(path: Path) -> tuple[str, ...]:
    """The names of a mask's structures, in the file's order.

    Raises:
        ScanError: it cannot be read.
        ConfigError: it is DICOM, and highdicom is not installed.
    """
    return slicer_masks.segment_names(path) if is_slicer_mask(path) else dicom_masks.structures_in(path)


def read_named_mask(
    path: Path,
    image: Scan,
    labels: Labels | None,
    *,
    interpolate: bool = False,
    direction: tuple[float, ...] | None = None,
) -> tuple[Scan, list[Remark]]:
    """Read a mask that names its structures on the grid of its image.

    Args:
        path: the mask.
        image: the image that it belongs to.
        labels: what is wanted, see `fedshift.data.structures.paint`.
        interpolate: fill slices between two contours of a structure set, see `fedshift.data.contours`.
        direction: of 3D Slicer's segmentations, see `fedshift.data.slicer_masks.read_slicer_mask`.

    Returns:
        The mask, with the first of each class's values in ``labels``; and remarks.

    Raises:
        ScanError: it cannot be read, does not lie on the image, or its structures are not the classes.
        ConfigError: it is DICOM, and highdicom is not installed.
    """
    if is_slicer_mask(path):
        return slicer_masks.read_slicer_mask(path, image, labels, direction=direction)
    return dicom_masks.read_mask(path, image, labels, interpolate=interpolate)
