"""Paired t-tests of rows: the pairs, and the numbers of scipy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import pytest
from scipy import stats

from fedshift_bench.notes import footnotes
from fedshift_bench.record import Comparison
from fedshift_bench.significance import paired_tests, t_test
from fedshift_bench.tables import long_csv

from .made import made

OURS = [{"A": 0.61, "B": 0.80}, {"A": 0.66, "B": 0.84}, {"A": 0.63, "B": 0.79}]
THEIRS = [{"A": 0.58, "B": 0.79}, {"A": 0.60, "B": 0.80}, {"A": 0.64, "B": 0.75}]


def three_seeds(**changes: str) -> Comparison:
    return made({("FedFA",): OURS, ("FedAvg",): THEIRS}, tests=[("FedFA", "FedAvg")], **changes)


def test_a_pair_is_a_seed_with_the_averages_over_sites() -> None:
    (test,) = paired_tests(three_seeds())
    averages = [[(told["A"] + told["B"]) / 2 for told in row] for row in (OURS, THEIRS)]
    assert test.n == 3 and test.over_pairs is not None and test.over_folds is None and test.interval is not None
    expected = stats.ttest_rel(*averages)
    assert (test.over_pairs.t, test.p) == pytest.approx((expected.statistic, expected.pvalue))
    # By hand: the mean of the differences by its standard error.
    gaps = [a - b for a, b in zip(*averages, strict=True)]
    mean = sum(gaps) / 3
    error = (sum((gap - mean) ** 2 for gap in gaps) / 2 / 3) ** 0.5
    assert test.difference == pytest.approx(mean) and test.over_pairs.t == pytest.approx(mean / error)
    # 4.303 is the 0.975 quantile of t with two degrees of freedom.
    assert test.interval == pytest.approx((mean - 4.303 * error, mean + 4.303 * error), abs=1e-4)
    # Shifted by the noncentrality 5.653, t with two degrees of freedom is above 4.303 in 80 % of repetitions.
    assert test.smallest == pytest.approx(5.653 * error, rel=1e-3)
    low, high = (f"{100 * bound:+.1f}".replace("-", "−") for bound in test.interval)
    (line,) = (note for note in footnotes(three_seeds()) if note.startswith("FedFA against FedAvg"))
    assert f"{low} to {high}" in line and line.endswith(f" {100 * test.smallest:.1f} (n = 3).")
    csv = long_csv(three_seeds())
    bounds = {"": mean, " (low)": test.interval[0], " (high)": test.interval[1]}
    assert all(f"FedFA,difference to FedAvg{name},{100 * v:.6g},,,3,3," in csv for name, v in bounds.items())


def test_a_pair_can_be_a_site_and_a_seed_and_is_called_dependent() -> None:
    comparison = three_seeds(pairs="sites_and_seeds")
    (test,) = paired_tests(comparison)
    flat = [[told[site] for told in row for site in "AB"] for row in (OURS, THEIRS)]
    expected = stats.ttest_rel(*flat)
    assert test.n == 6 and test.over_pairs is not None
    assert (test.over_pairs.t, test.p) == pytest.approx((expected.statistic, expected.pvalue))
    assert any("not independent" in note for note in footnotes(comparison))


def test_two_seeds_are_too_few_for_a_p_value() -> None:
    numbers = {("FedFA",): OURS[:2], ("FedAvg",): THEIRS[:2]}
    comparison = made(numbers, tests=[("FedFA", "FedAvg")])
    (test,) = paired_tests(comparison)
    assert (test.n, test.p, test.interval) == (2, None, None) and test.difference == pytest.approx(0.035)


def test_only_what_both_rows_have_makes_pairs() -> None:
    ours = [{"A": 0.6, "B": 0.8}, None, {"A": 0.5, "B": 0.7}]
    theirs = [{"A": 0.5, "B": 0.75}, {"A": 0.6, "B": 0.8}, {"A": 0.45, "B": 0.72}]
    rows = {("X",): ours, ("Y",): theirs}
    (test,) = paired_tests(made(rows, tests=[("X", "Y")]))
    assert test.n == 2
    (test,) = paired_tests(made(rows, tests=[("X", "Y")], pairs="sites_and_seeds"))
    assert test.n == 4
    del theirs[2]["B"]  # an average over fewer sites is no average of the row
    (test,) = paired_tests(made(rows, tests=[("X", "Y")]))
    assert test.n == 1
    assert paired_tests(made({("X",): [None], ("Y",): [{"A": 0.1}]}, tests=[("X", "Y")])) == []


def test_every_further_label_has_a_test_of_its_own() -> None:
    numbers = {(row, size): [{"A": 0.5}] for row in ("X", "Y") for size in ("small", "large")}
    axes = {"method": ["X", "Y"], "size": ["small", "large"]}
    tests = paired_tests(made(numbers, axes=axes, tests=[("X", "Y")]))
    assert [(test.block, test.n, test.p) for test in tests] == [("small", 1, None), ("large", 1, None)]


@pytest.mark.parametrize(
    ("a", "b"), [([0.5], [0.4]), ([0.5, 0.6], [0.4, 0.3]), ([0.5, 0.6, 0.7], [0.5, 0.6, 0.7]), ([5, 7, 6], [4, 6, 5])]
)
def test_few_pairs_or_one_and_the_same_difference_have_no_test(a: list[float], b: list[float]) -> None:
    assert t_test(a, b) is None


def of_cases(rows: Mapping[str, Sequence[Mapping[str, Sequence[float]]]]) -> Comparison:
    """Rows with the score of each case at each site, for each seed."""
    means = {(row,): [{site: fmean(of) for site, of in told.items()} for told in seeds] for row, seeds in rows.items()}
    comparison = made(means, tests=[("X", "Y")])
    cells = [
        cell.model_copy(update={"by_case": {"best": {"test": rows[cell.labels["method"]][cell.seed]}}})
        for cell in comparison.cells
    ]
    return comparison.model_copy(update={"cells": cells})


X = [
    {"A": [0.9, 0.8, 0.7, 0.85], "B": [0.7, 0.75]},
    {"A": [0.8, 0.9, 0.9, 0.8], "B": [0.7, 0.7]},
    {"A": [0.9] * 4, "B": [0.8] * 2},
]
Y = [
    {"A": [0.8, 0.7, 0.8, 0.8], "B": [0.6, 0.6]},
    {"A": [0.8, 0.7, 0.7, 0.8], "B": [0.6, 0.7]},
    {"A": [0.8] * 4, "B": [0.6] * 2},
]


def test_where_there_are_scores_of_cases_a_pair_is_a_case_averaged_over_seeds() -> None:
    comparison = of_cases({"X": X, "Y": Y})
    (test,) = paired_tests(comparison)
    differences = [
        fmean(x[site][place] - y[site][place] for x, y in zip(X, Y, strict=True))
        for site, n in (("A", 4), ("B", 2))
        for place in range(n)
    ]
    assert test.over_cases is not None and test.over_cases.n == 6
    assert test.over_cases.p == pytest.approx(stats.wilcoxon(differences, zero_method="zsplit").pvalue)
    assert test.largest_p == max(test.p or 0, test.over_cases.p or 0)
    (line,) = (note for note in footnotes(comparison) if note.startswith("X against Y"))
    assert f", over 6 cases p = {test.over_cases.p:.4f}," in line
    assert "over cases," in long_csv(comparison)


def test_a_cell_without_scores_of_cases_leaves_the_test_of_pairs() -> None:
    """As in records of before they were kept."""
    comparison = of_cases({"X": X, "Y": Y})
    cells = [*comparison.cells[:-1], comparison.cells[-1].model_copy(update={"by_case": {}})]
    (test,) = paired_tests(comparison.model_copy(update={"cells": cells}))
    assert test.over_cases is None and test.largest_p == test.p and test.p is not None
