"""Grids and intensities of volumes: normalising, resampling and turning them, as numpy arrays.

Resampling takes the area that a new voxel covers where a grid shrinks and interpolates linearly where it grows, in both
directions of the way: into the network's grid, and of its probabilities back to the scan's.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np

from .bias_field import BiasField, corrected

Normalise = Literal["volume", "landmarks", "percentile", "fixed", "none"]
QUANTILES = (0.005, 0.995)
"""Intensities outside are clipped with ``normalise: percentile``."""
MOST_DEVIATIONS = 10.0
"""Standard scores are clipped here, so that one bright voxel is not what a batch is scaled by."""
MOST_PLAIN = 255.0
"""Largest absolute intensity that training sees, whatever the normalisation: methods bound what they exchange."""
CLIP_ABOVE_QUANTILE = 0.99
"""Default of a task's ``data.clip_above_quantile``."""
LANDMARKS = (0.01, *(tenth / 10 for tenth in range(1, 10)), 0.99)
"""Quantiles of a volume that are its histogram landmarks."""
INNER = len(LANDMARKS) - 2
SCALE = tuple(map(NormalDist().inv_cdf, LANDMARKS))
"""To which ``normalise: landmarks`` brings them: those of a normal distribution of mean 0 and standard deviation 1."""


def normalised(
    voxels: np.ndarray, normalise: Normalise, *, nonzero: bool, fixed: tuple[float, float, float, float] | None
) -> np.ndarray:
    """Intensities of one sequence of one volume, float32.

    Args:
        voxels: any shape, as stored.
        normalise: ``volume`` subtracts the mean and divides by the standard deviation; ``landmarks`` brings the
            `LANDMARKS` of the volume to `SCALE`; ``percentile`` clips to `QUANTILES` and scales to 0 … 1; ``fixed`` see
            `fedshift.data.resampled.Fixed`; ``none`` leaves them.
        nonzero: leave out voxels that are 0 when measuring, and leave them 0.
        fixed: for ``normalise: fixed``: low, high, mean and standard deviation.

    Raises:
        ValueError: with ``none``, intensities beyond `MOST_PLAIN`.
    """
    values = voxels.astype(np.float64, order="C")  # changed in place below: volumes are large
    outside = values == 0 if nonzero else None
    measured = values.ravel() if outside is None else values[~outside]
    if not measured.size:
        return np.zeros(values.shape, np.float32)
    if fixed is not None:
        low, high, mean, std = fixed
        np.clip(values, low, high, out=values)
        values -= mean
        values /= std
    elif normalise == "volume":
        mean, deviation = measured.mean(), float(measured.std())
        values -= mean
        values /= deviation or 1.0
        np.clip(values, -MOST_DEVIATIONS, MOST_DEVIATIONS, out=values)
    elif normalise == "landmarks":
        values = piecewise_linear(values, landmarks(measured), np.array(SCALE))
        np.clip(values, -MOST_DEVIATIONS, MOST_DEVIATIONS, out=values)
    elif normalise == "percentile":
        low, high = np.quantile(measured, QUANTILES)
        values -= low
        values /= (high - low) or 1.0
        np.clip(values, 0.0, 1.0, out=values)
    elif np.abs(measured).max() > MOST_PLAIN:
        raise ValueError(
            f"has intensities up to {np.abs(measured).max():g}, and data.normalise=none takes at most {MOST_PLAIN:g}: "
            "set data.normalise to volume, percentile or fixed"
        )
    if outside is not None:
        values[outside] = 0.0
    return values.astype(np.float32)


def landmarks(measured: np.ndarray) -> np.ndarray:
    """The `LANDMARKS` (11,) float64 of some intensities."""
    return np.asarray(np.quantile(measured, LANDMARKS))


def standard_landmarks(voxels: np.ndarray, *, nonzero: bool) -> np.ndarray:
    """The inner landmarks (9,) float64 of a volume whose outer two are brought linearly to those of `SCALE`.

    Of a volume with one intensity they are in the middle. ``nonzero``: as of `normalised`.
    """
    part = np.full(INNER, 0.5)
    if voxels.any():
        low, *inner, high = landmarks(voxels[voxels != 0] if nonzero else voxels)
        part = (np.array(inner) - low) / (high - low) if high > low else part
    return np.asarray(SCALE[0] + part * (SCALE[-1] - SCALE[0]))


def piecewise_linear(values: np.ndarray, knots: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Map ``knots`` (n,), which ascend, to ``targets`` (n,), linearly between them and on beyond the outer ones.

    Knots at one place go to the mean of their targets; with all at one place everything goes to 0.
    """
    knots, place = np.unique(knots, return_inverse=True)
    if len(knots) < 2:
        return np.zeros(values.shape)
    targets = np.bincount(place, targets) / np.bincount(place)
    slopes = np.diff(targets) / np.diff(knots)
    mapped: np.ndarray = np.interp(values, knots, targets)
    mapped += slopes[0] * np.minimum(values - knots[0], 0)
    mapped += slopes[-1] * np.maximum(values - knots[-1], 0)
    return mapped


def shape_at(
    shape: Sequence[int],
    spacing: Sequence[float] | None,
    wanted: Sequence[float | None] | None,
    matrix: int | None = None,
) -> tuple[int, int, int]:
    """Voxels along z, y, x of a volume on the grid that the network sees.

    Args:
        shape: voxels along z, y, x as stored.
        spacing: mm along z, y, x; None if it is not known: without a ``matrix`` it is then taken for 1 x 1 x 1 mm.
        wanted: the spacing to get; None keeps that of an axis, or all.
        matrix: voxels along the longer side of a slice, where the spacing is not known or there is no ``wanted``.
    """
    if matrix is not None and (wanted is None or spacing is None):
        rows, columns = (max(1, round(size * matrix / max(shape[1:]))) for size in shape[1:])
        return shape[0], rows, columns
    z, y, x = (
        size if target is None else max(1, round(size * have / target))
        for size, have, target in zip(shape, spacing or (1.0,) * 3, wanted or (None,) * 3, strict=True)
    )
    return z, y, x


def resized(voxels: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """A volume (z, y, x) float32 on another grid of the same extent: area where it shrinks, linear where it grows."""
    for axis, after in enumerate(shape):
        if voxels.shape[axis] != after:
            voxels = resize_axis(voxels, axis, after)
    return voxels


def network_volume(
    voxels: np.ndarray,
    shape: Sequence[int],
    *,
    normalise: Normalise,
    nonzero: bool,
    fixed: tuple[float, float, float, float] | None,
    bias_field: BiasField = "none",
    standard: np.ndarray | None = None,
) -> np.ndarray:
    """Sequences (S, z, y, x) of a case as stored, normalised and on the grid that the network sees, float16.

    ``bias_field``: with ``n4`` each sequence is corrected first. ``standard`` (S, 9) is filled in with the
    `standard_landmarks` of each.

    Raises:
        ValueError: intensities that the normalisation or the correction cannot take.
    """
    volume = np.empty((len(voxels), *shape), np.float16)
    for number, sequence in enumerate(voxels):
        if bias_field == "n4":
            sequence = corrected(sequence, nonzero=nonzero)
        if standard is not None:
            standard[number] = standard_landmarks(sequence, nonzero=nonzero)
        volume[number] = resized(normalised(sequence, normalise, nonzero=nonzero, fixed=fixed), shape)
    return volume


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
    resized = resample(square(slices), matrix)
    return np.asarray(np.clip(np.rint(resized), 0, 255).astype(np.uint8))


def restore(values: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Inverse of `resize_images`, for probabilities and the like: ``[S, M, M]`` to ``[S, rows, columns]``."""
    if values.shape[1:] == (rows, columns):
        return values
    side = max(rows, columns)
    top, left = (side - rows) // 2, (side - columns) // 2
    return resample(values, side)[:, top : top + rows, left : left + columns]


def square(slices: np.ndarray) -> np.ndarray:
    rows, columns = slices.shape[1:]
    side = max(rows, columns)
    top, left = (side - rows) // 2, (side - columns) // 2
    return np.pad(slices, ((0, 0), (top, side - rows - top), (left, side - columns - left)))


def resample(slices: np.ndarray, matrix: int) -> np.ndarray:
    """Resample rows, then columns."""
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
