"""From the voxels of a scan to its classes: what a prediction computes, here and in an exported bundle.

The files of this folder are copied, as they are, into the ``scripts/`` of a MONAI bundle by
`fedshift.inference.bundle_export`. It runs without fedshift: they import each other, numpy, torch, MONAI and SciPy,
and SimpleITK where a bias field is corrected.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

SPACING_TOLERANCE = 1e-3
"""Millimetres; headers in single precision and decimal DICOM strings differ by less."""
DIRECTION_TOLERANCE = 1e-3
"""Of a direction cosine, about 0.06 degrees."""


def is_dummy_geometry(spacing: Sequence[float], direction: Sequence[float]) -> bool:
    """Voxels of 1 x 1 x 1 mm along the patient's axes: what a header holds when the geometry was lost.

    ``direction`` is a 3 x 3 matrix of cosines, row by row; signs do not matter.
    """
    along_axes = all(
        abs(abs(cosine) - (row == column)) < DIRECTION_TOLERANCE
        for (row, column), cosine in zip(product(range(3), range(3)), direction, strict=True)
    )
    return along_axes and all(abs(length - 1) < SPACING_TOLERANCE for length in spacing)
