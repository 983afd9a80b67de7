"""The mean of a difference over sites whose true differences are not the same: a random-effects model.

At each of k sites a mean difference d_i with standard error s_i is known. With w_i = 1 / (s_i² + τ²)::

    μ   = Σ w_i d_i / Σ w_i
    τ²  = max(0, (Q − (k − 1)) / (Σ v_i − Σ v_i² / Σ v_i)),   v_i = 1 / s_i²,  Q = Σ v_i (d_i − d̄_v)²
    var = max(1, Σ w_i (d_i − μ)² / (k − 1)) / Σ w_i

(DerSimonian & Laird, "Meta-analysis in clinical trials", Controlled Clinical Trials 7, 1986). The interval is
μ ± t · √var with k − 1 degrees of freedom (Hartung & Knapp, Statistics in Medicine 20, 2001), whose factor is not below
1 (Röver, Knapp & Friede, BMC Medical Research Methodology 15, 2015). With few sites it is wide, and that is what few
sites tell: the usual interval by the normal distribution misses the truth too often there.

Where all cases of a site have the same difference s_i is 0, which is no certainty: such a site counts as the most
precise of the others. If there are only such sites, with the same difference, nothing says how sure it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedshift.schema.evaluation import CONFIDENCE

LEAST_ERROR = 1e-6
"""Of a site whose cases do not all have the same difference."""


@dataclass(frozen=True)
class Effect:
    """The mean difference, its 95 % interval if it has one, and the deviation of the sites' true differences (τ)."""

    mean: float
    interval: tuple[float, float] | None
    tau: float


def random_effects(differences: Sequence[float], errors: Sequence[float]) -> Effect:
    """The effect over at least two sites, of their mean differences and standard errors (k,)."""
    from scipy import stats  # takes about a second

    d, s = np.asarray(differences, np.float64), np.asarray(errors, np.float64)
    same = s < LEAST_ERROR
    if same.all() and np.ptp(d) < LEAST_ERROR:
        return Effect(float(d.mean()), None, 0.0)
    s = np.where(same, LEAST_ERROR if same.all() else s[~same].min(), s)
    fixed, freedom = 1 / s**2, len(d) - 1
    spread = float((fixed * (d - np.average(d, weights=fixed)) ** 2).sum())
    tau2 = max(0.0, (spread - freedom) / float(fixed.sum() - (fixed**2).sum() / fixed.sum()))
    weights = 1 / (s**2 + tau2)
    mean = float(np.average(d, weights=weights))
    factor = max(1.0, float((weights * (d - mean) ** 2).sum()) / freedom)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * float(np.sqrt(factor / weights.sum()))
    return Effect(mean, (mean - reach, mean + reach), float(np.sqrt(tau2)))
