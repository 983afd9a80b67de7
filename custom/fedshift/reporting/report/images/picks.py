"""Which cases of a site are shown: the worst, the median and the best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Picked:
    """The place of a case, and why it is shown."""

    word: str
    place: int


def pick(scores: np.ndarray) -> list[Picked]:
    """Of the cases that have a score: of one without the structure it is NaN."""
    order = np.argsort(scores, kind="stable")[: np.count_nonzero(~np.isnan(scores))]
    if not len(order):
        return []
    places = {"worst": order[0], "median": order[(len(order) - 1) // 2], "best": order[-1]}
    picked: dict[int, str] = {}
    for word, place in places.items():
        picked.setdefault(int(place), word)
    return [Picked(word, place) for place, word in picked.items()]


def of_pictures(labels: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """The probability (n,) that a model gave to what is right, by its probabilities (n, K).

    Of classes (n,) that of the right one; of findings (n, K) the mean over those that are known, NaN without any.
    """
    if labels.ndim == 1:
        return np.asarray(predicted[np.arange(len(labels)), labels])
    known = ~np.isnan(labels)
    right = np.where(labels == 1, predicted, 1 - predicted)
    return np.where(known.any(1), (right * known).sum(1) / np.maximum(known.sum(1), 1), np.nan)
