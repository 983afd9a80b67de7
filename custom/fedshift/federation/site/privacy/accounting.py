"""What Gaussian noise is worth: from (ε, δ) to the noise, and back.

Noise of deviation z·Δ on a message that no change of one case moves by more than Δ (in L2 norm) is μ-GDP with
μ = 1/z; T such messages, also if each depends on the ones before, are μ√T-GDP (Dong, Roth & Su, "Gaussian Differential
Privacy", J. R. Stat. Soc. B 2022). And μ-GDP is (ε, δ)-differential privacy exactly for::

    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)

(Balle & Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018). These are equalities. The
bound by concentrated privacy, ρ = T/(2z²) and ε = ρ + 2 √(ρ ln(1/δ)) (Bun & Steinke, TCC 2016), is larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.special import log_ndtr

STEPS = 200
"""Of bisection: more than float64 can tell apart."""


def delta_of(epsilon: float, mu: float) -> float:
    """δ(ε) of μ-GDP."""
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return max(math.exp(first) - math.exp(min(second, 0.0)), 0.0)


def epsilon_of(delta: float, mu: float) -> float:
    """The least ε at which μ-GDP is (ε, δ)-differential privacy."""
    high = 1.0
    while delta_of(high, mu) > delta:
        high *= 2
    return _least(lambda epsilon: delta_of(epsilon, mu) <= delta, 0.0, high)


def noise_multiplier(epsilon: float, delta: float, messages: int) -> float:
    """The least z for which ``messages`` messages together are (ε, δ)-differential privacy."""
    high = 1.0
    while delta_of(epsilon, math.sqrt(messages) / high) > delta:
        high *= 2
    return _least(lambda z: delta_of(epsilon, math.sqrt(messages) / z) <= delta, 0.0, high)


def _least(enough: Callable[[float], bool], low: float, high: float) -> float:
    """The least number that is enough, from the safe side; ``low`` may not be, ``high`` is."""
    for _ in range(STEPS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
