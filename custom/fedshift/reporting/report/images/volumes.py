"""What a report shows of a volume: a few planes of it, with the classes of prediction and reference, and its Dice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from fedshift.data.picture_scan import as_picture
from fedshift.data.prepared import read_images
from fedshift.inference.overlay import shown_picture
from fedshift.runtime.segmentation import as_volume
from fedshift.tasks.base import Subset
from fedshift.tasks.evaluation.by_class import dice_by_class
from fedshift.tasks.segmentation.patch_task import Task
from fedshift.tasks.segmentation.patches import Patches

MARGIN = 0.45
"""Around the foreground, in parts of its size."""
SMALLEST_MM = 20.0
"""Side of a cut-out."""
BRIGHT, DARK = 0.995, 0.005
"""Quantiles of a sequence that become white and black."""
NAMES = ("axial", "coronal", "sagittal")
SIDES = (("R", "A"), ("R", "S"), ("A", "S"))
"""Of the patient, at the left edge and the upper edge of each plane."""
SEQUENCES = 4
"""At most so many are shown."""


@dataclass(frozen=True)
class Plane:
    """A cut-out of one plane (rows, columns)."""

    name: str
    images: Sequence[np.ndarray]
    """One for each sequence, uint8; of a picture one in its colours, (rows, columns, 3)."""
    predicted: np.ndarray
    """Classes, or sets of regions, as is the reference."""
    reference: np.ndarray
    regions: bool
    aspect: float
    """Height of a voxel over its width, in mm."""
    sides: tuple[str, str]


@dataclass(frozen=True)
class Volume:
    """A test case; ``scores`` is the Dice of each class that the site's masks outline, and the case has."""

    entry: int
    scores: Mapping[str, float]
    planes: Sequence[Plane]
    sequences: Sequence[str]
    """Names of the images of a plane; empty for a single one without a name."""

    @property
    def mean(self) -> float:
        """Over the classes, as in the tables; NaN without any."""
        return float(np.mean(list(self.scores.values()))) if self.scores else float("nan")


def volumes(task: Task, data: Patches, folder: Path, part: Subset, probabilities: Iterator[Tensor]) -> Iterator[Volume]:
    """One for each case, in order.

    Raises:
        DataError: a scan or a mask cannot be read.
    """
    dims, outlined, names = len(task.spatial), task.outlined(data), task.structures
    for index, batch in zip(data.eval_index(part), probabilities, strict=True):
        number = int(index[0])
        case = data.manifest.cases[number]
        segmentation = task.on_scan(as_volume(batch, dims), data, number)
        predicted, reference = task.compared(segmentation, data.reference(number))
        images = read_images(folder, data.manifest, case)[:SEQUENCES]
        by_class = dice_by_class(predicted, reference, 1 + len(names), regions=task.has_regions)
        each = {name: float(by_class[names.index(name)]) for name in outlined}
        scores = {name: score for name, score in each.items() if not np.isnan(score)}
        if data.manifest.pictured:
            spread, sides = case.spacing[1] / case.spacing[2], ("", "")
            masks = as_picture(predicted), as_picture(reference)
            shown = [Plane("picture", [shown_picture(images)], *masks, task.has_regions, spread, sides)]
            yield Volume(number, scores, shown, ())
            continue
        across = dims == len(NAMES)
        shown = _planes(images, predicted, reference, case.spacing, across=across, regions=task.has_regions)
        yield Volume(number, scores, shown, data.manifest.sequences[:SEQUENCES])


def _planes(
    images: np.ndarray,
    predicted: np.ndarray,
    reference: np.ndarray,
    spacing: Sequence[float],
    *,
    across: bool,
    regions: bool,
) -> list[Plane]:
    """Through the most foreground: one along each axis, or three neighbouring slices."""
    inside = reference > 0 if reference.any() else predicted > 0
    axes = range(inside.ndim)
    most = [int(inside.sum(tuple(other for other in axes if other != axis)).argmax()) for axis in axes]
    if not inside.any():
        most = [size // 2 for size in inside.shape]
    window = _window((predicted > 0) | (reference > 0), spacing)
    levels = [np.quantile(image.ravel()[:: max(image.size // 500_000, 1)], (DARK, BRIGHT)) for image in images]
    first = max(min(most[0] - 1, len(reference) - 3), 0)
    chosen = [(axis, most[axis]) for axis in axes] if across else [(0, k) for k in range(first, first + 3)]
    return [
        _plane(images, predicted, reference, spacing, window, levels, axis, place, regions=regions)
        for axis, place in chosen
        if place < reference.shape[axis]
    ]


def _plane(
    images: np.ndarray,
    predicted: np.ndarray,
    reference: np.ndarray,
    spacing: Sequence[float],
    window: Sequence[slice],
    levels: Sequence[np.ndarray],
    axis: int,
    place: int,
    *,
    regions: bool,
) -> Plane:
    rows, columns = (other for other in range(reference.ndim) if other != axis)
    cut = tuple(place if other == axis else window[other] for other in range(reference.ndim))

    def plane(volume: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(volume[cut][::-1, ::-1])  # RAS: the patient's right, front and head come first

    return Plane(
        f"{NAMES[axis]}, {place + 1} of {reference.shape[axis]}",
        [_grey(plane(image), *level) for image, level in zip(images, levels, strict=True)],
        plane(predicted),
        plane(reference),
        regions,
        spacing[rows] / spacing[columns],
        SIDES[axis],
    )


def _grey(image: np.ndarray, low: float, high: float) -> np.ndarray:
    scaled = (image.astype(np.float64) - low) / max(high - low, 1e-6)
    grey: np.ndarray = np.rint(255 * scaled.clip(0, 1)).astype(np.uint8)
    return grey


def _window(inside: np.ndarray, spacing: Sequence[float]) -> list[slice]:
    """A cube around what is there, in mm and with a margin; the whole volume if nothing is."""
    if not inside.any():
        return [slice(0, size) for size in inside.shape]
    ends = []
    for axis in range(inside.ndim):
        occupied = np.flatnonzero(inside.any(tuple(other for other in range(inside.ndim) if other != axis)))
        ends.append((int(occupied[0]), int(occupied[-1]) + 1))
    widest = max((end - start) * side for (start, end), side in zip(ends, spacing, strict=True))
    length = max(widest * (1 + 2 * MARGIN), SMALLEST_MM)
    window = []
    for (start, end), side, size in zip(ends, spacing, inside.shape, strict=True):
        voxels = min(round(length / side), size)
        first = min(max((start + end - voxels) // 2, 0), size - voxels)
        window.append(slice(first, first + voxels))
    return window
