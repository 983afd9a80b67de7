"""Lines about a transfer: few, and with the time that is left."""

from __future__ import annotations

import logging
import re

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


@pytest.mark.parametrize(
    ("steps", "held", "figures"),
    [
        ([(second, 2 * second) for second in range(1, 75)], 0, ["20 8", "80 8", "140 7"]),
        ([(1.0, 500), (2.0, 1024)], 0, []),
        ([(1.0, 414), (41.0, 416), (60.0, 1024)], 412_000_000, ["412", "416 40", "60"]),
    ],
    ids=["a long one", "a short one", "one that goes on"],
)
def test_how_far_a_transfer_is_said_now_and_then(
    steps: list[tuple[float, int]], held: int, figures: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    logged = lines(steps, caplog, held=held)
    assert all(line.startswith(f"{WHAT}: ") and "1024 MB" in line for line in logged)
    assert [" ".join(re.findall(r"\d+", line.removeprefix(WHAT).replace("1024 MB", ""))) for line in logged] == figures
