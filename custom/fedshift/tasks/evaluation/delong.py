"""DeLong's test: do two models differ in the area under the ROC curve on the same cases?

DeLong et al., Biometrics 44 (1988), by the midranks of Sun and Xu, IEEE Signal Processing Letters 21 (2014)::

    V10_i  part of the negatives that positive i is ranked above (ties count half)     AUROC = mean of V10
    V01_j  part of the positives that negative j is ranked below
    variance of the difference = var(V10_a - V10_b) / m + var(V01_a - V01_b) / n

with m positives and n negatives; the difference over its deviation is standard normal under the hypothesis that the
areas are equal. Cases count as independent: several of one subject make p too small, so such comparisons get none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def delong_p(has: np.ndarray, a: np.ndarray, b: np.ndarray) -> float | None:
    """Two-sided p of the difference in AUROC of two models' probabilities of the same cases (n,).

    None if there are fewer than two cases of either kind; 1 if no pair of cases is ranked differently.
    """
    m, n = int(has.sum()), int((~has).sum())
    if min(m, n) < 2:
        return None
    (a10, a01), (b10, b01) = components(has, a), components(has, b)
    of_positives, of_negatives = a10 - b10, a01 - b01
    variance = float(of_positives.var(ddof=1) / m + of_negatives.var(ddof=1) / n)
    difference = float(of_positives.mean())
    if variance <= 0:
        return 1.0 if difference == 0 else 0.0
    return math.erfc(abs(difference) / math.sqrt(2 * variance))


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
        compared[name] = PairedClass(
            positives=int(has.sum()),
            negatives=int((~has).sum()),
            federated=areas[0],
            local=areas[1],
            p=delong_p(has, a[known], b[known]) if federated.subjects is None else None,
        )
    return compared
