"""Calibration (Guo et al., ICML 2017): accuracy and mean confidence in bins of the predicted probability."""

from __future__ import annotations

import numpy as np

from fedshift.schema.evaluation import BINS
from fedshift.schema.evaluation import Calibration as Record


class Calibration:
    """Calibration bins, filled batch by batch."""

    def __init__(self) -> None:
        self._counts = np.zeros(BINS, np.int64)
        self._right = np.zeros(BINS, np.int64)
        self._confidence = np.zeros(BINS)

    def add(self, confidence: np.ndarray, right: np.ndarray) -> None:
        """Add samples: probability of the predicted class (n,) and whether that class is correct (n,)."""
        # Bins include their upper edge, so that 1.0 is in the last bin.
        bins = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
        self._counts += np.bincount(bins, minlength=BINS)
        self._right += np.bincount(bins[right], minlength=BINS)
        self._confidence += np.bincount(bins, weights=confidence, minlength=BINS)

    def record(self, *, fewest: int = 1) -> Record | None:
        """The bins for ``results.json``; None without samples.

        In a bin with fewer than ``fewest`` samples the mean confidence is replaced by the middle of the bin, so that it
        doesn't reveal single samples; ``ece`` is computed from these values.
        """
        total = int(self._counts.sum())
        if not total:
            return None
        mean = np.clip(self._confidence / np.maximum(self._counts, 1), 0, 1)
        middle = np.where(self._counts > 0, (np.arange(BINS) + 0.5) / BINS, 0)
        confidence = np.where(self._counts >= fewest, mean, middle)
        gap = np.abs(self._right - confidence * self._counts).sum() / total
        return Record(
            ece=min(float(gap), 1.0),
            counts=self._counts.tolist(),
            right=self._right.tolist(),
            confidence=confidence.tolist(),
        )
