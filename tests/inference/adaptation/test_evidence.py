"""The interval is Student's, and the gain of a choice is not that of the luckiest setting."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from fedshift.inference.adaptation.evidence import best_setting, confidence, gains_of_choice, interval


def test_the_interval_is_students() -> None:
    differences = np.array([1.0, 2.0, 3.0])  # mean 2, deviation 1; t(0.9, 2) = 1.8856
    low, high = interval(differences) or (0.0, 0.0)
    assert low == pytest.approx(2 - 1.8856 / 3**0.5, abs=1e-4) and high == pytest.approx(4 - low)
    assert interval(differences[:1]) is None


def test_the_confidence_is_that_of_a_one_sided_test() -> None:
    for differences in (np.array([1.0, -2.0, 4.0]), np.array([-1.0, -1.5]), np.array([0.3, 0.1, 0.2, 0.9])):
        p = ttest_1samp(differences, 0, alternative="greater").pvalue
        assert confidence(differences) == pytest.approx(1 - p)
    assert confidence(np.array([1.0])) is None


def test_the_same_difference_in_every_case_is_no_certainty() -> None:
    """A sign test's: three coins fall alike on one given side in one of eight throws."""
    assert [confidence(np.full(3, gain)) for gain in (0.1, 0.0, -0.1)] == [0.875, 0.5, 0.125]
    assert confidence(np.array([0.1, 0.1 + 1e-9])) == 0.75  # rounding is no deviation
    assert interval(np.full(3, 0.1)) is None


def test_a_setting_that_is_best_for_one_alone_is_not_chosen_for_it() -> None:
    gains = np.array([[9.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    assert best_setting(gains) == 0
    assert gains_of_choice(gains).tolist() == [1.0, 0.0, 0.0]


def test_without_any_effect_the_gain_of_the_choice_is_about_zero() -> None:
    rng = np.random.default_rng(0)
    chosen = np.mean([gains_of_choice(rng.normal(size=(12, 4))).mean() for _ in range(400)])
    luckiest = np.mean([rng.normal(size=(12, 4)).mean(1).max() for _ in range(400)])
    assert abs(chosen) < 0.08 and luckiest > 0.6
