"""Structures in a volume of numbers: classes, of which a voxel has one, or regions, of which it may have several.

A voxel's set of regions is a number of 8 bits: region k, from 1, is in it where bit k - 1 is set.
"""

from __future__ import annotations

import numpy as np

MOST_REGIONS = 8
"""Bits of a voxel."""
IGNORED = 255
"""Of voxels in prepared masks that count for nothing."""


def voxels_of(volume: np.ndarray, number: int, *, regions: bool) -> np.ndarray:
    """Where a class or region is, bool of the volume's shape; ``number`` from 1."""
    if regions:
        return np.asarray((volume & np.uint8(1 << (number - 1))) != 0)
    return np.asarray(volume == number)
