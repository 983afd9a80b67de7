"""Whether a paper's order is confirmed, refuted or undecided; and the image-free guess, below which nothing is."""

from __future__ import annotations

from typing import Any

import pytest
from errors import raises
from scipy import stats

from fedshift.reporting.known_scores import GUESS
from fedshift_bench.columns import below_guess, blocks
from fedshift_bench.leaderboard import make_leaderboard
from fedshift_bench.notes import claims_sentence, conclusions, pairs_in_order
from fedshift_bench.published import PublishedValue
from fedshift_bench.record import IMAGE_FREE, Comparison
from fedshift_bench.tables import LAST_ROUND, latex, long_csv, make_tables, markdown

from .made import changed, made

HIGH = [{"A": 0.80, "B": 0.90}, {"A": 0.81, "B": 0.93}, {"A": 0.80, "B": 0.92}]
LOW = [{"A": 0.60, "B": 0.70}, {"A": 0.62, "B": 0.70}, {"A": 0.61, "B": 0.69}]
LOWEST = [{"A": 0.50, "B": 0.50}, {"A": 0.52, "B": 0.50}, {"A": 0.51, "B": 0.49}]
NEAR = [{"A": 0.61, "B": 0.68}, {"A": 0.61, "B": 0.73}, {"A": 0.64, "B": 0.68}]
ROWS: dict[Any, Any] = {("X",): HIGH, ("Y",): LOW, ("Z",): NEAR}
TESTS = [("X", "Y"), ("Z", "Y"), ("Y", "X")]


def averages(row: list[dict[str, float]]) -> list[float]:
    return [(scores["A"] + scores["B"]) / 2 for scores in row]


def test_a_claim_is_confirmed_refuted_or_undecided_by_its_paired_test() -> None:
    comparison = made(ROWS, tests=TESTS, claims=[("X", "Y"), ("Y", "X"), ("Z", "Y")])
    p = float(stats.ttest_rel(averages(HIGH), averages(LOW)).pvalue)
    near = float(stats.ttest_rel(averages(NEAR), averages(LOW)).pvalue)
    assert p < 0.05 < near
    made_claims = conclusions(comparison)
    assert [claim.outcome for claim in made_claims] == ["confirmed", "refuted", "undecided"]
    assert [claim.p for claim in made_claims] == pytest.approx([p, p, near])
    assert [claim.p_holm for claim in made_claims] == pytest.approx([3 * p, 3 * p, near])
    sentence = claims_sentence(comparison)
    for part in (f"X above Y (+20.7, p = {p:.4f}, Holm {3 * p:.4f});", "Y above X (−20.7"):
        assert part in sentence
    text = markdown(comparison).splitlines()
    assert text[2].startswith("**") and "X above Y" in text[2] and "X above Y" in latex(comparison)


def test_a_claim_whose_run_failed_counts_as_tried() -> None:
    """Its p alone, and as one of two claims, would be below 0.05; as one of three it is not."""
    low = [{"A": 0.60, "B": 0.60}] * 3
    high = [{"A": 0.61, "B": 0.616}, {"A": 0.62, "B": 0.62}, {"A": 0.62, "B": 0.622}]
    failed: list[None] = [None, None, None]
    rows: Any = {("X",): high, ("Y",): low, ("V",): failed, ("W",): failed}
    claims = [("X", "Y"), ("V", "Y"), ("W", "Y")]
    for n, outcome in ((1, "confirmed"), (2, "confirmed"), (3, "undecided")):
        claim = conclusions(made(rows, tests=claims, claims=claims[:n]))[0]
        assert claim.p is not None and claim.p_holm == pytest.approx(n * claim.p) and claim.outcome == outcome


def test_with_fewer_than_three_seeds_or_without_runs_nothing_is_decided() -> None:
    two = made({row: seeds[:2] for row, seeds in ROWS.items()}, tests=TESTS, claims=[("X", "Y")])
    assert "): X above Y (+20.5)." in claims_sentence(two)
    none = made({**ROWS, ("X",): [None, None, None]}, tests=TESTS, claims=[("X", "Y")])
    (claim,) = conclusions(none)
    assert claim.outcome == "undecided" and claim.figures == "" and claim.why in claims_sentence(none)


@pytest.mark.parametrize("columns", [["average"], ["A", "B"]])
def test_without_claims_the_published_averages_are_the_papers_order(columns: list[str]) -> None:
    printed = [
        PublishedValue(row=row, column=column, value=value)
        for row, value in (("X", "70"), ("Y", "90"))
        for column in columns
    ]
    (claim,) = conclusions(made(ROWS, tests=[("X", "Y")], published=printed))
    assert (claim.higher, claim.lower, claim.outcome) == ("Y", "X", "refuted")
    untested = made(ROWS, published=[*printed, PublishedValue(row="Z", column=columns[0], value="60")])
    same, pairs = pairs_in_order(untested)
    assert (same, pairs) == ((1, 3) if columns == ["average"] else (0, 1))
    assert f" {pairs} pairs" in claims_sentence(untested)
    assert claims_sentence(made(ROWS, tests=TESTS)) == "", "nothing is known of a paper's order"


def test_further_axes_are_named() -> None:
    rows: dict[Any, Any] = {(row, bits): seeds for bits in ("fp32", "bf16") for (row,), seeds in ROWS.items()}
    axes = {"method": ["X", "Y", "Z"], "bits": ["fp32", "bf16"]}
    comparison = made(rows, axes=axes, tests=TESTS, claims=[("X", "Y")])
    names = [str(claim).split(" (")[0] for claim in conclusions(comparison)]
    assert names == [f"X above Y at {bits}" for bits in ("fp32", "bf16")]


def guessed(score: float | None, *, metric: str = "dice", **changes: Any) -> Comparison:
    """Rows whose averages are about 0.86, 0.65 and 0.5, beside a guess of ``score`` at both sites."""
    rows: Any = {("X",): HIGH, ("Y",): LOW, ("Z",): LOWEST}
    comparison = made(rows, metric=metric, tests=[("X", "Y")], claims=[("X", "Y")], **changes)

    def scores(values: dict[str, float]) -> dict[str, Any]:
        return {"test": {site: {metric: value} for site, value in values.items()}}

    def with_guess(cell: Any) -> dict[str, Any]:
        best = {site: values["accuracy"] for site, values in cell.scores["best"]["test"].items()}
        guess = {} if score is None else {IMAGE_FREE: scores(dict.fromkeys("AB", score))}
        return {"scores": {"best": scores(best), **guess}}

    return changed(comparison, with_guess)


@pytest.mark.parametrize(
    ("guess", "metric", "is_below"),
    [
        (None, "dice", False),
        (0.45, "dice", False),
        (0.60, "dice", False),  # one row of three is below it
        (0.66, "dice", True),  # two are
        (0.95, "dice", True),
        (0.45, "hd95", True),  # lower is better
        (0.66, "hd95", False),
        (0.95, "hd95", False),
    ],
)
def test_rows_are_ranked_if_most_of_them_are_better_than_the_guess(
    guess: float | None, metric: str, is_below: bool
) -> None:
    comparison = guessed(guess, metric=metric, ranking={"against": "X"})
    (block,) = blocks(comparison)
    why = below_guess(comparison, block)
    assert bool(why) is is_below and (why in markdown(comparison)) is True
    (claim,) = conclusions(comparison)
    (table,) = make_tables(comparison)
    has_bold = any(entry.best for entries in table.rows.values() for entry in entries)
    assert (claim.outcome == "undecided") is is_below and has_bold is not is_below
    if is_below:
        with raises("below-guess", naming="made"):
            make_leaderboard([comparison])
    else:
        assert len(make_leaderboard([comparison]).rows) == 3


def test_a_leaderboard_of_several_tasks_leaves_out_the_one_that_is_no_better() -> None:
    below, above = guessed(0.95), guessed(0.4).model_copy(update={"name": "other"})
    board = make_leaderboard([below, above], against="X")
    (why,) = board.below_guess
    assert board.blocks == ("other/A", "other/B") and why.startswith("made: ") and "3 of 3" in why


def test_the_guess_is_a_row_that_is_never_bold() -> None:
    comparison = guessed(0.55)
    (table,) = make_tables(comparison)
    assert [entry.mean for entry in table.rows[GUESS]] == pytest.approx([0.55, 0.55, 0.55])
    assert not any(entry.best for entry in table.rows[GUESS])
    assert f"| {GUESS} | 55.0 | 55.0 | 55.0 |" in markdown(comparison)
    assert f"{GUESS},average,55," in long_csv(comparison) and GUESS not in markdown(guessed(None))


def test_the_last_round_stands_beside_the_selected_one() -> None:
    comparison = guessed(0.55)
    last = {"test": {"A": {"dice": 0.3}, "B": {"dice": 0.4}}}
    (table,) = make_tables(changed(comparison, lambda cell: {"scores": {**cell.scores, "last": last}}))
    assert list(table.columns) == ["A", "B", "average", LAST_ROUND]
    assert table.rows["X"][-1].mean == pytest.approx(0.35) and table.rows[GUESS][-1].mean is None
    assert list(make_tables(comparison)[0].columns) == ["A", "B", "average"]
