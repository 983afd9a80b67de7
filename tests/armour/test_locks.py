"""No two processes run from one kit, and no two servers in one store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flare_armour.locks import KIT_PATIENCE, STORE_PATIENCE, InUseError, hold_kit, hold_store, kit_lock, store_lock

LOCKS = pytest.mark.parametrize(
    ("hold", "path", "patience"), [(hold_kit, kit_lock, KIT_PATIENCE), (hold_store, store_lock, STORE_PATIENCE)]
)


@LOCKS
def test_a_place_is_one_process_s_until_that_ends(
    hold: Callable[..., Any], path: Callable[[Path], Path], patience: float, tmp_path: Path
) -> None:
    place, waited = tmp_path / "place", [0.0]
    place.mkdir()
    held = hold(place)
    with pytest.raises(InUseError, match=str(os.getpid())):
        hold(place, wait=waited.append)
    assert sum(waited) == patience, "one that is just ending is waited for"
    held.close()
    hold(place, wait=waited.append).close()
    assert sum(waited) == patience
    code = (
        f"import pathlib; from flare_armour.locks import {hold.__name__} as hold; "
        f"held = hold(pathlib.Path({str(place)!r}))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(InUseError, match=str(process.pid)):
            hold(place, wait=waited.append)
        process.kill()
    hold(place).close()


@LOCKS
def test_where_nothing_can_be_locked_the_party_starts(
    hold: Callable[..., Any],
    path: Callable[[Path], Path],
    patience: float,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path(tmp_path / "place").mkdir(parents=True)
    assert hold(tmp_path / "place") is None
    assert "cannot be locked" in caplog.text
