"""A model's confidence in its outline of one scan, from the probabilities alone: no mask is needed."""

from __future__ import annotations

import numpy as np


def confidence(probability: np.ndarray) -> float | None:
    """Mean probability of the predicted class over the voxels that are predicted as foreground; None if there are none.

    Args:
        probability: of the classes on the network's grid, (K, z, y, x); class 0 is the background.
    """
    background, *others = probability
    most, found = background.copy(), np.zeros(background.shape, bool)
    for one in others:  # class after class: `argmax` over the first axis copies them all
        found |= one > most
        np.maximum(most, one, out=most)
    return float(most[found].mean(dtype=np.float64)) if found.any() else None
