"""The largest connected part of each class.

MONAI's transform for it needs scikit-image where there is no GPU; SciPy, which is here anyway, has the labelling. Of
parts of one size MONAI keeps that which is numbered last and others the first, so that a mirrored scan keeps another
one. Here all of them are kept: no other rule gives the same parts however a scan is stored.
"""

from __future__ import annotations

import numpy as np
import scipy  # loads ndimage when it is used

EVERY_NEIGHBOUR = np.ones((3, 3, 3), bool)


def largest_components(classes: np.ndarray) -> np.ndarray:
    """Classes (z, y, x) uint8 of which only the largest connected part is left, of each by itself.

    Of several parts that are equally large all are left (`largest_parts`).
    """
    kept = np.zeros_like(classes)
    for number in np.unique(classes):
        if number > 0:
            kept[largest_parts(classes == number, neighbours=EVERY_NEIGHBOUR)] = number
    return kept


def largest_parts(mask: np.ndarray, *, neighbours: np.ndarray, count: int = 1) -> np.ndarray:
    """The ``count`` largest connected parts of a mask (z, y, x) bool, and all that are as large as the last of them.

    ``neighbours``: (3, 3, 3) bool, which voxels around one are connected with it.
    """
    parts, number = scipy.ndimage.label(mask, structure=neighbours)
    if number <= count:
        return mask.copy()
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    kept: np.ndarray = (sizes >= np.sort(sizes)[-count])[parts]
    return kept
