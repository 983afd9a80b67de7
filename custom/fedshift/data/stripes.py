"""Slices that a structure lacks between two of its slices: a contour that was forgotten, a mask drawn on every n-th.

Organs in pairs, discs and lesions have gaps too, so a gap counts if it is short and what is on both sides overlaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # loads ndimage when it is used

FEW_SLICES, SHORT = 3, 10.0  # a short gap: at most so many slices, or so many millimetres
OVERLAP = 0.5  # of the smaller of two slices: what the other one has of it, on both sides of a gap
STRIPES = 3  # so many gaps along any axis are stripes; a single one counts along the axis of the slices only
COLUMNS = 0.1  # of a structure's voxels: so many in columns that are on and off again and again are stripes
ENDS = ("left", "back", "feet")  # where slices along x, y and z are counted from, in RAS
SHOWN = 8


@dataclass(frozen=True)
class Gap:
    """Slices ``first`` to ``last`` (from 0), which have no voxel, between two that have some.

    ``overlap``: of the smaller of these two, the part that lies over the other one.
    """

    first: int
    last: int
    overlap: float

    @property
    def slices(self) -> list[int]:
        return list(range(self.first, self.last + 1))

    def is_short(self, spacing: float) -> bool:
        return len(self.slices) <= FEW_SLICES or len(self.slices) * spacing <= SHORT


def gaps_along(mask: np.ndarray, axis: int) -> list[Gap]:
    moved = np.moveaxis(mask, axis, 0)
    present = np.flatnonzero(moved.any(axis=tuple(range(1, moved.ndim))))
    gaps = []
    for before, after in zip(present[:-1].tolist(), present[1:].tolist(), strict=True):
        if after > before + 1:
            below, above = moved[before], moved[after]
            overlap = np.count_nonzero(below & above) / min(np.count_nonzero(below), np.count_nonzero(above))
            gaps.append(Gap(before + 1, after - 1, overlap))
    return gaps


def stripes(mask: np.ndarray, names: Sequence[str], spacing: Sequence[float], *, slices_along: int) -> Iterator[str]:
    """What is wrong with each class of a mask that lacks slices, as the rest of a sentence about its file.

    ``mask`` has classes [z, y, x] in RAS, 0 outside; ``names`` that of value 1 first; ``spacing`` is mm along x, y, z;
    ``slices_along`` the axis (0 to 2 for x to z) along which the scan was made of slices.
    """
    for value, (name, box) in enumerate(zip(names, scipy.ndimage.find_objects(mask, len(names)), strict=True), start=1):
        if box is None:
            continue
        inside = mask[box] == value
        for axis in (2, 1, 0):
            array_axis = 2 - axis
            gaps = [gap for gap in gaps_along(inside, array_axis) if gap.overlap >= OVERLAP]
            gaps = [gap for gap in gaps if gap.is_short(spacing[axis])]
            count, start = mask.shape[array_axis], box[array_axis].start
            if len(gaps) >= (1 if axis in (2, slices_along) else STRIPES):
                empty = [start + number for gap in gaps for number in gap.slices]
                yield f"has no voxel of {name} in {in_words(empty, count, axis)}, between slices that have some"
                break
            if _striped_columns(inside, array_axis):
                first, last = start + 1, start + inside.shape[array_axis]
                yield f"has parts of {name} on every few of slices {first} to {last} of {_counted(count, axis)} only"
                break


def _striped_columns(inside: np.ndarray, axis: int) -> bool:
    """Whether single voxels, one above another with gaps, are more of a structure than chance explains."""
    steps = np.diff(inside, axis=axis, prepend=False, append=False)
    voxels, runs = inside.sum(axis), steps.sum(axis) // 2
    in_stripes = voxels[(runs >= STRIPES) & (runs == voxels)].sum()
    return bool(in_stripes > COLUMNS * voxels.sum())


def in_words(numbers: Sequence[int], count: int, axis: int) -> str:
    """Slices (from 0) in words: ``slices 7, 9 to 11 of 24 (counted from the feet)``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [f"{first + 1}" if first == last else f"{first + 1} to {last + 1}" for first, last in runs]
    more = f" and {len(parts) - SHOWN} more places" if len(parts) > SHOWN else ""
    word = "slice" if len(numbers) == 1 else "slices"
    return f"{word} {', '.join(parts[:SHOWN])}{more} of {_counted(count, axis)}"


def _counted(count: int, axis: int) -> str:
    return f"{count} (counted from the {ENDS[axis]})"
