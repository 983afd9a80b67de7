"""The leaderboard's page: it is what the committed results give, and its first paragraph says what to take."""

from __future__ import annotations

import re
from dataclasses import replace

from benchmarks import leaderboard_page
from fedshift_bench.leaderboard import make_leaderboard


def test_the_page_and_its_picture_are_made_from_the_committed_results() -> None:
    page, picture = leaderboard_page.make_page(leaderboard_page.committed())
    again = "run python benchmarks/leaderboard_page.py"
    assert leaderboard_page.PAGE.read_text(encoding="utf-8").rstrip("\n") == page.rstrip("\n"), again
    assert leaderboard_page.PICTURE.read_text(encoding="utf-8").rstrip("\n") == picture.rstrip("\n"), again


def test_the_first_paragraph_recommends_only_what_is_told_apart() -> None:
    board = make_leaderboard(leaderboard_page.committed()[:1], against="fedavg")
    first, second, third = board.rows[0], *board.rows[1:3]
    apart = replace(
        board,
        rows=(replace(first, name="x", rank=1.0), replace(second, name="fedavg", rank=2.5), replace(third, name="z")),
    )
    told = leaderboard_page.advice(replace(apart, critical_difference=1.2))
    assert told.startswith("**Take `x` at first**") and "critical difference 1.2" in told
    told = leaderboard_page.advice(replace(apart, critical_difference=1.7))
    assert told.startswith("**Take `fedavg` at first.**") and "a difference of 1.7 would be significant" in told
    tested = replace(apart, critical_difference=None, rows=(replace(apart.rows[0], p_holm=0.02), *apart.rows[1:]))
    assert "`x` at first**" in leaderboard_page.advice(tested) and "p = 0.020" in leaderboard_page.advice(tested)


def test_the_page_begins_with_what_to_take_and_a_figure() -> None:
    first = leaderboard_page.PAGE.read_text(encoding="utf-8").split("\n\n")[1]
    assert re.match(r"\*\*Take `[\w+]+` at first", first) and re.search(r"\d+\.\d", first)
