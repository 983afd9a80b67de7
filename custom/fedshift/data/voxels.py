"""Voxels of one volume: numbers of its normalisation, labels on another grid, places of each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from fedshift.runtime.grids import MOST_DEVIATIONS, MOST_PLAIN, Normalise, resized
from fedshift.schema.strict import Strict


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
        """For `fedshift.runtime.grids.normalised`."""
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
