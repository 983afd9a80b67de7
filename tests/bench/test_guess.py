"""The image-free guess in a comparison: its row, and what is not ranked where networks are no better."""

from __future__ import annotations

from typing import Any

import pytest

from fedshift.reporting.known_scores import GUESS
from fedshift.schema.errors import ConfigError
from fedshift_bench.cell_record import IMAGE_FREE
from fedshift_bench.claims import conclusions
from fedshift_bench.columns import below_guess, blocks
from fedshift_bench.footnotes import footnotes
from fedshift_bench.leaderboard import make_leaderboard
from fedshift_bench.record import Comparison
from fedshift_bench.tables import LAST_ROUND, long_csv, make_tables, markdown

from .made import made

HIGH = [{"A": 0.80, "B": 0.90}, {"A": 0.81, "B": 0.93}, {"A": 0.80, "B": 0.92}]
LOW = [{"A": 0.60, "B": 0.70}, {"A": 0.62, "B": 0.70}, {"A": 0.61, "B": 0.69}]
LOWEST = [{"A": 0.50, "B": 0.50}, {"A": 0.52, "B": 0.50}, {"A": 0.51, "B": 0.49}]
ROWS: Any = {("X",): HIGH, ("Y",): LOW, ("Z",): LOWEST}


def guessed(score: float | None, *, metric: str = "dice", **changes: Any) -> Comparison:
    """Rows whose averages are about 0.86, 0.65 and 0.5, beside a guess of ``score`` at both sites."""
    comparison = made(ROWS, metric=metric, tests=[("X", "Y")], claims=[("X", "Y")], **changes)
    cells = []
    for cell in comparison.cells:
        scores = {
            "best": {"test": {site: {metric: found["accuracy"]} for site, found in cell.scores["best"]["test"].items()}}
        }
        if score is not None:
            scores[IMAGE_FREE] = {"test": {site: {metric: score} for site in "AB"}}
        cells.append(cell.model_copy(update={"scores": scores}))
    return comparison.model_copy(update={"cells": cells})


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
    assert bool(below_guess(comparison, block)) is is_below
    (one,) = conclusions(comparison)
    (table,) = make_tables(comparison)
    has_bold = any(entry.best for entries in table.rows.values() for entry in entries)
    assert (one.outcome == "undecided") is is_below and has_bold is not is_below
    if is_below:
        assert any(note.startswith("Rows are not ranked: ") for note in footnotes(comparison))
        with pytest.raises(ConfigError, match="made: Rows are not ranked"):
            make_leaderboard([comparison])
    else:
        assert len(make_leaderboard([comparison]).rows) == 3


def test_a_leaderboard_of_several_tasks_leaves_out_the_one_that_is_no_better() -> None:
    below, above = guessed(0.95), guessed(0.4).model_copy(update={"name": "other"})
    board = make_leaderboard([below, above], against="X")
    assert board.blocks == ("other/A", "other/B") and len(board.below_guess) == 1
    assert board.below_guess[0].startswith("made: Rows are not ranked: 3 of 3 end no better")


def test_the_guess_is_a_row_that_is_never_bold() -> None:
    comparison = guessed(0.55)
    (table,) = make_tables(comparison)
    assert [entry.mean for entry in table.rows[GUESS]] == pytest.approx([0.55, 0.55, 0.55])
    assert not any(entry.best for entry in table.rows[GUESS])
    assert f"| {GUESS} | 55.0 | 55.0 | 55.0 |" in markdown(comparison)
    assert f"{GUESS},average,55," in long_csv(comparison)
    assert GUESS not in markdown(guessed(None))


def test_the_last_round_stands_beside_the_selected_one() -> None:
    comparison = guessed(0.55)
    cells = [
        cell.model_copy(update={"scores": {**cell.scores, "last": {"test": {"A": {"dice": 0.3}, "B": {"dice": 0.4}}}}})
        for cell in comparison.cells
    ]
    (table,) = make_tables(comparison.model_copy(update={"cells": cells}))
    assert [column.key for column in table.columns] == ["A", "B", "average", LAST_ROUND]
    assert table.rows["X"][-1].mean == pytest.approx(0.35) and table.rows[GUESS][-1].mean is None
    assert [column.key for column in make_tables(comparison)[0].columns] == ["A", "B", "average"]
