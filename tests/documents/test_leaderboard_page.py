"""The leaderboard's page: its first paragraph says what to take."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import leaderboard_page
from fedshift_bench.leaderboard import make_leaderboard


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
