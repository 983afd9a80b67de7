"""No two processes run from one kit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedshift.flare.kit_lock import FILE, PATIENCE, hold_kit
from fedshift.schema.errors import ConfigError


def test_a_kit_is_one_process_s_until_that_ends(tmp_path: Path) -> None:
    waited = [0.0]
    held = hold_kit(tmp_path)
    assert held is not None
    with pytest.raises(ConfigError, match=rf"is in use by another process \({os.getpid()}\)"):
        hold_kit(tmp_path, wait=waited.append)
    assert sum(waited) == PATIENCE, "one that is just ending is waited for"
    held.close()
    again = hold_kit(tmp_path, wait=waited.append)
    assert again is not None
    again.close()


def test_where_nothing_can_be_locked_the_site_starts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).mkdir()
    assert hold_kit(tmp_path) is None
    assert "cannot be locked" in caplog.text
