"""How often and by what name a refusal is logged."""

from __future__ import annotations

import pytest

from flare_armour.once_a_minute import MINUTE
from flare_armour.patches.refusals import LONGEST, Refusals, party_of


def test_a_refusal_is_told_at_once_and_then_with_its_number_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    for _ in range(1000):
        refusals.tell("UCL", "streams", "does too much")
    refusals.tell("UCL", "connections", "has too many")
    refusals.tell("HK", "streams", "does too much")
    now[0] = MINUTE
    refusals.tell("UCL", "streams", "does too much")
    assert [record.getMessage() for record in caplog.records] == [
        "'UCL' does too much",
        "'UCL' has too many",
        "'HK' does too much",
        "'UCL' does too much (999 more times since this was last said)",
    ]


def test_a_name_is_printable_and_short(caplog: pytest.LogCaptureFixture) -> None:
    Refusals().tell("U\n" + "C" * 1000, "streams", "does too much")
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
