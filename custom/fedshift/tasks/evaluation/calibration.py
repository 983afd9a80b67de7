"""Whether a model is as often right as it is sure (Guo et al., ICML 2017): counts in bins of confidence."""

from __future__ import annotations

import numpy as np

from fedshift.schema.evaluation import BINS
from fedshift.schema.evaluation import Calibration as Record


class Calibration:
    """Bins that fill batch by batch."""

    def __init__(self) -> None:
        """Empty bins."""
        self._counts = np.zeros(BINS, np.int64)
        self._right = np.zeros(BINS, np.int64)
        self._confidence = np.zeros(BINS)

    def add(self, confidence: np.ndarray, right: np.ndarray) -> None:
        """Samples (n,): the winning class's probability, and whether that class was the right one."""
        # A sample on the edge of two bins is in the lower one, as 1.0 must be in the last.
        bins = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
        self._counts += np.bincount(bins, minlength=BINS)
        self._right += np.bincount(bins[right], minlength=BINS)
        self._confidence += np.bincount(bins, weights=confidence, minlength=BINS)

    def record(self, *, fewest: int = 1) -> Record | None:
        """What results hold; None if there was no sample.

        A bin with fewer than ``fewest`` samples has its middle for their mean confidence, which would tell that of
        single samples; the error is that of what is shown.
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
