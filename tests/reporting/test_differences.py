"""Differences as text: never a signed zero."""

from __future__ import annotations

import pytest

from fedshift.reporting.differences import points, signed


@pytest.mark.parametrize(
    ("difference", "decimals", "text"),
    [
        (3.44, 1, "+3.4"),
        (-0.06, 1, "-0.1"),
        (0.011, 1, "+0.011"),
        (-0.0444, 1, "-0.044"),
        (0.0004, 2, "+0.0004"),
        (0.0, 1, "0.0"),
        (-0.0, 2, "0.00"),
        (-1e-14, 3, "0.000"),
    ],
)
def test_a_difference_that_would_be_printed_as_0_has_two_digits_and_none_has_no_sign(
    difference: float, decimals: int, text: str
) -> None:
    assert signed(difference, decimals=decimals) == text
    assert points(difference, decimals=decimals) == text.lstrip("+")
