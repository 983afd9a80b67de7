"""p-values as text."""

from __future__ import annotations

import pytest

from fedshift.reporting.p_values import exact_p, p_equals, p_text


@pytest.mark.parametrize(
    ("p", "short", "equals", "exact"),
    [
        (0.5217, "0.522", "= 0.522", "0.5217"),
        (0.001, "0.001", "= 0.001", "0.0010"),
        (0.00099, "< 0.001", "< 0.001", "0.0010"),
        (0.0000211, "< 0.001", "< 0.001", "2.1e-05"),
    ],
)
def test_a_p_value_in_a_table_in_a_sentence_and_to_four_decimals(p: float, short: str, equals: str, exact: str) -> None:
    assert (p_text(p), p_equals(p), exact_p(p)) == (short, equals, exact)


def test_no_test_is_a_dash() -> None:
    assert p_text(None) == "–"
