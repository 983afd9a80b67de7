"""Regions of interest of an RT Structure Set on the grid of an image (PS3.3, A.19 and C.8.8.5 to C.8.8.6).

A voxel is inside where its centre is within the contours of its slice, see `fedshift.data.contours.filled`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.data.contours import (
    OFF_SLICE,
    BetweenSlices,
    OnSlices,
    area_of,
    filled,
    on_slices,
    plane_of,
    usual_distance,
)
from fedshift.data.scan_file import ScanError
from fedshift.data.scans import Scan
from fedshift.data.segmentations import AGAIN, code_of, syntax_name
from fedshift.data.slabs import matrix_of
from fedshift.data.stripes import gaps_along, in_words
from fedshift.data.structures import Drawing, Remark, Structure
from fedshift.schema.names import one_line
from fedshift.schema.reading import Reading

CLOSED = ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR")
OFFSET = 0.01
"""Millimetres up to which an offset vector moves nothing."""


def reading_of(content: Any) -> Reading:
    return Reading(format="RT Structure Set", transfer_syntax=syntax_name(content))


def regions(content: Any, image: Scan, path: Path, *, interpolate: bool, frame: str = "") -> list[Structure]:
    """The regions of interest of a structure set, to be drawn on the grid of an image.

    ``interpolate``: fill slices between two contours, see `fedshift.data.contours`. ``frame``: the image's frame of
    reference; each region says its own (PS3.3, C.8.8.5), and in another one coordinates say nothing of the image.
    """
    frames = {
        int(roi.ROINumber): str(roi.get("ReferencedFrameOfReferenceUID") or "")
        for roi in content.StructureSetROISequence
    }
    several = len(set(filter(None, frames.values()))) > 1
    numbers = [int(roi.ROINumber) for roi in content.StructureSetROISequence]
    if twice := [number for number in frames if numbers.count(number) > 1]:
        raise ScanError("structure-twice", path, f"has several structures with the number {twice[0]}", AGAIN)
    contours: dict[int, list[Any]] = {}
    for item in content.get("ROIContourSequence", []):
        contours.setdefault(int(item.ReferencedROINumber), []).extend(item.get("ContourSequence") or [])
    observed = {
        int(item.ReferencedROINumber): item.get("RTROIIdentificationCodeSequence")
        for item in content.get("RTROIObservationsSequence", [])
    }
    structures: list[Structure] = []
    for roi in content.StructureSetROISequence:
        number, name = int(roi.ROINumber), one_line(roi.get("ROIName", ""))

        def draw_it(number: int = number, name: str = name) -> Drawing:
            if several and frames[number] != frame:
                what = f"has structures in several frames of reference, and {name!r} not in that of its image"
                raise ScanError("mask-of-other-image", path, what, "export it on the slices of this image")
            return _drawn(contours.get(number, []), image, path, name, interpolate=interpolate)

        code, meaning = code_of(observed.get(number))
        structures.append(Structure(name, code, meaning, draw_it))
    return structures


@dataclass(frozen=True)
class _Outlines:
    """Closed contours in voxels: arrays (points, 3) of x, y, z, in planes across ``axis`` (0 to 2 for x to z)."""

    contours: list[np.ndarray]
    axis: int
    odd: bool


def _drawn(contours: Iterable[Any], image: Scan, path: Path, name: str, *, interpolate: bool) -> Drawing:
    outlines = _outlines(contours, image, path, name)
    if not outlines.contours:
        return Drawing(np.zeros(image.voxels.shape, bool))
    axis = outlines.axis
    across = [other for other in range(3) if other != axis]
    planes: dict[float, list[np.ndarray]] = {}
    for points in outlines.contours:
        depth = float(points[:, axis].mean())
        if np.abs(points[:, axis] - depth).max() > OFF_SLICE:
            what = f"has a contour of {name!r} that does not lie in a slice of its image"
            raise ScanError("contours-between-slices", path, what, AGAIN)
        planes.setdefault(plane_of(depth), []).append(points[:, across])
    count, (columns, rows) = image.voxels.shape[2 - axis], (image.voxels.shape[2 - other] for other in across)
    spacing = image.spacing[axis], image.spacing[across[1]], image.spacing[across[0]]
    rasters = {place: _raster(polygons, (rows, columns), odd=outlines.odd) for place, polygons in planes.items()}
    try:
        placed = on_slices(
            {place: inside for place, (inside, _) in rasters.items()}, count, interpolate=interpolate, spacing=spacing
        )
    except BetweenSlices:
        apart = usual_distance(np.array(sorted(planes))) * spacing[0]
        what = f"has contours of {name!r} between the slices of its image, {apart:.2g} mm apart"
        raise ScanError("contours-between-slices", path, what, f"add --interpolate, or {AGAIN}") from None
    remarks = [*_beyond(rasters, placed, count, spacing, path, name)]
    gaps, notes = _gaps(placed, count, axis, spacing[0], name, interpolate=interpolate)
    resampled = None
    if placed.moved > OFF_SLICE:
        moved = placed.moved * spacing[0]
        resampled = f"contours between slices taken to the nearest slice, up to {moved:.2g} mm"
        remarks.append(Remark(f"has {name!r} with {resampled}", "look at it on the image"))
    voxels = np.moveaxis(placed.voxels, 0, 2 - axis)
    return Drawing(np.ascontiguousarray(voxels), (*remarks, *gaps), resampled=resampled, gaps=notes)


def _outlines(contours: Iterable[Any], image: Scan, path: Path, name: str) -> _Outlines:
    inverse = np.linalg.inv(matrix_of(image))
    drawn: list[np.ndarray] = []
    odd = False
    for contour in contours:
        kind = contour.get("ContourGeometricType")
        if kind not in CLOSED:
            what = f"outlines {name!r} with something else than closed contours"
            raise ScanError("contours-not-closed", path, what, "export it as closed contours")
        offset = np.array(contour.get("ContourOffsetVector") or [0.0], float)
        if not np.abs(offset).max() <= OFFSET:  # also where it is NaN
            moved = "\\".join(f"{length:g}" for length in offset)
            what = f"moves a contour of {name!r} by a Contour Offset Vector ({moved} mm), of which readers differ"
            raise ScanError("contours-moved", path, what, "export it with the contours where they belong")
        points = np.array(contour.ContourData, float).reshape(-1, 3)
        if not np.isfinite(points).all():
            raise ScanError("contours-not-closed", path, f"has a contour of {name!r} that is not in numbers", AGAIN)
        odd = odd or kind == "CLOSEDPLANAR_XOR"
        drawn.append((points - np.array(image.origin)) @ inverse.T)
    axis = int(np.argmin(np.max([np.ptp(points, axis=0) for points in drawn], axis=0))) if drawn else 2
    return _Outlines(drawn, axis, odd)


def _raster(polygons: Sequence[np.ndarray], shape: tuple[int, int], *, odd: bool) -> tuple[np.ndarray, int]:
    """The pixels inside polygons (points, 2) of x, y; and how many more there are beyond the image.

    Further off than the image's own size these are not drawn, and the polygons' area counts.
    """
    rows, columns = shape
    sizes = np.array([columns, rows])
    points = np.concatenate(polygons)
    needed = np.ceil(np.stack([-points.min(0), points.max(0) - sizes + 1]))
    low, high = np.clip(needed, 0, sizes).astype(int)
    wide, tall = (low + sizes + high).tolist()
    inside = filled([polygon + low for polygon in polygons], (tall, wide), odd=odd)
    kept = inside[low[1] : low[1] + rows, low[0] : low[0] + columns]
    outer = int(np.count_nonzero(inside) - np.count_nonzero(kept))
    if (needed > sizes).any():
        outer = max(outer, round(sum(map(area_of, polygons))) - int(np.count_nonzero(kept)))
    return kept, outer


def _beyond(
    rasters: dict[float, tuple[np.ndarray, int]],
    placed: OnSlices,
    count: int,
    spacing: tuple[float, float, float],
    path: Path,
    name: str,
) -> list[Remark]:
    ml = float(np.prod(spacing)) * usual_distance(np.array(sorted(rasters))) / 1000
    outside = total = 0.0
    for place, (inside, outer) in rasters.items():
        all_of_it = np.count_nonzero(inside) + outer
        total += ml * all_of_it
        outside += ml * (outer if -0.5 - OFF_SLICE <= place <= count - 0.5 + OFF_SLICE else all_of_it)
    if not outside:
        return []
    if not placed.voxels.any():
        what = f"has {name!r} where its image has no voxels"
        raise ScanError("mask-elsewhere", path, what, "name the image that it was drawn on")
    what = f"has {outside:.3g} of {total:.3g} ml of {name!r} beyond the image, which are cut off"
    return [Remark(what, "look whether the image is the one that it was drawn on")]


def _gaps(
    placed: OnSlices, count: int, axis: int, spacing: float, name: str, *, interpolate: bool
) -> tuple[list[Remark], str | None]:
    """A warning of slices without contour within a structure; and what is recorded of them and of those filled."""
    notes = []
    if placed.interpolated:
        notes.append(f"{name!r} interpolated on {in_words(placed.interpolated, count, axis)}")
    empty = [
        number
        for gap in gaps_along(placed.voxels, 0)
        if gap.overlap > 0 or gap.is_short(spacing)
        for number in gap.slices
    ]
    if not empty:
        return [], "; ".join(notes) or None
    where = in_words(empty, count, axis)
    notes.append(f"{name!r} has no contour on {where}")
    remedy = (
        "draw them" if interpolate else "draw them, or add --interpolate to fill them from the contours next to them"
    )
    return [Remark(f"has no contour of {name!r} on {where}, which lie within it", remedy)], "; ".join(notes)
