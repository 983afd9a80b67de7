"""A model's confidence in its outline of one scan, from the probabilities alone: no mask is needed."""

from __future__ import annotations

import numpy as np


class Confidence:
    """Mean probability of the predicted class over the voxels that are predicted as foreground."""

    def __init__(self, *, regions: bool = False) -> None:
        """With ``regions``, over those of each region."""
        self._total, self._voxels, self._regions = 0.0, 0, regions

    def add(self, probability: np.ndarray) -> None:
        """Count the probabilities on the network's grid, (K, z, y, x): of classes, 0 the background, or of regions."""
        if self._regions:
            inside = probability > 0.5
            self._total += float(probability[inside].sum(dtype=np.float64))
            self._voxels += int(np.count_nonzero(inside))
            return
        background, *others = probability
        most, foreground = background.copy(), np.zeros(background.shape, bool)
        for probability_of in others:  # class after class: `argmax` over the first axis copies them all
            foreground |= probability_of > most
            np.maximum(most, probability_of, out=most)
        self._total += float(most[foreground].sum(dtype=np.float64))
        self._voxels += int(np.count_nonzero(foreground))

    @property
    def mean(self) -> float | None:
        """None if nothing was predicted as foreground."""
        return self._total / self._voxels if self._voxels else None


def confidence(probability: np.ndarray, *, regions: bool = False) -> float | None:
    """`Confidence.mean` of the probabilities (K, z, y, x) of a whole scan."""
    counted = Confidence(regions=regions)
    counted.add(probability)
    return counted.mean
