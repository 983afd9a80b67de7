"""Whether an adaptation helps: paired differences, their interval, and what is chosen among several settings.

**Interval.** Of n paired differences with mean d and deviation s the 80 % t-interval, d ± t(0.9, n - 1) s / √n: its
lower end is the one-sided bound at 90 %. With three to five cases a bootstrap would be far too narrow.

**Confidence.** The level at which the one-sided bound is 0: T(d √n / s), with T Student's distribution function of
n - 1 degrees of freedom. Differences that are all the same have no deviation to judge by, and no interval; that chance
alone gives n of them one sign has a probability of 2⁻ⁿ (the sign test), so the confidence is then 1 - 2⁻ⁿ.

**Choice.** The best of several settings looks better than it is. So its gain is that of the choice and not of the
chosen: for each subject the setting is taken that is best on average for all others.
"""

from __future__ import annotations

import math

import numpy as np

LEVEL = 0.9
"""One-sided, of the interval's lower end."""
LEAST_DEVIATION = 1e-6
"""Of differences that are not all the same, but for rounding."""


def interval(differences: np.ndarray) -> tuple[float, float] | None:
    """The t-interval of the mean of paired differences (n,); None for fewer than two, or if all are the same."""
    n = len(differences)
    if n < 2 or differences.std() < LEAST_DEVIATION:
        return None
    from scipy.stats import t  # takes about a second

    mean = float(differences.mean())
    half = float(t.ppf(LEVEL, n - 1)) * float(differences.std(ddof=1)) / math.sqrt(n)
    return mean - half, mean + half


def confidence(differences: np.ndarray) -> float | None:
    """That the mean of paired differences (n,) is above 0; None for fewer than two."""
    n = len(differences)
    if n < 2:
        return None
    mean = float(differences.mean())
    if differences.std() < LEAST_DEVIATION:
        return 0.5 if abs(mean) < LEAST_DEVIATION else 1 - 2.0**-n if mean > 0 else 2.0**-n
    from scipy.stats import t

    return float(t.cdf(mean / (float(differences.std(ddof=1)) / math.sqrt(n)), n - 1))


def best_setting(gains: np.ndarray) -> int:
    """The setting with the largest mean gain; ``gains`` (settings, subjects). Of equals the first."""
    return int(gains.mean(1).argmax())


def gains_of_choice(gains: np.ndarray) -> np.ndarray:
    """For each subject its gain with the setting that is best for the others, (subjects,); at least two subjects."""
    others = (gains.sum(1, keepdims=True) - gains) / (gains.shape[1] - 1)
    return np.asarray(np.take_along_axis(gains, others.argmax(0)[None], 0)[0])
