"""Surface distances in millimetres, and surface Dice, as MONAI's metrics have them.

They are computed with SciPy, because importing MONAI loads all its parts: 3 s of CPU time and 190 MB of memory in every
process of every site. A test compares them with MONAI's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PERCENTILE = 95
MAX_MILLIMETRES = 1e4
"""Upper limit of a surface distance in mm; larger than any scan."""


def surface_distances(predicted: np.ndarray, reference: np.ndarray, spacing: Sequence[float]) -> tuple[float, float]:
    """95th percentile Hausdorff distance and average symmetric surface distance, in mm: see `surface_scores`."""
    return surface_scores(predicted, reference, spacing, tolerance=0.0)[:2]


def surface_scores(
    predicted: np.ndarray, reference: np.ndarray, spacing: Sequence[float], *, tolerance: float
) -> tuple[float, float, float]:
    """95th percentile Hausdorff distance and average symmetric surface distance, in mm, and surface Dice.

    Surface Dice is the part of both surfaces that is within ``tolerance`` mm of the other one, or just at it, compared
    as float32 because the distances are rounded to it: 0.6 mm is within 0.6 mm. If one of the masks is
    empty both distances are the diagonal of the volume, the largest possible one, and surface Dice is 0, so that a
    missed organ counts. If both are empty the distances are 0 and surface Dice is 1; evaluation leaves out
    cases with an empty reference (`fedshift.tasks.evaluation.by_class`).

    Masks are (slices, rows, columns) bool, ``spacing`` is in mm in the same order. Of a picture, which has one slice,
    surfaces are outlines, and distances are in pixels if ``spacing`` says so.
    """
    if len(predicted) == 1:  # otherwise every pixel would be at the surface, with nothing above and below it
        predicted, reference, spacing = predicted[0], reference[0], spacing[1:]
    guessed, actual = bool(predicted.any()), bool(reference.any())
    if not guessed and not actual:
        return 0.0, 0.0, 1.0
    if not guessed or not actual:
        diagonal = float(np.linalg.norm(np.multiply(predicted.shape, spacing)))
        return diagonal, diagonal, 0.0
    both = _distances(predicted, reference, spacing)
    hausdorff = max(float(np.percentile(values, PERCENTILE)) for values in both)
    every = np.concatenate(both)
    return hausdorff, float(every.mean()), float((every.astype(np.float32) <= np.float32(tolerance)).mean())


def _distances(first: np.ndarray, second: np.ndarray, spacing: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """From each voxel of the surface of one mask to the nearest of the other's, and back, in mm.

    The surface is the voxels with a neighbour along an axis that is not in the mask, or outside the volume. Distances
    are rounded to float32, as MONAI's are.
    """
    from scipy.ndimage import binary_erosion, find_objects
    from scipy.spatial import KDTree

    (box,) = find_objects((first | second).view(np.uint8))
    points = [
        np.argwhere(mask[box] & ~binary_erosion(mask[box])) * np.asarray(spacing, float) for mask in (first, second)
    ]
    trees = [KDTree(surface, leafsize=32) for surface in points]  # fewer, larger leaves: each tree is asked once
    forth, back = (trees[1 - i].query(points[i])[0].astype(np.float32).astype(np.float64) for i in (0, 1))
    return forth, back
