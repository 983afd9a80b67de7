"""Random effects: published numbers, and the limits in which the answer is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fedshift.tasks.evaluation.random_effects import random_effects

BCG = (
    (-0.8893, -1.5854, -1.3481, -1.4416, -0.2175, -0.7861, -1.6209, 0.0120, -0.4694, -1.3713, -0.3394, 0.4459, -0.0173),
    (0.3256, 0.1946, 0.4154, 0.0200, 0.0512, 0.0069, 0.2230, 0.0040, 0.0564, 0.0730, 0.0124, 0.5325, 0.0714),
)
"""Log risk ratios of 13 trials of a vaccine against tuberculosis and their variances (Colditz et al., JAMA 1994)."""


def bounds(differences: Sequence[float], errors: Sequence[float]) -> tuple[float, float]:
    interval = random_effects(differences, errors).interval
    assert interval is not None
    return interval


def test_the_trials_of_bcg() -> None:
    """DerSimonian and Laird's estimate of these trials is -0.714 with tau² 0.309 in all textbooks."""
    effect = random_effects(BCG[0], np.sqrt(BCG[1]).tolist())
    assert effect.mean == pytest.approx(-0.714, abs=2e-3)
    assert effect.tau**2 == pytest.approx(0.309, abs=2e-3)
    low, high = bounds(BCG[0], np.sqrt(BCG[1]).tolist())
    assert low < -1.0 and -0.4 < high < -0.3


def test_equal_sites_have_their_mean_and_no_deviation() -> None:
    effect = random_effects([0.02, 0.02, 0.02], [0.01, 0.01, 0.01])
    assert (effect.mean, effect.tau) == (pytest.approx(0.02), 0.0)
    half = 4.3027 * 0.01 / np.sqrt(3)  # Student's t of two degrees of freedom, not below the sites' own errors
    assert effect.interval == (pytest.approx(0.02 - half, abs=1e-5), pytest.approx(0.02 + half, abs=1e-5))


def test_two_sites_that_differ_tell_next_to_nothing() -> None:
    low, high = bounds([0.10, -0.08], [0.001, 0.001])
    assert low < -0.5 and high > 0.5


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng, hits, repeats = np.random.default_rng(0), 0, 400
    for _ in range(repeats):
        errors = rng.uniform(0.01, 0.04, 4)
        low, high = bounds(rng.normal(rng.normal(0.02, 0.02, 4), errors).tolist(), errors.tolist())
        hits += low <= 0.02 <= high
    assert hits / repeats > 0.93


def test_cases_that_do_not_differ_are_no_certainty() -> None:
    """A site of few such cases weighs as much as the most precise of the others, and not all that there is."""
    same = random_effects([0.0, 0.01, 0.02], [0.0, 0.01, 0.02])
    assert same == random_effects([0.0, 0.01, 0.02], [0.01, 0.01, 0.02])
    assert random_effects([0.0, 0.0], [0.0, 0.0]).interval is None
    low, high = bounds([0.1, 0.0], [0.0, 0.0])
    assert low < 0 < high
