"""Contours that lie on some slices, or between slices, brought onto the slices of an image.

Between two contours a structure is interpolated by its shape, as planning systems do: each pixel's distance from the
outline, negative outside, changes linearly from one contour to the next (Raya and Udupa, 1990). The first and the last
contour reach half of the distance to the next one further, so that volume is contours' area times distance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

OFF = 0.1
"""Of a slice: how far a contour may lie beside it and still be on it."""
MOST_TIMES, MOST_MM = 4.0, 30.0
"""The longest distance of two contours that is bridged: times the usual one, and millimetres."""
TIE = 0.01
"""Of a slice: see `fedshift.data.slabs.TIE`."""


class BetweenSlices(Exception):
    """Contours lie between slices, and further from each other than slices: what is on a slice is not known."""


@dataclass(frozen=True)
class OnSlices:
    """``voxels`` bool [slices, …]; ``made``: the slices that got an interpolated mask; ``moved``: the furthest that a
    contour was moved to a slice, in slices.
    """

    voxels: np.ndarray
    made: tuple[int, ...] = ()
    moved: float = 0


def plane_of(depth: float) -> float:
    """The place of a contour in slices: a whole number if it lies on one."""
    return round(depth) if abs(depth - round(depth)) <= OFF else round(depth, 2)


def usual_distance(places: np.ndarray) -> float:
    """Between contours, in slices; 1 for a single one."""
    return float(np.median(np.diff(places))) if len(places) > 1 else 1.0


def on_slices(
    planes: Mapping[float, np.ndarray], count: int, *, interpolate: bool, spacing: tuple[float, float, float]
) -> OnSlices:
    """Bring contours onto slices.

    Args:
        planes: place in slices (`plane_of`) -> its pixels, bool [rows, columns].
        count: how many slices there are.
        interpolate: fill slices between two contours. Otherwise a slice has what is on it; and, where contours lie
            between slices and no further from each other, the nearest one's.
        spacing: millimetres between slices, rows, columns.

    Raises:
        BetweenSlices: without ``interpolate``, contours between slices that are further from each other.
    """
    if interpolate:  # a contour around no voxel's centre has no shape
        planes = {place: shape for place, shape in planes.items() if shape.any()} or planes
    places = np.array(sorted(planes))
    shapes = [planes[place] for place in places.tolist()]
    usual = usual_distance(places)
    between = bool((np.abs(places - np.rint(places)) > OFF).any())
    if between and not interpolate and usual > 1 + OFF:
        raise BetweenSlices
    apart = np.diff(places, prepend=-np.inf, append=np.inf)
    reach = np.minimum(np.minimum(apart[:-1], apart[1:]), usual) / 2 if interpolate else np.full(len(places), 0.5)
    longest = min(MOST_TIMES * max(usual, 1.0), MOST_MM / spacing[0])
    voxels = np.zeros((count, *shapes[0].shape), bool)
    made, moved = [], 0.0
    for k in range(count):
        nearest = int(np.argmin(np.abs(places - k - TIE)))
        after = int(np.searchsorted(places, k))
        if places[nearest] == k:
            voxels[k] = shapes[nearest]
        elif interpolate and 0 < after < len(places) and places[after] - places[after - 1] <= longest:
            low, high = places[after - 1], places[after]
            voxels[k] = _between(shapes[after - 1], shapes[after], (k - low) / (high - low), spacing[1:])
            made.append(k)
        elif (interpolate or between) and -reach[nearest] <= k - places[nearest] + TIE < reach[nearest]:
            voxels[k] = shapes[nearest]
            if interpolate:
                made.append(k)
            else:
                moved = max(moved, abs(k - float(places[nearest])))
    return OnSlices(voxels, tuple(k for k in made if voxels[k].any()), moved)


def _between(one: np.ndarray, other: np.ndarray, part: float, spacing: tuple[float, ...]) -> np.ndarray:
    """The shape at ``part`` of the way from one to the other: bool [rows, columns]."""
    made = np.zeros_like(one)
    held = np.argwhere(one | other)
    if not len(held):
        return made
    (top, left), (bottom, right) = held.min(0), held.max(0) + 1
    box = np.s_[top:bottom, left:right]
    made[box] = (1 - part) * _depth(one[box], spacing) + part * _depth(other[box], spacing) > 0
    return made


def _depth(shape: np.ndarray, spacing: tuple[float, ...]) -> np.ndarray:
    """How far inside of the outline each pixel is, in mm, negative outside."""
    padded = np.pad(shape, 1)
    inside = ndimage.distance_transform_edt(padded, spacing)
    outside = ndimage.distance_transform_edt(~padded, spacing)
    return np.asarray((inside - outside)[1:-1, 1:-1])
