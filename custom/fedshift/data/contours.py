"""Contours: outlines of a slice's mask as polygons, and back, which is what RT Structure Sets hold in place of voxels.

A point (x, y) is in pixels, and whole numbers are the pixels' centres. Outlines run half-way between the centres inside
and those outside (marching squares), so filling them by centres gives the mask again, voxel for voxel; a program that
fills by another rule may differ by half a pixel along the edge, and the area inside is less than the voxels' where they
make corners.

Contours that lie on some slices, or between slices, are brought onto the slices of an image. Between two contours a
structure is interpolated by its shape, as planning systems do: each pixel's distance from the outline, negative
outside, changes linearly from one contour to the next (Raya and Udupa, 1990). The first and the last contour reach half
of the distance to the next one further, so that volume is contours' area times distance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import contourpy
import numpy as np
import scipy  # loads ndimage when it is used

ON_LINE = 0.01  # pixels up to which a point lies on a line: coordinates are rounded in files
OFF_SLICE = 0.1  # of a slice: how far a contour may lie beside it and still be on it
MOST_TIMES, MOST_MM = 4.0, 30.0
"""The longest distance of two contours that is bridged: times the usual one, and millimetres."""
SLICE_TIE = 0.01  # of a slice: see `fedshift.data.slabs.TIE`


def outlines(mask: np.ndarray) -> list[np.ndarray]:
    """Closed polygons (points, 2) around the parts of a mask [y, x] of bool.

    A hole is joined to the outline around it by a channel of no width ("keyhole", DICOM PS3.3, C.8.8.6.3), since a
    structure set has no holes.
    """
    padded = np.pad(mask, 1).astype(float)
    generator = contourpy.contour_generator(z=padded, fill_type=contourpy.FillType.OuterOffset)
    polygons = []
    for points, offsets in zip(*generator.filled(0.5, 2.0), strict=True):
        rings = [points[start : end - 1] - 1 for start, end in pairwise(offsets)]
        polygons.append(_joined(rings[0], rings[1:]))
    return polygons


def _joined(outer: np.ndarray, holes: list[np.ndarray]) -> np.ndarray:
    """One polygon of an outline and its holes; the nearest hole is joined next, so that channels cross none."""
    while holes:
        best = None
        for number, hole in enumerate(holes):
            apart = ((outer[:, None] - hole[None]) ** 2).sum(-1)
            at = np.unravel_index(int(apart.argmin()), apart.shape)
            if best is None or apart[at] < best[0]:
                best = (apart[at], number, int(at[0]), int(at[1]))
        assert best is not None
        _, number, i, j = best
        hole = np.roll(holes.pop(number), -j, axis=0)
        outer = np.concatenate([outer[: i + 1], hole, hole[:1], outer[i:]])
    return outer


def filled(polygons: Sequence[np.ndarray], shape: tuple[int, int], *, odd: bool = False) -> np.ndarray:
    """The pixels [y, x] whose centres are inside the polygons (points, 2) of one structure: bool of ``shape``.

    A polygon wholly within another one is a hole, and one in that hole an island. Polygons that overlap in part are
    united, as planning systems show a structure that was outlined twice in a slice. A polygon that repeats another one
    counts once. With ``odd``, where the file says XOR (CLOSEDPLANAR_XOR), inside is what lies in an odd number of them;
    applied to all, as some readers do, XOR would cut overlaps out.
    """
    drawn = [(polygon, _drawn(polygon, shape)) for polygon in sorted(polygons, key=area_of, reverse=True)]
    inside = np.zeros(shape, bool)
    kept: list[tuple[np.ndarray, np.ndarray, int]] = []
    for polygon, pixels in drawn:
        if not pixels.any():
            continue
        around = [(other, of_other, depth) for other, of_other, depth in kept if not (pixels & ~of_other).any()]
        if any(_on(polygon, other).all() for other, _, _ in around):
            continue
        depth = 1 + max((depth for other, _, depth in around if not odd and _is_within(polygon, other)), default=-1)
        kept.append((polygon, pixels, depth))
        if odd:
            inside ^= pixels
        elif depth % 2:
            inside &= ~pixels
        else:
            inside |= pixels
    return inside


def _drawn(polygon: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """The pixels whose centres are inside one polygon, by the odd number of times that its line is crossed."""
    rows, columns = shape
    inside = np.zeros(shape, bool)
    ends = np.roll(polygon, -1, axis=0)
    for (x0, y0), (x1, y1) in zip(polygon.tolist(), ends.tolist(), strict=True):
        if y0 > y1:  # so that the two sides of a channel are crossed at the very same place
            x0, y0, x1, y1 = x1, y1, x0, y0
        y = np.arange(max(0, int(np.ceil(y0))), min(rows, int(np.ceil(y1))))  # y0 <= y < y1
        if not len(y):
            continue
        crossing = x0 + (y - y0) * (x1 - x0) / (y1 - y0)
        first = np.clip(np.ceil(crossing), 0, columns).astype(int)  # of the centres right of the edge
        for row, column in zip(y.tolist(), first.tolist(), strict=True):
            inside[row, column:] ^= True
    return inside


def area_of(polygon: np.ndarray) -> float:
    """Of a polygon (points, 2), in pixels."""
    x, y = (polygon - polygon[0]).T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2


def _is_within(inner: np.ndarray, outer: np.ndarray) -> bool:
    """Whether a polygon lies wholly within another, whose line it may touch."""
    points = np.concatenate([inner, (inner + np.roll(inner, -1, axis=0)) / 2])
    if not (_encloses(outer, points) | _on(points, outer)).all():
        return False
    return not (_encloses(inner, outer) & ~_on(outer, inner)).any()


def _encloses(polygon: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Which points are inside a polygon, by the odd number of times that its line is crossed."""
    x0, y0 = polygon.T
    x1, y1 = np.roll(polygon, -1, axis=0).T
    x, y = points[:, :1], points[:, 1:]
    crossed = (y0 <= y) != (y1 <= y)
    at = x0 + (y - y0) * (x1 - x0) / np.where(y1 == y0, 1, y1 - y0)
    return np.asarray((crossed & (at > x)).sum(1) % 2 == 1)


def _on(points: np.ndarray, polygon: np.ndarray) -> np.ndarray:
    """Which points lie on a polygon's line."""
    along = np.roll(polygon, -1, axis=0) - polygon
    length = np.maximum((along**2).sum(-1), np.finfo(float).tiny)
    offset = points[:, None] - polygon
    part = np.clip((offset * along).sum(-1) / length, 0, 1)
    apart = ((offset - part[..., None] * along) ** 2).sum(-1).min(1)
    return np.asarray(apart <= ON_LINE**2)


class BetweenSlices(Exception):
    """Contours lie between slices, and further from each other than slices: what is on a slice is not known."""


@dataclass(frozen=True)
class OnSlices:
    """``voxels`` bool [slices, …]; ``interpolated``: the slices that got an interpolated mask; ``moved``: the furthest
    that a contour was moved to a slice, in slices.
    """

    voxels: np.ndarray
    interpolated: tuple[int, ...] = ()
    moved: float = 0


def plane_of(depth: float) -> float:
    """The place of a contour in slices: a whole number if it lies on one."""
    return round(depth) if abs(depth - round(depth)) <= OFF_SLICE else round(depth, 2)


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
            between slices and no further from each other, the nearest one's; where further, `BetweenSlices` is raised.
        spacing: millimetres between slices, rows, columns.
    """
    if interpolate:  # a contour around no voxel's centre has no shape
        planes = {place: shape for place, shape in planes.items() if shape.any()} or planes
    places = np.array(sorted(planes))
    shapes = [planes[place] for place in places.tolist()]
    usual = usual_distance(places)
    between = bool((np.abs(places - np.rint(places)) > OFF_SLICE).any())
    if between and not interpolate and usual > 1 + OFF_SLICE:
        raise BetweenSlices
    apart = np.diff(places, prepend=-np.inf, append=np.inf)
    reach = np.minimum(np.minimum(apart[:-1], apart[1:]), usual) / 2 if interpolate else np.full(len(places), 0.5)
    longest = min(MOST_TIMES * max(usual, 1.0), MOST_MM / spacing[0])
    voxels = np.zeros((count, *shapes[0].shape), bool)
    interpolated, moved = [], 0.0
    for k in range(count):
        nearest = int(np.argmin(np.abs(places - k - SLICE_TIE)))
        after = int(np.searchsorted(places, k))
        if places[nearest] == k:
            voxels[k] = shapes[nearest]
        elif interpolate and 0 < after < len(places) and places[after] - places[after - 1] <= longest:
            low, high = places[after - 1], places[after]
            voxels[k] = _between(shapes[after - 1], shapes[after], (k - low) / (high - low), spacing[1:])
            interpolated.append(k)
        elif (interpolate or between) and -reach[nearest] <= k - places[nearest] + SLICE_TIE < reach[nearest]:
            voxels[k] = shapes[nearest]
            if interpolate:
                interpolated.append(k)
            else:
                moved = max(moved, abs(k - float(places[nearest])))
    return OnSlices(voxels, tuple(k for k in interpolated if voxels[k].any()), moved)


def _between(below: np.ndarray, above: np.ndarray, part: float, spacing: tuple[float, ...]) -> np.ndarray:
    """The shape at ``part`` of the way from one contour to the next: bool [rows, columns]."""
    between = np.zeros_like(below)
    held = np.argwhere(below | above)
    if not len(held):
        return between
    (top, left), (bottom, right) = held.min(0), held.max(0) + 1
    box = np.s_[top:bottom, left:right]
    between[box] = (1 - part) * _depth(below[box], spacing) + part * _depth(above[box], spacing) > 0
    return between


def _depth(shape: np.ndarray, spacing: tuple[float, ...]) -> np.ndarray:
    """How far inside of the outline each pixel is, in mm, negative outside."""
    padded = np.pad(shape, 1)
    inside = scipy.ndimage.distance_transform_edt(padded, spacing)
    outside = scipy.ndimage.distance_transform_edt(~padded, spacing)
    return np.asarray((inside - outside)[1:-1, 1:-1])
