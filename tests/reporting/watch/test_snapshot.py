"""What is read of a run's progress.json while the run goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedshift.reporting import progress as progress_module
from fedshift.reporting.progress import FILE_NAME, Progress
from fedshift.reporting.watch import snapshot as snapshot_module
from fedshift.reporting.watch.snapshot import KILLED, RunFile
from reporting.watch.standin import progress_at


def written(folder: Path, progress: Progress, *, at: float) -> None:
    folder.mkdir(exist_ok=True)
    (folder / FILE_NAME).write_text(progress.model_dump_json(by_alias=True), encoding="utf-8")
    os.utime(folder / FILE_NAME, (at, at))


def test_a_run_from_before_its_beginning_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, parsed = [1000.0], []

    def read(folder: Path) -> Progress | None:
        parsed.append(folder)
        return progress_module.read_progress(folder)

    monkeypatch.setattr(snapshot_module, "read_progress", read)
    source = RunFile([tmp_path / "a", tmp_path / "b"], where="here", clock=lambda: now[0])
    first = source.read()
    assert first.progress is None and first.waits_for and not first.ended
    written(tmp_path / "b", progress_at(5, rounds=10), at=990.0)
    seen = source.read()
    assert seen.progress is not None and seen.progress.round == 5
    assert seen.news_age == 10 and seen.progress.seconds_left == 75 * 5 + 40 - 10
    assert 0 < seen.share < 1 and not seen.ended
    now[0] = 2000.0
    later = source.read()
    assert later.progress is not None and later.progress.seconds_left == 0
    assert len(parsed) == 1, "a file that has not changed is not read again"
    written(tmp_path / "a", progress_at(6, state="failed", reason="no space"), at=1999.0)
    end = source.read()
    assert end.ended and end.failed and end.progress is not None and end.progress.reason == "no space"
    written(tmp_path / "a", progress_at(7), at=2000.0)
    (tmp_path / "a" / FILE_NAME).write_text("{", encoding="utf-8")
    assert FILE_NAME in source.read().problem


def test_a_run_whose_process_has_gone_has_failed_until_it_is_resumed(tmp_path: Path) -> None:
    gone = [True]
    source = RunFile([tmp_path / "a"], where="here", clock=lambda: 1000.0, was_killed=lambda: gone[0])
    written(tmp_path / "a", progress_at(5, rounds=10), at=999.0)
    assert not source.read().failed, "there was news a second ago"
    written(tmp_path / "a", progress_at(5, rounds=10), at=990.0)
    dead = source.read()
    assert dead.failed and dead.ended and dead.progress is not None
    assert dead.progress.reason == KILLED and dead.progress.seconds_left is None and dead.progress.round == 5
    gone[0] = False
    assert not source.read().ended
    gone[0] = True
    written(tmp_path / "a", progress_at(10, rounds=10, state="finished"), at=980.0)
    assert not source.read().failed
