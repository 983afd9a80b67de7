"""Dropped messages are told, and cannot fill a log."""

from __future__ import annotations

import logging

import pytest
from nvflare.fuel.sec.audit import AuditService

from flare_armour.guard import drops
from flare_armour.guard.drops import Drops
from flare_armour.once_a_minute import MINUTE


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="fedshift")
    return caplog


def test_the_first_is_told_at_once_and_others_are_counted(clock: Clock, told: pytest.LogCaptureFixture) -> None:
    some = Drops(clock)
    for clock.now in (0.0, 1.0, 2.0, MINUTE - 1):
        some.add("UCL", "admin/admin to HK", "it is hostile")
    assert told.messages == ["dropped a message from UCL (admin/admin to HK): it is hostile"]
    clock.now = MINUTE
    some.add("UCL", "admin/admin to HK", "it is hostile")
    assert told.messages[1].endswith("it is hostile (3 more since this was last said)")


def test_senders_and_topics_are_told_apart(clock: Clock, told: pytest.LogCaptureFixture) -> None:
    some = Drops(clock)
    for sender in ("UCL", "HK"):
        for topic in ("a", "b", "a"):
            some.add(sender, topic, "no")
    assert len(told.messages) == 4


def test_a_sender_who_thinks_of_new_topics_does_not_fill_the_log(clock: Clock, told: pytest.LogCaptureFixture) -> None:
    some = Drops(clock)
    for number in range(5000):
        some.add("UCL", f"topic {number}", "no")
    assert len(told.messages) == drops.TOPICS + 1
    assert drops.OTHERS in told.messages[-1]


def test_what_a_sender_wrote_stays_on_one_line_and_is_short(
    clock: Clock, told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    audited: list[str] = []
    monkeypatch.setattr(AuditService, "add_event", lambda user, action, ref="", msg="": audited.append(msg))
    Drops(clock).add("UCL", "x\n[U:admin]\x1b[2J" + "y" * 10_000, "no")
    (line,) = told.messages
    assert audited == [line]
    assert "\n" not in line and "\x1b" not in line and "[" not in line and len(line) < 300
