"""Voxels of one volume: intensities normalised, grids changed, places of each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedshift.data.arrays import resize_axis
from fedshift.schema.strict import Strict

Normalise = Literal["volume", "percentile", "fixed", "none"]
QUANTILES = (0.005, 0.995)
"""Intensities outside are clipped with ``normalise: percentile``."""
MOST_DEVIATIONS = 10.0
"""Standard scores are clipped here, so that one bright voxel is not what a batch is scaled by."""
MOST_PLAIN = 255.0
"""Largest absolute intensity that training sees, whatever the normalisation: methods bound what they exchange."""


class Fixed(Strict):
    """``normalise: fixed``: clip to ``low`` … ``high``, subtract ``mean``, divide by ``std``; numbers for all sites.

    For images with a unit, such as Hounsfield units of CT.
    """

    low: float
    high: float
    mean: float
    std: float = Field(gt=0)

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"'low' must be below 'high', not {self.low:g} and {self.high:g}")
        if max(abs(edge) for edge in self.range) > MOST_PLAIN:
            raise ValueError(f"gives intensities beyond {MOST_PLAIN:g}: divide by a larger 'std'")
        return self

    @property
    def numbers(self) -> tuple[float, float, float, float]:
        """For `normalised`."""
        return self.low, self.high, self.mean, self.std

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest normalised intensity."""
        return (self.low - self.mean) / self.std, (self.high - self.mean) / self.std


def intensity_range(normalise: Normalise, fixed: Fixed | None) -> tuple[float, float]:
    """The smallest and the largest intensity that the network sees.

    0 is between them: it is what surrounds a volume that is smaller than a patch, and what ``nonzero`` keeps.
    """
    if fixed is not None:
        low, high = fixed.range
        return min(low, 0.0), max(high, 0.0)
    most = {"volume": MOST_DEVIATIONS, "percentile": 1.0}.get(normalise, MOST_PLAIN)
    return (0.0 if normalise == "percentile" else -most), most


def normalised(
    voxels: np.ndarray, normalise: Normalise, *, nonzero: bool, fixed: tuple[float, float, float, float] | None
) -> np.ndarray:
    """Intensities of one sequence of one volume, float32.

    Args:
        voxels: any shape, as stored.
        normalise: ``volume`` subtracts the volume's mean and divides by its standard deviation; ``percentile`` clips to
            `QUANTILES` and scales to 0 … 1; ``fixed`` see `Fixed`; ``none`` leaves them.
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
) -> np.ndarray:
    """Sequences (S, z, y, x) of a case as stored, normalised and on the grid that the network sees, float16.

    Raises:
        ValueError: intensities that the normalisation cannot take.
    """
    made = np.empty((len(voxels), *shape), np.float16)
    for number, sequence in enumerate(voxels):
        made[number] = resized(normalised(sequence, normalise, nonzero=nonzero, fixed=fixed), shape)
    return made


def resized_labels(labels: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Classes (z, y, x) uint8 on another grid: the class that covers most of a voxel, the smaller number at a tie."""
    if labels.shape == tuple(shape):
        return labels
    found = np.zeros(tuple(shape), np.uint8)
    most = np.zeros(tuple(shape), np.float32)
    for number in np.unique(labels).tolist():
        cover = resized((labels == number).astype(np.float32), shape)
        larger = cover > most + 1e-6  # the margin keeps exact halves on one side whatever the rounding of the sums
        found[larger], most[larger] = number, cover[larger]
    return found


def places(labels: np.ndarray, number: int, *, most: int, seed: Sequence[int]) -> np.ndarray:
    """Up to ``most`` voxels (n, 3) int32 of a class, drawn by ``seed`` and in order."""
    found = np.flatnonzero(labels == number)
    if len(found) > most:
        found = np.sort(np.random.default_rng(list(seed)).choice(found, most, replace=False))
    return np.stack(np.unravel_index(found, labels.shape), 1).astype(np.int32)
