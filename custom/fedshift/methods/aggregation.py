"""Sums over sites that every server half shares: float64, in site order, one tensor at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedshift.messages import Weights
from fedshift.methods.base import SiteUpdate


def sample_fractions(updates: Sequence[SiteUpdate]) -> list[float]:
    """n_k / n for each update."""
    total = sum(update.n_samples for update in updates)
    return [update.n_samples / total for update in updates]


def average(weights: Weights, updates: Sequence[SiteUpdate], coefficients: Sequence[float]) -> Weights:
    """Weighted sum of the updates' tensors.

    Keys that no update carries stay as in ``weights``. Integer buffers (batch counters)
    are not averaged: the largest is taken. Dtypes and shapes stay those of ``weights``.
    """
    result: Weights = {}
    for key, old in weights.items():
        if key not in updates[0].weights:
            result[key] = old
        elif np.issubdtype(old.dtype, np.integer):
            largest = np.max([update.weights[key] for update in updates], axis=0)
            result[key] = np.asarray(largest, old.dtype)  # numpy turns 0-d results into scalars
        else:
            total = np.zeros(old.shape, np.float64)
            for update, coefficient in zip(updates, coefficients, strict=True):
                total += coefficient * update.weights[key].astype(np.float64)
            result[key] = np.asarray(total, old.dtype)
    return result
