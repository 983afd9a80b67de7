"""DeLong's test: do two models differ in the area under the ROC curve on the same cases?

DeLong et al., Biometrics 44 (1988), by the midranks of Sun and Xu, IEEE Signal Processing Letters 21 (2014)::

    V10_i  part of the negatives that positive i is ranked above (ties count half)     AUROC = mean of V10
    V01_j  part of the positives that negative j is ranked below
    variance of the difference = var(V10_a - V10_b) / m + var(V01_a - V01_b) / n

with m positives and n negatives; that of one area is the same with V_b = 0. The difference over its deviation is
standard normal under the hypothesis that the areas are equal. Cases count as independent: several of one subject make
errors and p too small, so such comparisons get none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedshift.schema.paired import PairedClass
from fedshift.tasks.evaluation.by_finding import rank_scores
from fedshift.tasks.evaluation.case_scores import CaseScores


def components(has: np.ndarray, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """V10 (m,) and V01 (n,) of cases: whether each has the class, and its probability."""
    from scipy.stats import rankdata  # takes about a second

    positive, negative = probability[has], probability[~has]
    m, n = len(positive), len(negative)
    ranks = rankdata(np.concatenate([positive, negative]))
    return (ranks[:m] - rankdata(positive)) / n, 1 - (ranks[m:] - rankdata(negative)) / m


@dataclass(frozen=True)
class Estimate:
    """An area under the ROC curve, or the difference of two; ``error``: its standard error."""

    value: float
    error: float

    @property
    def p(self) -> float:
        """Two-sided, of the hypothesis that the value is 0; 1 if no pair of cases is ranked differently."""
        if self.error <= 0:
            return 1.0 if self.value == 0 else 0.0
        return math.erfc(abs(self.value) / (math.sqrt(2) * self.error))


def area(has: np.ndarray, probability: np.ndarray) -> Estimate | None:
    """The area of cases (n,); None if there are fewer than two of either kind."""
    return None if _few(has) else _estimate(*components(has, probability))


def difference(has: np.ndarray, a: np.ndarray, b: np.ndarray) -> Estimate | None:
    """How much larger the area is of a model's probabilities than of another's, of the same cases (n,).

    None if there are fewer than two cases of either kind.
    """
    if _few(has):
        return None
    (a10, a01), (b10, b01) = components(has, a), components(has, b)
    return _estimate(a10 - b10, a01 - b01)


def _few(has: np.ndarray) -> bool:
    return min(int(has.sum()), int((~has).sum())) < 2


def _estimate(of_positives: np.ndarray, of_negatives: np.ndarray) -> Estimate:
    variance = of_positives.var(ddof=1) / len(of_positives) + of_negatives.var(ddof=1) / len(of_negatives)
    return Estimate(float(of_positives.mean()), math.sqrt(float(variance)))


def compare_classes(federated: CaseScores, local: CaseScores, names: Sequence[str]) -> dict[str, PairedClass]:
    """Both models' areas of each class that has cases of both kinds, with p; none for models without classes."""
    if federated.truth is None or federated.probabilities is None or local.probabilities is None:
        return {}
    compared = {}
    for k, name in enumerate(names):
        truth, a, b = federated.truth[:, k], federated.probabilities[:, k], local.probabilities[:, k]
        areas = [rank_scores(truth, value).get("auroc") for value in (a, b)]
        if areas[0] is None or areas[1] is None:
            continue
        known = ~np.isnan(truth)
        has = truth[known] == 1
        test = difference(has, a[known], b[known]) if federated.subjects is None else None
        compared[name] = PairedClass(
            positives=int(has.sum()),
            negatives=int((~has).sum()),
            federated=areas[0],
            local=areas[1],
            p=None if test is None else test.p,
        )
    return compared
