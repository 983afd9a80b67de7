"""A model's confidence in its outline of one scan, from the probabilities alone: no mask is needed."""

from __future__ import annotations

import numpy as np


class Confidence:
    """Mean probability of the predicted class over the voxels that are predicted as foreground."""

    def __init__(self) -> None:
        self._total, self._voxels = 0.0, 0

    def add(self, probability: np.ndarray) -> None:
        """Count the probabilities of the classes on the network's grid, (K, z, y, x); class 0 is the background."""
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


def confidence(probability: np.ndarray) -> float | None:
    """`Confidence.mean` of the probabilities (K, z, y, x) of a whole scan."""
    counted = Confidence()
    counted.add(probability)
    return counted.mean
