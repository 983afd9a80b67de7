"""The largest connected part of each class.

MONAI's transform for it needs scikit-image where there is no GPU; SciPy, which is here anyway, has the labelling.
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

EVERY_NEIGHBOUR = np.ones((3, 3, 3), bool)


def largest_components(classes: np.ndarray) -> np.ndarray:
    """Classes (z, y, x) uint8 of which only the largest connected part is left, of each by itself."""
    kept = np.zeros_like(classes)
    for number in np.unique(classes):
        if number == 0:
            continue
        parts, count = ndimage.label(classes == number, structure=EVERY_NEIGHBOUR)
        largest = 1 + int(np.bincount(parts.ravel(), minlength=count + 1)[1:].argmax())
        kept[parts == largest] = number
    return kept
