"""Lines about a transfer: few, and with the time that is left."""

from __future__ import annotations

import logging

import pytest

from flare_armour.pieces.transfer_log import TransferLog

WHAT = "receiving HK's update of round 3"


def lines(steps: list[tuple[float, int]], caplog: pytest.LogCaptureFixture, *, held: int = 0) -> list[str]:
    now = 0.0
    with caplog.at_level(logging.INFO, "flare_armour"):
        telling = TransferLog(WHAT, 1_024_000_000, held, clock=lambda: now)
        for second, mb in steps:
            now = second
            telling.at(mb * 1_000_000)
    return [record.message for record in caplog.records]


def test_a_long_transfer_is_told_of_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    assert lines([(second, 2 * second) for second in range(1, 75)], caplog) == [
        f"{WHAT}: 20 of 1024 MB, about 8 min left",
        f"{WHAT}: 80 of 1024 MB, about 8 min left",
        f"{WHAT}: 140 of 1024 MB, about 7 min left",
    ]


def test_a_short_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    assert lines([(1.0, 500), (2.0, 1024)], caplog) == []


def test_where_it_goes_on_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert lines([(1.0, 414), (41.0, 416), (60.0, 1024)], caplog, held=412_000_000) == [
        f"{WHAT}: it goes on at 412 of 1024 MB",
        f"{WHAT}: it goes on at 416 of 1024 MB, after 40 s without a piece",
        f"{WHAT}: all of 1024 MB, in 60 s",
    ]
