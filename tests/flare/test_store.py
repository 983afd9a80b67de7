"""Where a server of a kit keeps its jobs, and who works there."""

from __future__ import annotations

import os
from pathlib import Path

from fedshift.flare.store import holder, is_at, jobs_folder
from flare_armour.locks import hold_store


def test_who_holds_a_store_is_known(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    held = hold_store(jobs_folder(tmp_path))
    assert held is not None and holder(tmp_path) == str(os.getpid())
    held.close()
    assert holder(tmp_path) is None


def test_a_store_is_known_by_its_place_whatever_leads_there(tmp_path: Path) -> None:
    (tmp_path / "kit").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kit")
    assert is_at(tmp_path / "link" / "store" / "jobs", jobs_folder(tmp_path / "kit"))
    assert not is_at(tmp_path / "other" / "store" / "jobs", jobs_folder(tmp_path / "kit"))
