"""The file of disabled sites: what one process writes, all know at once."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from flare_armour.disabled_sites import FILE, DamagedFileError, DisabledSites


def test_what_one_process_writes_another_reads_at_its_next_look(tmp_path: Path) -> None:
    parent, job = DisabledSites(), DisabledSites()
    for sites in (parent, job):
        sites.use(tmp_path)
        assert not sites.all()
    parent.add(["HK", "UCL"], by="admin@hub.org")
    assert set(job.all()) == {"HK", "UCL"}
    assert re.fullmatch(r"by admin@hub\.org since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", str(job.all()["HK"]))
    parent.remove(["HK", "nobody"])
    assert set(job.all()) == {"UCL"}
    (tmp_path / FILE).unlink()
    assert not job.all()


def test_a_site_that_is_disabled_again_stays_so_since_the_first_time(tmp_path: Path) -> None:
    sites = DisabledSites()
    sites.use(tmp_path)
    sites.add(["HK"], by="admin@hub.org")
    first = sites.all()["HK"]
    sites.add(["HK"], by="other@hub.org")
    assert sites.all()["HK"] == first


def test_a_party_without_the_file_disables_nobody() -> None:
    assert not DisabledSites().all()
    with pytest.raises(OSError, match="no server"):
        DisabledSites().add(["HK"], by="admin@hub.org")


@pytest.mark.parametrize("text", ["", "[]", '{"HK": {}}', '{"HK": 1}'])
def test_a_damaged_file_lets_nobody_back_in(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sites = DisabledSites()
    sites.use(tmp_path)
    sites.add(["HK"], by="admin@hub.org")
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with caplog.at_level(logging.ERROR, "flare_armour"):
        assert set(sites.all()) == {"HK"} and set(sites.all()) == {"HK"}
    assert len(caplog.messages) == 1 and str(tmp_path / FILE) in caplog.messages[0]
    with pytest.raises(DamagedFileError, match=FILE):
        DisabledSites().use(tmp_path)
