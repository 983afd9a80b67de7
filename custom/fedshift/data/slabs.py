"""Flat boxes of pixels in space, such as the frames of a segmentation, drawn on the voxels of an image.

A voxel is inside where its centre lies in a pixel's box: as wide as the pixels are apart, and as thick as the slices
are. So a mask with thicker, finer, turned or shifted slices keeps its volume, and its surface moves by less than half
of the larger of both voxels. Of a centre on the border of two boxes, one of them has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np

from fedshift.data.scans import Scan

OFF = 0.1  # of a voxel: how far a pixel may lie beside the image's voxel and still be that voxel
TIE = 0.01
"""Of a pixel or voxel: positions are rounded in files, and one of two neighbours must have a centre between them."""
THICKER = 1.25  # times the image's slices (or as much thinner): from here on a slice is of another thickness


@dataclass(frozen=True)
class Slab:
    """Pixels with their boxes, in millimetres of the patient's space.

    ``pixels`` bool [rows, columns]; ``position`` (3,) the centre of the first; ``steps`` (3, 2) to the next column and
    to the next row, at right angles; ``below`` and ``above`` how far the boxes reach along the normal, which is the
    cross product of the steps.
    """

    pixels: np.ndarray
    position: np.ndarray
    steps: np.ndarray
    below: float
    above: float

    @property
    def normal(self) -> np.ndarray:
        """Of length 1 (3,)."""
        across = np.cross(self.steps[:, 0], self.steps[:, 1])
        return np.asarray(across / np.linalg.norm(across))

    @property
    def box(self) -> tuple[float, float, float]:
        """Of a pixel: millimetres along columns, rows and the normal."""
        columns, rows = np.linalg.norm(self.steps, axis=0).tolist()
        return columns, rows, self.below + self.above


def matrix_of(image: Scan) -> np.ndarray:
    """From index x, y, z to millimetres (3, 3), without the origin."""
    matrix: np.ndarray = np.reshape(image.direction, (3, 3)) * np.array(image.spacing)
    return matrix


def draw(slabs: Iterable[Slab], image: Scan) -> np.ndarray:
    """The image's voxels whose centres are in a pixel of a slab: bool [z, y, x]."""
    voxels = np.zeros(image.voxels.shape, bool)
    for slab in slabs:
        _draw(slab, image, voxels)
    return voxels


def _draw(slab: Slab, image: Scan, voxels: np.ndarray) -> None:
    rows, columns = np.nonzero(slab.pixels)
    if not rows.size:
        return
    to_slab = np.linalg.inv(np.column_stack([slab.steps, slab.normal]))
    turn, shift = to_slab @ matrix_of(image), to_slab @ (np.array(image.origin) - slab.position)
    axis = int(np.argmax(np.abs(turn[2])))  # of x, y, z: the one along which a voxel changes its depth most
    step = turn[2, axis]
    ends = [(columns.min() - 1, columns.max() + 1), (rows.min() - 1, rows.max() + 1), (-slab.below, slab.above)]
    corners = np.linalg.solve(turn, np.array(list(product(*ends))).T - shift[:, None])
    sizes = image.voxels.shape[::-1]
    first = np.maximum(np.ceil(corners.min(1)), 0).astype(int)
    last = np.minimum(np.floor(corners.max(1)), np.array(sizes) - 1).astype(int)
    u, v = (other for other in range(3) if other != axis)
    if (last[[u, v]] < first[[u, v]]).any():
        return
    at: list[np.ndarray] = [np.empty(0)] * 3
    at[u], at[v] = np.meshgrid(
        np.arange(first[u], last[u] + 1), np.arange(first[v], last[v] + 1), indexing="ij", sparse=True
    )
    tie = TIE * abs(step)
    depth = turn[2, u] * at[u] + turn[2, v] * at[v] + shift[2] + tie
    start = np.ceil(np.minimum((-slab.below - depth) / step, (slab.above - depth) / step)).astype(int)
    for more in range(int(np.ceil((slab.below + slab.above) / abs(step))) + 1):
        at[axis] = start + more
        through = depth + step * at[axis]
        inside = (through >= -slab.below) & (through < slab.above) & (at[axis] >= 0) & (at[axis] < sizes[axis])
        column, row = (
            np.floor(turn[k, 0] * at[0] + turn[k, 1] * at[1] + turn[k, 2] * at[2] + shift[k] + 0.5 + TIE).astype(int)
            for k in (0, 1)
        )
        height, width = slab.pixels.shape
        inside &= (column >= 0) & (column < width) & (row >= 0) & (row < height)
        inside[inside] = slab.pixels[row[inside], column[inside]]
        x, y, z = (np.broadcast_to(each, inside.shape)[inside] for each in at)
        voxels[z, y, x] = True


def is_on_grid(slab: Slab, image: Scan) -> bool:
    """Whether each pixel of a slab is a voxel of the image, or of its grid beyond it."""
    inverse = np.linalg.inv(matrix_of(image))
    exact = np.column_stack([inverse @ slab.steps, inverse @ (slab.position - np.array(image.origin))])
    whole = np.rint(exact)
    if (np.abs(whole[:, :2]).sum(0) != 1).any() or (whole[:, 0] == whole[:, 1]).all():
        return False
    off = np.abs(exact - whole) @ np.array([*reversed(slab.pixels.shape), 1.0])
    across = image.spacing[int(np.argmin(np.abs(whole[:, :2]).sum(1)))]
    return bool(off.max() <= OFF and 1 / THICKER <= (slab.below + slab.above) / across <= THICKER)


def beyond(slabs: Iterable[Slab], image: Scan) -> tuple[float, float]:
    """How much of slabs lies outside of the image, by the pixels' centres, and of how much: ml."""
    outside = total = 0.0
    inverse, sizes = np.linalg.inv(matrix_of(image)), np.array(image.voxels.shape[::-1])[:, None]
    for slab in slabs:
        rows, columns = np.nonzero(slab.pixels)
        if not rows.size:
            continue
        ml = float(np.prod(slab.box)) / 1000
        total += ml * rows.size
        ends = np.array(list(product((columns.min(), columns.max()), (rows.min(), rows.max())))).T
        for points in (ends, np.stack([columns, rows])):  # all are within if the corners are
            at = inverse @ (slab.position[:, None] + slab.steps @ points - np.array(image.origin)[:, None])
            out = ((at < -0.5 - OFF) | (at > sizes - 0.5 + OFF)).any(0)
            if not out.any():
                break
        else:
            outside += ml * int(out.sum())
    return outside, total
