"""Mean ranks, critical differences and corrected tests, with the worked example of Demšar 2006 (his Table 6)."""

from __future__ import annotations

import numpy as np
import pytest

from fedshift_bench.significance import (
    block_ranks,
    critical_difference,
    friedman,
    holm,
    indistinct,
    signed_rank,
)

NAMES = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")
AUC = np.array(
    [
        (0.763, 0.768, 0.771, 0.798),
        (0.599, 0.591, 0.590, 0.569),
        (0.954, 0.971, 0.968, 0.967),
        (0.628, 0.661, 0.654, 0.657),
        (0.882, 0.888, 0.886, 0.898),
        (0.936, 0.931, 0.916, 0.931),
        (0.661, 0.668, 0.609, 0.685),
        (0.583, 0.583, 0.563, 0.625),
        (0.775, 0.838, 0.866, 0.875),
        (1.000, 1.000, 1.000, 1.000),
        (0.940, 0.962, 0.965, 0.962),
        (0.619, 0.666, 0.614, 0.669),
        (0.972, 0.981, 0.9751, 0.9749),  # both printed as 0.975, with ranks 2 and 3
        (0.957, 0.978, 0.946, 0.970),
    ]
)


def means() -> dict[str, float]:
    return dict(zip(NAMES, block_ranks(AUC, higher_is_better=True).mean(axis=0), strict=True))


def test_the_mean_ranks_are_the_papers() -> None:
    assert means() == pytest.approx({"C4.5": 3.143, "C4.5+m": 2.000, "C4.5+cf": 2.893, "C4.5+m+cf": 1.964}, abs=5e-4)
    lower = block_ranks(AUC, higher_is_better=False)
    np.testing.assert_allclose(lower + block_ranks(AUC, higher_is_better=True), 5)


def test_friedmans_statistic_is_the_papers_but_for_the_correction_for_ties() -> None:
    test = friedman(AUC)
    ties = 3 * (2**3 - 2) + (4**3 - 4)  # three pairs and a data set on which all are equal
    assert test is not None
    assert test.statistic * (1 - ties / (14 * 4 * 15)) == pytest.approx(9.28, abs=0.01)
    assert 0.01 < test.p < 0.02


def test_the_critical_differences_and_what_they_tell_apart_are_the_papers() -> None:
    at_5, at_10 = critical_difference(4, 14), critical_difference(4, 14, alpha=0.1)
    assert at_5 == pytest.approx(1.25, abs=0.005) and at_10 == pytest.approx(1.12, abs=0.005)
    assert at_5 is not None and indistinct(means(), at_5) == [("C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5")]
    assert at_10 is not None and indistinct(means(), at_10) == [
        ("C4.5+m+cf", "C4.5+m", "C4.5+cf"),
        ("C4.5+cf", "C4.5"),
    ]


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_the_critical_values_are_those_of_the_papers_table_5(methods: int, q: float) -> None:
    difference = critical_difference(methods, 20)
    assert difference == pytest.approx(q * (methods * (methods + 1) / 120) ** 0.5, rel=1e-3)


def test_wilcoxons_test_is_that_of_the_papers_table_2() -> None:
    """R+ is 93 and R- is 12 there, zero differences split, so that z = -2.54."""
    assert signed_rank(list(AUC[:, 1]), list(AUC[:, 0])) == pytest.approx(0.011, abs=0.001)


def test_holms_correction_is_that_of_the_papers_example() -> None:
    """0.016 is below 0.05 / 3 and 0.019 below 0.05 / 2, but 0.607 is not below 0.05."""
    assert holm([0.607, 0.016, 0.019]) == pytest.approx([0.607, 0.048, 0.048])


def test_holm_by_hand() -> None:
    assert holm([0.01, None, 0.04, 0.03, 0.005]) == pytest.approx([0.03, None, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == [] and holm([None]) == [None]


def test_fewer_than_three_pairs_or_blocks_have_no_p() -> None:
    assert friedman(AUC[:2]) is None and friedman(AUC[:, :2]) is None and critical_difference(4, 2) is None
    assert friedman(np.ones((4, 3))) is None, "all alike: undefined"
    assert signed_rank([0.5, 0.6], [0.4, 0.4]) is None
    assert signed_rank([0.5, 0.6, 0.7, 0.8], [0.4, 0.4, 0.7, 0.8]) is None, "two of four differ"


def test_groups_are_maximal_and_single_rows_are_none() -> None:
    ranks = {"a": 1.0, "b": 1.5, "c": 2.4, "d": 5.0}
    assert indistinct(ranks, 1.0) == [("a", "b"), ("b", "c")]
    assert indistinct({"b": 1.5, "a": 1.5, "c": 3.0}, 1.0) == [("a", "b")], "equal ranks by name, as in the table"
    assert indistinct(ranks, 0.1) == [] and indistinct(ranks, 9.0) == [("a", "b", "c", "d")]
