"""Surface distances in millimetres, by MONAI."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch

PERCENTILE = 95


def surface_distances(predicted: np.ndarray, reference: np.ndarray, spacing: Sequence[float]) -> tuple[float, float]:
    """95th percentile Hausdorff distance and average symmetric surface distance, in mm.

    If one of the masks is empty both are the diagonal of the volume, the largest possible distance, so that a missed
    organ counts. If both are empty the distances are 0.

    Args:
        predicted: (slices, rows, columns) bool.
        reference: (slices, rows, columns) bool.
        spacing: mm, in the same order.
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
        warnings.simplefilter("ignore", FutureWarning)  # from calls inside MONAI
        # MONAI's two metrics would each compute all distances again.
        _, distances, _ = get_edge_surface_distance(p, r, distance_metric="euclidean", spacing=step, symmetric=True)
    both = [np.asarray(values, np.float64) for values in distances]  # in both directions
    hausdorff = max(float(np.percentile(values, PERCENTILE)) for values in both)
    return hausdorff, float(np.concatenate(both).mean())
