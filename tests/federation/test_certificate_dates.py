"""From when until when a certificate counts, and when its end is told of."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert

from fedshift.federation.certificate_dates import CERTIFICATES, Validity, expiry_notice

START, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 12, 27, tzinfo=UTC)
HK = Validity("HK", START, END)


@pytest.mark.parametrize(
    ("now", "fault"),
    [
        (START, None),
        (END, None),
        (START - timedelta(hours=2), "2025-12-31 22:00 UTC"),
        (END + timedelta(hours=2), "it has expired"),
    ],
)
def test_a_certificate_out_of_time_is_named(now: datetime, fault: str | None) -> None:
    sentence = HK.fault(now)
    assert (sentence is None) == (fault is None)
    assert sentence is None or (fault in sentence and "of HK, valid from 2026-01-01 to 2026-12-27" in sentence)


def test_the_end_is_told_of_from_thirty_days_before_on() -> None:
    assert HK.notice(END - timedelta(days=31)) is None
    soon, over = HK.notice(END - timedelta(days=30)), HK.notice(END + timedelta(days=1))
    assert soon is not None and "30 days left" in soon
    assert over == HK.fault(END + timedelta(days=1))


@pytest.mark.parametrize("name", CERTIFICATES)
def test_a_folder_is_asked_for_its_kits_certificate(name: str, tmp_path: Path) -> None:
    assert expiry_notice(tmp_path) is None, "no kit"
    private, public = generate_keys()
    (tmp_path / "startup").mkdir()
    for days, told in ((20, True), (200, False)):
        until = datetime.now(UTC) + timedelta(days=days)
        span = {"not_valid_before": until - timedelta(days=300), "not_valid_after": until}
        certificate = generate_cert(Identity("HK", "hk"), Identity("root"), private, public, **span)
        (tmp_path / "startup" / name).write_bytes(serialize_cert(certificate))
        notice = expiry_notice(tmp_path)
        assert (notice is not None) == told
        assert notice is None or ("of HK" in notice and str(tmp_path) in notice)
    (tmp_path / "startup" / name).write_text("no certificate", encoding="utf-8")
    assert str(tmp_path) in str(expiry_notice(tmp_path))
