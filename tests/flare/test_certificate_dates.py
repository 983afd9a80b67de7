"""A certificate that is out of time is said to be so, with what to do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from fedshift.flare.certificate_dates import out_of_time

START, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 12, 27, tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (START, None),
        (END, None),
        (START - timedelta(hours=2), "not yet (it is 2025-12-31 22:00 UTC), set this machine's clock"),
        (END + timedelta(hours=2), "it has expired, ask the project's owner for a new kit"),
    ],
)
def test_a_certificate_out_of_time_is_named_with_the_mend(now: datetime, said: str | None) -> None:
    expected = said and f"of HK, valid from 2026-01-01 to 2026-12-27: {said}"
    assert out_of_time("HK", START, END, now=now) == expected
