"""Whether a table says that the paper's order is confirmed, refuted or undecided, and why."""

from __future__ import annotations

from typing import Any

import pytest
from scipy import stats

from fedshift_bench.claims import claims_sentence, conclusions, pairs_in_order
from fedshift_bench.published import PublishedValue
from fedshift_bench.tables import latex, markdown

from .made import made

HIGH = [{"A": 0.80, "B": 0.90}, {"A": 0.81, "B": 0.93}, {"A": 0.80, "B": 0.92}]
LOW = [{"A": 0.60, "B": 0.70}, {"A": 0.62, "B": 0.70}, {"A": 0.61, "B": 0.69}]
NEAR = [{"A": 0.61, "B": 0.68}, {"A": 0.61, "B": 0.73}, {"A": 0.64, "B": 0.68}]
ROWS: dict[Any, Any] = {("X",): HIGH, ("Y",): LOW, ("Z",): NEAR}
TESTS = [("X", "Y"), ("Z", "Y"), ("Y", "X")]


def averages(row: list[dict[str, float]]) -> list[float]:
    return [(told["A"] + told["B"]) / 2 for told in row]


def test_a_claim_is_confirmed_refuted_or_undecided_by_its_paired_test() -> None:
    comparison = made(ROWS, tests=TESTS, claims=[("X", "Y"), ("Y", "X"), ("Z", "Y")])
    p = float(stats.ttest_rel(averages(HIGH), averages(LOW)).pvalue)
    near = float(stats.ttest_rel(averages(NEAR), averages(LOW)).pvalue)
    assert p < 0.05 < near
    assert [one.outcome for one in conclusions(comparison)] == ["confirmed", "refuted", "undecided"]
    assert claims_sentence(comparison) == (
        "What the paper claims, at p < 0.05 after Holm's correction for 3 claims: confirmed: X above Y (+20.7, p = "
        f"{p:.4f}, Holm {3 * p:.4f}); refuted: Y above X (−20.7, p = {p:.4f}, Holm {3 * p:.4f}); undecided (no "
        f"difference found): Z above Y (+0.5, p = {near:.4f}, Holm {near:.4f})."
    )


def test_a_claim_whose_run_failed_counts_as_tried() -> None:
    """Its p alone, and as one of two claims, would be below 0.05; as one of three it is not."""
    low = [{"A": 0.60, "B": 0.60}, {"A": 0.60, "B": 0.60}, {"A": 0.60, "B": 0.60}]
    high = [{"A": 0.61, "B": 0.616}, {"A": 0.62, "B": 0.62}, {"A": 0.62, "B": 0.622}]
    failed: list[None] = [None, None, None]
    rows: Any = {("X",): high, ("Y",): low, ("V",): failed, ("W",): failed}
    claims = [("X", "Y"), ("V", "Y"), ("W", "Y")]
    outcomes = {}
    for n in (1, 2, 3):
        one = conclusions(made(rows, tests=claims, claims=claims[:n]))[0]
        assert one.p is not None and one.p_holm == pytest.approx(n * one.p)
        outcomes[n] = one.outcome
    assert outcomes == {1: "confirmed", 2: "confirmed", 3: "undecided"}


def test_with_fewer_than_three_seeds_or_without_runs_nothing_is_decided() -> None:
    two = made({row: seeds[:2] for row, seeds in ROWS.items()}, tests=TESTS, claims=[("X", "Y")])
    assert "undecided (a test needs 3 seeds): X above Y (+20.5)." in claims_sentence(two)
    none = made({**ROWS, ("X",): [None, None, None]}, tests=TESTS, claims=[("X", "Y")])
    assert "undecided (without runs of both): X above Y." in claims_sentence(none)


def published(row: str, column: str, value: str) -> PublishedValue:
    return PublishedValue(row=row, column=column, value=value)


@pytest.mark.parametrize("columns", [["average"], ["A", "B"]])
def test_without_claims_the_published_averages_are_the_papers_order(columns: list[str]) -> None:
    printed = [published(row, column, value) for row, value in (("X", "70"), ("Y", "90")) for column in columns]
    (one,) = conclusions(made(ROWS, tests=[("X", "Y")], published=printed))
    assert (one.higher, one.lower, one.outcome) == ("Y", "X", "refuted")
    untested = made(ROWS, published=[*printed, published("Z", columns[0], "60")])
    assert pairs_in_order(untested) == ((1, 3) if columns == ["average"] else (0, 1))
    assert "undecided (no test was asked for): of" in claims_sentence(untested)
    assert claims_sentence(made(ROWS, tests=TESTS)) == "", "nothing is known of a paper's order"


def test_further_axes_are_named_and_the_sentence_stands_at_the_top() -> None:
    rows: dict[Any, Any] = {(row, bits): seeds for bits in ("fp32", "bf16") for (row,), seeds in ROWS.items()}
    axes = {"method": ["X", "Y", "Z"], "bits": ["fp32", "bf16"]}
    comparison = made(rows, axes=axes, tests=TESTS, claims=[("X", "Y")])
    assert [str(one).split(" (")[0] for one in conclusions(comparison)] == ["X above Y at fp32", "X above Y at bf16"]
    title, _, sentence, *_ = markdown(comparison).splitlines()
    assert title.startswith("# ") and sentence.startswith(
        "**What the paper claims, at p \\< 0.05 after Holm's correction for 2 claims: confirmed: X above Y"
    )
    assert "What the paper claims" in latex(comparison)
