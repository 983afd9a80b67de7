"""What others cause is logged, by their name, and cannot fill a log."""

from __future__ import annotations

import logging

import pytest
from nvflare.fuel.sec.audit import AuditService

from armour.conftest import Lower
from flare_armour import log_limits
from flare_armour.log_limits import LONGEST, MINUTE, Drops, Refusals, party_of


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="flare_armour")
    return caplog


def test_the_first_is_told_at_once_and_others_are_counted(clock: Clock, told: pytest.LogCaptureFixture) -> None:
    some = Drops(clock)
    for clock.now in (0.0, 1.0, 2.0, MINUTE - 1):
        some.add("UCL", "admin/admin to HK", "hostile")
    (line,) = told.messages
    assert line.endswith(" UCL (admin/admin to HK): hostile")
    clock.now = MINUTE
    some.add("UCL", "admin/admin to HK", "hostile")
    assert told.messages[1].startswith(f"{line} (3 more ")


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
    assert len(told.messages) == log_limits.TOPICS + 1
    assert log_limits.OTHERS in told.messages[-1]


def test_what_a_sender_wrote_stays_on_one_line_and_is_short(
    clock: Clock, told: pytest.LogCaptureFixture, lower: Lower
) -> None:
    audited: list[str] = []
    lower(AuditService, add_event=lambda user, action, ref="", msg="": audited.append(msg))
    Drops(clock).add("UCL", "x\n[U:admin]\x1b[2J" + "y" * 10_000, "no")
    (line,) = told.messages
    assert audited == [line]
    assert "\n" not in line and "\x1b" not in line and "[" not in line and len(line) < 300


def test_a_refusal_is_told_at_once_and_then_with_its_number_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    for _ in range(1000):
        refusals.add("UCL", "streams", "does too much")
    refusals.add("UCL", "connections", "has too many")
    refusals.add("HK", "streams", "does too much")
    now[0] = MINUTE
    refusals.add("UCL", "streams", "does too much")
    assert caplog.messages[:3] == ["'UCL' does too much", "'UCL' has too many", "'HK' does too much"]
    assert caplog.messages[3].startswith("'UCL' does too much (999 more ") and len(caplog.messages) == 4


def test_a_name_is_printable_and_short(caplog: pytest.LogCaptureFixture) -> None:
    Refusals().add("U\n" + "C" * 1000, "streams", "does too much")
    (record,) = caplog.records
    assert "\n" not in record.getMessage() and len(record.getMessage()) < LONGEST + 50


@pytest.mark.parametrize(
    ("origin", "person", "party"),
    [
        ("HK", None, "HK"),
        ("HK.job", None, "HK"),
        ("HK.job", "UCL", "HK"),
        ("_admin_3f50", "lead@hub.org", "lead@hub.org"),
        ("_admin_3f50", None, "_admin_3f50"),
    ],
)
def test_a_party_is_whose_certificate_it_has(origin: str, person: object, party: str) -> None:
    assert party_of(origin, person) == party
