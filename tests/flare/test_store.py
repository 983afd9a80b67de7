"""No two servers work in one store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedshift.flare.store import PATIENCE, hold, holder, is_at, jobs_folder
from fedshift.schema.errors import ConfigError


def test_a_store_is_one_servers_until_that_ends(tmp_path: Path) -> None:
    jobs, waited = jobs_folder(tmp_path), [0.0]
    assert holder(tmp_path) is None
    held = hold(jobs)
    assert held is not None and holder(tmp_path) == str(os.getpid())
    with pytest.raises(ConfigError, match=rf"in use by another server \(process {os.getpid()}\): .*--force"):
        hold(jobs, wait=waited.append)
    assert sum(waited) == PATIENCE, "one that is just ending is waited for"
    held.close()
    assert holder(tmp_path) is None
    again = hold(jobs, wait=waited.append)
    assert again is not None
    again.close()


def test_a_killed_server_leaves_its_store_free(tmp_path: Path) -> None:
    code = "import sys, time, pathlib; from fedshift.flare.store import hold; held = hold(pathlib.Path(sys.argv[1]))"
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; print(flush=True); time.sleep(600)", jobs_folder(tmp_path)],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert holder(tmp_path) == str(process.pid)
        process.kill()
    assert holder(tmp_path) is None


def test_where_nothing_can_be_locked_the_server_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "store").write_text("no folder", encoding="utf-8")
    assert hold(jobs_folder(tmp_path)) is None
    assert "cannot be locked" in caplog.text


def test_a_store_is_known_by_its_place_whatever_leads_there(tmp_path: Path) -> None:
    (tmp_path / "kit").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kit")
    assert is_at(tmp_path / "link" / "store" / "jobs", jobs_folder(tmp_path / "kit"))
    assert not is_at(tmp_path / "other" / "store" / "jobs", jobs_folder(tmp_path / "kit"))
