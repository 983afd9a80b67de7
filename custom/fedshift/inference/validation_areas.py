"""Areas under the ROC curve of finished classifiers at a site, by class, with DeLong's test against the first.

Of a class is told over how many cases with it and without, so both are cells that must be admitted
(`fedshift.federation.site.privacy.cells`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedshift.federation.site.privacy.cells import Cells
from fedshift.schema.validation import AreaDifference, ClassArea
from fedshift.tasks.evaluation import delong
from fedshift.tasks.evaluation.by_finding import rank_scores


def admitted(cells: Cells, truth: np.ndarray, part: np.ndarray) -> list[int]:
    """The classes that may be told of, in their order.

    Args:
        cells: what is told of already; those of the classes are added.
        truth: whether each case has each class, (n, K): 1, 0, or NaN where it is unknown.
        part: the cases that are scored, (n,) bool.
    """
    numbers = []
    for k, column in enumerate(truth.T):
        kinds = [(column == value) & part for value in (1, 0)]
        if all(kind.any() for kind in kinds) and cells.admit(kinds):
            numbers.append(k)
    return numbers


def areas(
    truth: np.ndarray, probabilities: Mapping[str, np.ndarray], classes: Mapping[int, str], *, first: str, several: bool
) -> dict[str, dict[str, ClassArea]]:
    """Model -> class -> area.

    Args:
        truth: (n, K), 1, 0 or NaN.
        probabilities: of each model, (n, K).
        classes: the numbers and names of those that may be told of, each with cases of both kinds.
        first: the model that the others are compared with, if it is among them.
        several: whether some subjects have several cases.
    """
    by_model: dict[str, dict[str, ClassArea]] = {model: {} for model in probabilities}
    for k, name in classes.items():
        known = ~np.isnan(truth[:, k])
        has = truth[known, k] == 1
        of_model = {model: values[known, k] for model, values in probabilities.items()}
        for model, value in of_model.items():
            against = None
            if model != first and first in of_model:
                against = _against(has, value, of_model[first], several=several)
            estimate = None if several else delong.area(has, value)
            by_model[model][name] = ClassArea(
                positives=int(has.sum()),
                negatives=int((~has).sum()),
                area=_area(has, value),
                error=None if estimate is None else estimate.error,
                against_first=against,
            )
    return by_model


def _area(has: np.ndarray, value: np.ndarray) -> float:
    return rank_scores(has.astype(float), value)["auroc"]


def _against(has: np.ndarray, value: np.ndarray, of_first: np.ndarray, *, several: bool) -> AreaDifference:
    less = _area(has, value) - _area(has, of_first)
    test = None if several else delong.difference(has, value, of_first)
    if test is None:
        return AreaDifference(difference=less)
    return AreaDifference(difference=less, error=test.error, p=test.p)
