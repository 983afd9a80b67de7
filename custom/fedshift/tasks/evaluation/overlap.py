"""Overlap of a predicted mask with a reference, from voxel counts."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedshift.tasks.losses import SMOOTH


def counts_of(predicted: Tensor, reference: Tensor) -> np.ndarray:
    """Number of pixels of overlap, prediction and reference in each slice, (B, 3) float64."""
    sums = [mask.sum((1, 2)) for mask in (predicted & reference, predicted, reference)]
    counts: np.ndarray = torch.stack(sums, 1).double().numpy()
    return counts


def box_of(mask: np.ndarray) -> tuple[slice, ...]:
    """Bounding box of the True elements; empty if there are none."""
    places = [
        np.flatnonzero(mask.any(axis=tuple(a for a in range(mask.ndim) if a != axis))) for axis in range(mask.ndim)
    ]
    return tuple(slice(p[0], p[-1] + 1) if len(p) else slice(0) for p in places)


def dice(overlap: np.ndarray, predicted: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """2|P∩R| / (|P|+|R|) from voxel counts; NaN where the reference is empty, as MONAI's ``ignore_empty`` has it.

    Any prediction would have 0 there, and none at all 1 by convention: see `fedshift.tasks.evaluation.by_class`.
    """
    score: np.ndarray = np.where(reference > 0, 2 * overlap / np.maximum(predicted + reference, 1), np.nan)
    return score


def papers_dice(overlap: np.ndarray, predicted: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """FedFA's metric for one class: 2|P∩R| / (|P|+|R|+1e-5), so two empty masks give 0."""
    score: np.ndarray = 2 * overlap / (predicted + reference + SMOOTH)
    return score
