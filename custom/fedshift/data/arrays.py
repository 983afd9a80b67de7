"""Cached slices of a prepared site: ``arrays/<M>/images.npy`` and ``labels.npy``, memory-mapped.

Batches are read from these arrays without decoding. They are derived from ``volumes/`` and may be deleted at any
time; they are rebuilt on first use. Intensities are scaled per volume: clip above a quantile, min-max, times 255,
floor. Arrays with another quantile than the default are in ``arrays/<M>_clip<quantile>/``. Slices are in radiological
orientation: anterior at the top, the patient's right on the left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedshift.data import blocks
from fedshift.data.prepared import read_images, read_labels
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Manifest, read_manifest

CLIP_ABOVE_QUANTILE = 0.99
"""Default of a task's ``data.clip_above_quantile``."""
_FOLDER = re.compile(r"(\d+)(?:_clip([\d.]+))?")


@dataclass(frozen=True)
class SliceArrays:
    """All slices of all cases, stacked in manifest order, slices from inferior to superior.

    ``images`` and ``labels`` are read-only uint8 memory maps ``[S, matrix, matrix]``, images 0…255 and labels
    0 or 1; a case's slices are ``[case.offset : case.offset + case.shape[0]]``.
    """

    images: np.ndarray
    labels: np.ndarray
    manifest: Manifest
    matrix: int


def open_arrays(
    site_dir: Path, *, matrix: int, clip_above_quantile: float = CLIP_ABOVE_QUANTILE, full: bool = False
) -> SliceArrays:
    """Open a site's slices at ``matrix`` x ``matrix`` pixels; build the arrays from its volumes if they are missing.

    Args:
        site_dir: the prepared site.
        matrix: rows and columns of a slice.
        clip_above_quantile: intensities of a volume are clipped above this quantile.
        full: compare all bytes with their hashes, not only as many as take no time (`fedshift.data.blocks.verify`).

    Raises:
        DataError: no prepared site there, an unreadable volume, arrays that do not match the manifest, or arrays that
            have changed since they were written.
    """
    manifest = read_manifest(site_dir)
    folder = arrays_dir(site_dir, manifest, matrix, clip_above_quantile)
    if not folder.is_dir():
        build_arrays(site_dir, manifest, matrix, clip_above_quantile)
    slices = sum(case.shape[0] for case in manifest.cases)
    images, labels = (
        blocks.open_array(folder / name, fix=rebuilt(folder), shape=(slices, matrix, matrix))
        for name in ("images.npy", "labels.npy")
    )
    blocks.verify(folder, manifest.arrays.get(folder.name), fix=rebuilt(folder), full=full)
    return SliceArrays(images=images, labels=labels, manifest=manifest, matrix=matrix)


def cached_arrays(site_dir: Path) -> Iterator[tuple[Path, int, float]]:
    """Yield folder, matrix size and clip quantile of the arrays that a site has already."""
    for folder in sorted((site_dir / "arrays").glob("*")):
        match = _FOLDER.fullmatch(folder.name)
        if match is not None:
            yield folder, int(match[1]), float(match[2] or CLIP_ABOVE_QUANTILE)


def arrays_dir(
    site_dir: Path, manifest: Manifest, matrix: int, clip_above_quantile: float = CLIP_ABOVE_QUANTILE
) -> Path:
    """Folder of the cached slices of one matrix size and clip quantile."""
    if matrix < 8:
        raise DataError("invalid-value", f"matrix {matrix} is too small: ask for at least 8 pixels")
    if not manifest.cases:
        raise DataError("kind-of-data", f"{site_dir} holds pictures, this task needs volumes: name the right folder")
    clip = "" if clip_above_quantile == CLIP_ABOVE_QUANTILE else f"_clip{clip_above_quantile}"
    return site_dir / manifest.cases[0].array / f"{matrix}{clip}"


def build_arrays(
    site_dir: Path, manifest: Manifest, matrix: int, clip_above_quantile: float = CLIP_ABOVE_QUANTILE
) -> str:
    """Write the folder of arrays; returns the hash of its ``hashes.json`` (`fedshift.data.blocks.build`)."""
    shape = (sum(case.shape[0] for case in manifest.cases), matrix, matrix)

    def fill(folder: Path) -> None:
        images, labels = (
            np.lib.format.open_memmap(folder / name, mode="w+", dtype=np.uint8, shape=shape)
            for name in ("images.npy", "labels.npy")
        )
        for case in manifest.cases:
            part = slice(case.offset, case.offset + case.shape[0])
            images[part] = slices_of(read_images(site_dir, manifest, case)[0], matrix, clip_above_quantile)
            labels[part] = labels_of(read_labels(site_dir, case), matrix)
        images.flush()
        labels.flush()

    target = arrays_dir(site_dir, manifest, matrix, clip_above_quantile)
    return blocks.build(target, fill, mend=f", or prepare the site with --matrix {matrix} beforehand")


def slices_of(voxels: np.ndarray, matrix: int, clip_above_quantile: float) -> np.ndarray:
    """The cached slices uint8 ``[z, matrix, matrix]`` of a volume ``[z, y, x]`` in RAS orientation."""
    return resize_images(to_uint8(radiological(voxels), clip_above_quantile), matrix)


def labels_of(voxels: np.ndarray, matrix: int) -> np.ndarray:
    """The cached labels uint8 ``[z, matrix, matrix]`` of a mask ``[z, y, x]`` in RAS orientation."""
    return resize_labels(radiological(voxels), matrix)


def radiological(voxels: np.ndarray) -> np.ndarray:
    """Flip RAS voxels ``[z, y, x]`` to slices with anterior at the top and the patient's right on the left."""
    return voxels[:, ::-1, ::-1]


def to_uint8(volume: np.ndarray, clip_above_quantile: float = CLIP_ABOVE_QUANTILE) -> np.ndarray:
    """Intensities of one volume, any shape: clip above a quantile, min-max, times 255, floor.

    A volume whose quantile is its minimum (hardly any signal) is scaled to its maximum instead.
    """
    values = volume.astype(np.float64)
    low, high = float(values.min()), float(np.quantile(values, clip_above_quantile))
    if high <= low:
        high = float(values.max())
    if high <= low:
        return np.zeros(values.shape, np.uint8)
    return np.asarray((np.minimum(values, high) - low) / (high - low) * 255).astype(np.uint8)


def resize_images(slices: np.ndarray, matrix: int) -> np.ndarray:
    """uint8 ``[S, rows, columns]`` to ``[S, matrix, matrix]``: zero-padded to a square, then resampled."""
    if slices.shape[1:] == (matrix, matrix):
        return slices
    resized = _resample(_square(slices), matrix)
    return np.asarray(np.clip(np.rint(resized), 0, 255).astype(np.uint8))


def resize_labels(slices: np.ndarray, matrix: int) -> np.ndarray:
    """Masks {0,1} like ``resize_images``; a pixel is foreground where at least half of it is covered."""
    if slices.shape[1:] == (matrix, matrix):
        return slices.astype(np.uint8)
    # The margin keeps exact halves on one side whatever the rounding of the sums.
    return np.asarray(_resample(_square(slices), matrix) >= 0.5 - 1e-9).astype(np.uint8)


def restore(values: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Inverse of `resize_images`, for probabilities and the like: ``[S, M, M]`` to ``[S, rows, columns]``."""
    if values.shape[1:] == (rows, columns):
        return values
    side = max(rows, columns)
    top, left = (side - rows) // 2, (side - columns) // 2
    return _resample(values, side)[:, top : top + rows, left : left + columns]


def _square(slices: np.ndarray) -> np.ndarray:
    rows, columns = slices.shape[1:]
    side = max(rows, columns)
    top, left = (side - rows) // 2, (side - columns) // 2
    return np.pad(slices, ((0, 0), (top, side - rows - top), (left, side - columns - left)))


def _resample(slices: np.ndarray, matrix: int) -> np.ndarray:
    result = slices.astype(np.float64)
    for axis in (1, 2):
        result = resize_axis(result, axis, matrix)
    return result


def resize_axis(values: np.ndarray, axis: int, after: int) -> np.ndarray:
    """Resample floating-point values along one axis."""
    return summed(values, axis, *taps(values.shape[axis], after))


def taps(before: int, after: int) -> tuple[np.ndarray, np.ndarray]:
    """The elements with a weight above 0 in each new element: the first (after,), the weights from there on (after, n).

    Few elements have one, so that summing over them is faster than a matrix product on a busy machine (threaded BLAS),
    and its order is fixed.
    """
    weights = resize_weights(before, after)
    n = int((weights > 0).sum(axis=1).max())
    first = np.minimum((weights > 0).argmax(axis=1), before - n)
    return first, np.take_along_axis(weights, first[:, None] + np.arange(n), axis=1)


def summed(values: np.ndarray, axis: int, first: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted sums of neighbours along one axis, for ``first`` and ``weights`` as of `taps`, or some rows of them."""
    weights = weights.astype(values.dtype)
    total: np.ndarray | float = 0.0
    for tap in range(weights.shape[1]):
        weight = weights[:, tap].reshape(-1, *[1] * (values.ndim - 1 - axis))
        total = total + np.take(values, first + tap, axis=axis) * weight
    return np.asarray(total)


def resize_weights(before: int, after: int) -> np.ndarray:
    """Resampling weights ``[after, before]``; each row sums to 1.

    Shrinking averages over the area that a new pixel covers. Growing interpolates linearly between pixel centres and
    repeats the edges.
    """
    scale = before / after
    if scale >= 1:
        starts = np.arange(after)[:, None] * scale
        pixels = np.arange(before)[None, :]
        cover = np.minimum(starts + scale, pixels + 1) - np.maximum(starts, pixels)
        return np.asarray(np.clip(cover, 0, 1) / scale)
    centres = np.clip((np.arange(after) + 0.5) * scale - 0.5, 0, before - 1)
    return np.asarray(np.clip(1 - np.abs(centres[:, None] - np.arange(before)[None, :]), 0, 1))


def rebuilt(folder: Path) -> str:
    """What to do about a folder of arrays that cannot be used."""
    return f"delete the folder {folder}, it will be rebuilt"
