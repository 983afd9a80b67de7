"""How scores are written, and which way is better."""

from __future__ import annotations

import pytest

from fedshift_bench.columns import measure


@pytest.mark.parametrize(
    ("name", "text", "scaled", "better"),
    [
        ("dice", "81.2", 81.234, "higher"),
        ("hd95", "0.81", 0.81234, "lower"),
        ("ece", "81.2", 81.234, "lower"),
        ("gradient_norm", "0.812", 0.81234, None),
        ("a score that nobody knows", "81.2", 81.234, "higher"),
    ],
)
def test_a_score_in_its_unit(name: str, text: str, scaled: float, better: str | None) -> None:
    found = measure(name)
    assert (found.text(0.81234), found.better) == (text, better)
    assert found.scaled(0.81234) == pytest.approx(scaled)
