"""Paired t-tests of rows: the pairs, and the numbers of scipy."""

from __future__ import annotations

import pytest
from scipy import stats

from fedshift.reporting.comparison.significance import paired_tests, t_test

from .made import made


def test_a_pair_is_a_site_and_a_seed() -> None:
    ours = [{"A": 0.61, "B": 0.80}, {"A": 0.66, "B": 0.84}, {"A": 0.63, "B": 0.79}]
    theirs = [{"A": 0.58, "B": 0.79}, {"A": 0.60, "B": 0.80}, {"A": 0.64, "B": 0.75}]
    comparison = made({("FedFA",): ours, ("FedAvg",): theirs}, tests=[("FedFA", "FedAvg")])
    (test,) = paired_tests(comparison)
    flat = [[told[site] for told in row for site in "AB"] for row in (ours, theirs)]
    assert test.n == 6 and test.t is not None and test.p is not None
    expected = stats.ttest_rel(*flat)
    assert (test.t, test.p) == pytest.approx((expected.statistic, expected.pvalue))
    # By hand: the mean of the differences by its standard error.
    gaps = [a - b for a, b in zip(*flat, strict=True)]
    mean = sum(gaps) / 6
    error = (sum((gap - mean) ** 2 for gap in gaps) / 5 / 6) ** 0.5
    assert test.difference == pytest.approx(mean) and test.t == pytest.approx(mean / error)


def test_only_what_both_rows_have_makes_pairs() -> None:
    ours = [{"A": 0.6, "B": 0.8}, None, {"A": 0.5, "B": 0.7}]
    theirs = [{"A": 0.5, "B": 0.75}, {"A": 0.6, "B": 0.8}, {"A": 0.45, "B": 0.72}]
    (test,) = paired_tests(made({("X",): ours, ("Y",): theirs}, tests=[("X", "Y")]))
    assert test.n == 4
    assert paired_tests(made({("X",): [None], ("Y",): [{"A": 0.1}]}, tests=[("X", "Y")])) == []


def test_every_further_label_has_a_test_of_its_own() -> None:
    numbers = {(row, size): [{"A": 0.5}] for row in ("X", "Y") for size in ("small", "large")}
    axes = {"method": ["X", "Y"], "size": ["small", "large"]}
    tests = paired_tests(made(numbers, axes=axes, tests=[("X", "Y")]))
    assert [(test.block, test.n, test.p) for test in tests] == [("small", 1, None), ("large", 1, None)]


@pytest.mark.parametrize(("a", "b"), [([0.5], [0.4]), ([0.5, 0.6], [0.5, 0.6]), ([0.5, 0.7], [0.4, 0.6])])
def test_one_pair_or_one_and_the_same_difference_has_no_test(a: list[float], b: list[float]) -> None:
    assert t_test(a, b) == (None, None)
