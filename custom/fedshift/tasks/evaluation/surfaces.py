"""Distances between two surfaces in millimetres, by MONAI."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch

PERCENTILE = 95


def surface_distances(predicted: np.ndarray, reference: np.ndarray, spacing: Sequence[float]) -> tuple[float, float]:
    """The 95th percentile Hausdorff distance and the symmetric average surface distance, in mm.

    Where one of two masks is empty there is no surface to measure: both are the volume's diagonal then, the largest
    distance it has, so that a missed organ counts and counts as much as can be. Two empty masks agree (0).

    Args:
        predicted: (slices, rows, columns) bool.
        reference: the same.
        spacing: millimetres, in that order.
    """
    found, there = bool(predicted.any()), bool(reference.any())
    if not found and not there:
        return 0.0, 0.0
    if not found or not there:
        diagonal = float(np.linalg.norm(np.multiply(predicted.shape, spacing)))
        return diagonal, diagonal
    from monai.metrics.utils import get_edge_surface_distance  # takes seconds to import

    p, r = (torch.from_numpy(np.ascontiguousarray(mask)) for mask in (predicted, reference))
    step = [float(length) for length in spacing]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about calls between MONAI's own functions
        # What its two metrics of surfaces are made of: each would measure all distances again.
        _, distances, _ = get_edge_surface_distance(p, r, distance_metric="euclidean", spacing=step, symmetric=True)
    both = [np.asarray(values, np.float64) for values in distances]  # from each surface to the other
    hausdorff = max(float(np.percentile(values, PERCENTILE)) for values in both)
    return hausdorff, float(np.concatenate(both).mean())
