"""The largest connected part of a class or region.

MONAI's transform for it needs scikit-image where there is no GPU; SciPy, which is here anyway, has the labelling. Of
parts of one size MONAI keeps that which is numbered last and others the first, so that a mirrored scan keeps another
one. Here all of them are kept: no other rule gives the same parts however a scan is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy  # loads ndimage when it is used

from .regions import voxels_of

EVERY_NEIGHBOUR = np.ones((3, 3, 3), bool)


def keep_largest(labels: np.ndarray, numbers: Sequence[int], *, regions: bool) -> None:
    """Leave of some classes, or regions, only their largest connected part, of each by itself.

    Of several parts that are equally large all are left (`largest_parts`).

    Args:
        labels: classes, or sets of regions, (z, y, x) uint8; changed in place.
        numbers: of the classes or regions, from 1.
        regions: which of the two it is.
    """
    for number in numbers:
        mask = voxels_of(labels, number, regions=regions)
        lost = mask & ~largest_parts(mask, neighbours=EVERY_NEIGHBOUR)
        labels[lost] = labels[lost] & ~np.uint8(1 << (number - 1)) if regions else 0


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
