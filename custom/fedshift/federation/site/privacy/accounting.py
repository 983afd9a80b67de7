"""What Gaussian noise is worth: from (ε, δ) to the noise, and back; and what several releases are worth together.

Noise of deviation z·Δ on a message that no change of one case moves by more than Δ (in L2 norm) is μ-GDP with
μ = 1/z; T such messages, also if each depends on the ones before, are μ√T-GDP (Dong, Roth & Su, "Gaussian Differential
Privacy", J. R. Stat. Soc. B 2022). And μ-GDP is (ε, δ)-differential privacy exactly for::

    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)

(Balle & Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018). These are equalities. The
bound by concentrated privacy, ρ = T/(2z²) and ε = ρ + 2 √(ρ ln(1/δ)) (Bun & Steinke, TCC 2016), is larger.

Releases with different noise compose in the same way: μ² is the sum of 1/z². Steps on cases that were drawn by chance
(DP-SGD) are not Gaussian mechanisms. They are composed numerically, from the distributions of the privacy loss, by
Google's dp-accounting, which errs on the safe side.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from scipy.special import log_ndtr

from fedshift.schema.errors import ConfigError
from fedshift.schema.policy import Noise

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


@dataclass(frozen=True)
class Mechanism:
    """``steps`` times Gaussian noise of ``multiplier`` times the sensitivity, on cases that are drawn one by one."""

    multiplier: float
    sampling_rate: float = 1.0
    steps: int = 1


class Budget:
    """The noise that one group of a job's messages needs, and the ε that they have used so far."""

    def __init__(self, noise: Noise, *, once: int, per_round: int, rounds: int) -> None:
        """``once`` messages in the statistics round and ``per_round`` in each of ``rounds`` others."""
        self.delta = noise.delta
        self._once, self._per_round, self._rounds = once, per_round, rounds
        self.multiplier = noise.multiplier or 0.0
        messages = once + per_round * rounds
        if noise.epsilon is not None and messages:
            self.multiplier = noise_multiplier(noise.epsilon, noise.delta, messages)
        self.total = self.spent(rounds)

    @property
    def planned(self) -> Mechanism:
        """All messages of the job."""
        return Mechanism(self.multiplier, steps=self._once + self._per_round * self._rounds)

    def spent(self, round_: int) -> float:
        """ε after a round."""
        messages = self._once + self._per_round * round_
        return epsilon_of(self.delta, math.sqrt(messages) / self.multiplier) if messages else 0.0


def composed_epsilon(mechanisms: Iterable[Mechanism], delta: float) -> float:
    """The ε at ``delta`` of all mechanisms together, each of which may depend on what came before.

    Exact if all cases take part in every step, otherwise an upper bound by dp-accounting.

    Raises:
        ConfigError: dp-accounting is needed and not installed.
    """
    sampled: Counter[tuple[float, float]] = Counter()
    squares = []
    for mechanism in mechanisms:
        if mechanism.sampling_rate < 1:
            sampled[mechanism.sampling_rate, mechanism.multiplier] += mechanism.steps
        else:
            squares.append(mechanism.steps / mechanism.multiplier**2)
    mu = math.sqrt(math.fsum(squares))
    if sampled:
        return _by_loss_distribution(tuple(sorted(sampled.items())), mu, delta)
    return epsilon_of(delta, mu) if mu else 0.0


@lru_cache(maxsize=64)
def _by_loss_distribution(sampled: tuple[tuple[tuple[float, float], int], ...], mu: float, delta: float) -> float:
    try:
        from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        raise ConfigError(
            "not-installed",
            "steps of DP-SGD are counted by dp-accounting, which is not installed here: pip install 'fedshift[dp]'",
        ) from None
    accountant = PLDAccountant()
    for (rate, multiplier), steps in sampled:
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), steps)
    if mu:
        accountant.compose(GaussianDpEvent(1 / mu))
    return float(accountant.get_epsilon(delta))


def _least(enough: Callable[[float], bool], low: float, high: float) -> float:
    """The least number that is enough, from the safe side; ``low`` may not be, ``high`` is."""
    for _ in range(STEPS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
