"""Scores of single cases, between a task that scores them and what compares and sums them up."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class CaseScores:
    """Scores of single cases, in the order of the manifest. They stay at the site."""

    values: dict[str, np.ndarray] = field(default_factory=dict)
    """Score -> its value for each case (n,); NaN for a case that has none."""
    subjects: list[str] | None = None
    """Whose each case is; None if every case is of another subject."""
    truth: np.ndarray | None = None
    """Of a classifier, whether each case has each class, (n, K): 1, 0, or NaN where it is unknown."""
    probabilities: np.ndarray | None = None
    """Of a classifier, those of the classes, (n, K)."""
