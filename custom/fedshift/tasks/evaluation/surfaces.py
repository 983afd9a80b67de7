"""Surface distances in millimetres, and surface Dice, by MONAI."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch

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

    Surface Dice is the part of both surfaces that is within ``tolerance`` mm of the other one. If one of the masks is
    empty both distances are the diagonal of the volume, the largest possible one, and surface Dice is 0, so that a
    missed organ counts. If both are empty the distances are 0 and surface Dice is 1.

    Args:
        predicted: (slices, rows, columns) bool.
        reference: (slices, rows, columns) bool.
        spacing: mm, in the same order.
        tolerance: mm.
    """
    found, there = bool(predicted.any()), bool(reference.any())
    if not found and not there:
        return 0.0, 0.0, 1.0
    if not found or not there:
        diagonal = float(np.linalg.norm(np.multiply(predicted.shape, spacing)))
        return diagonal, diagonal, 0.0
    from monai.metrics.utils import get_edge_surface_distance  # takes seconds to import

    p, r = (torch.from_numpy(np.ascontiguousarray(mask)) for mask in (predicted, reference))
    step = [float(length) for length in spacing]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # from calls inside MONAI
        # MONAI's three metrics would each compute all distances again.
        _, distances, _ = get_edge_surface_distance(p, r, distance_metric="euclidean", spacing=step, symmetric=True)
    both = [np.asarray(values, np.float64) for values in distances]  # in both directions
    hausdorff = max(float(np.percentile(values, PERCENTILE)) for values in both)
    every = np.concatenate(both)
    return hausdorff, float(every.mean()), float((every <= tolerance).mean())
