"""What Gaussian noise is worth: published values, bounds, and that both directions agree."""

from __future__ import annotations

import math

import pytest

from fedshift.federation.site.privacy.accounting import delta_of, epsilon_of, noise_multiplier


def test_delta_is_that_of_the_paper_on_the_gaussian_mechanism() -> None:
    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    for epsilon, mu in ((1.0, 1.0), (0.1, 0.5), (3.0, 2.0), (0.0, 1.0)):
        expected = phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)
        assert delta_of(epsilon, mu) == pytest.approx(expected, rel=1e-9)
    assert delta_of(1.0, 1.0) == pytest.approx(0.12693674, abs=1e-8)
    assert noise_multiplier(1.0, 1e-5, 1) == pytest.approx(3.730632, abs=1e-6)


@pytest.mark.parametrize("rounds", [1, 10, 200])
@pytest.mark.parametrize("z", [0.3, 1.0, 5.0])
def test_the_stated_epsilon_is_below_the_bound_by_concentrated_privacy_and_above_half_of_it(
    z: float, rounds: int
) -> None:
    delta = 1e-5
    rho = rounds / (2 * z**2)
    bound = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    exact = epsilon_of(delta, math.sqrt(rounds) / z)
    assert bound / 2 < exact < bound


@pytest.mark.parametrize(
    ("epsilon", "delta", "messages"), [(0.5, 1e-6, 1), (1, 1e-5, 100), (10, 1e-3, 7), (100, 0.01, 3)]
)
def test_noise_and_epsilon_are_each_others_inverse_and_err_on_the_safe_side(
    epsilon: float, delta: float, messages: int
) -> None:
    z = noise_multiplier(epsilon, delta, messages)
    assert epsilon_of(delta, math.sqrt(messages) / z) == pytest.approx(epsilon, rel=1e-9)
    assert delta_of(epsilon, math.sqrt(messages) / z) <= delta
    assert noise_multiplier(epsilon, delta, 4 * messages) == pytest.approx(2 * z), "four times the messages"
