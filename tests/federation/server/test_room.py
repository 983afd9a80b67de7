"""A full disk at the server holds the run; with room again it goes on, and otherwise it ends with the reason."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import small_image_job

from fedshift.federation.in_process import run_in_process
from fedshift.federation.server import coordinator as coordinator_module
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.server.room import Room
from fedshift.federation.server.run_files import RunFiles
from fedshift.federation.server.spool import SpooledUpdate
from fedshift.federation.server.update_check import Change
from fedshift.reporting.progress import RESERVE, ProgressFile, read_progress
from fedshift.schema.errors import DiskFull
from fedshift.schema.files import write_text
from fedshift.schema.messages import Update
from fedshift.schema.results import read_results


class Disk:
    """A disk that is full for some calls, and the time that passes."""

    def __init__(self, full_for: int, number: int = errno.ENOSPC) -> None:
        self.left, self.number, self.now = full_for, number, 0.0

    def write(self) -> str:
        if self.left:
            self.left -= 1
            raise OSError(self.number, os.strerror(self.number))
        return "written"

    def room(self, folder: Path, *, patience: float = 60, stopped: Callable[[], bool] = lambda: False) -> Room:
        def sleep(seconds: float) -> None:
            self.now += seconds

        return Room(folder, patience=patience, stopped=stopped, clock=lambda: self.now, sleep=sleep)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_the_run_waits_says_so_and_goes_on(number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(3, number)
    room = disk.room(tmp_path)
    assert room.write("the state", disk.write) == "written" and room.waited == 6
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "full, so that the state cannot be written" in said[0] and "room in" in said[1]


def test_a_disk_that_stays_full_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    disk = Disk(1000)
    with pytest.raises(DiskFull, match=r"full, the state .*: make room"):
        disk.room(tmp_path, patience=9).write("the state", disk.write)
    assert disk.now == 10
    with pytest.raises(DiskFull):
        Disk(1000).room(tmp_path, stopped=lambda: True).write("the state", disk.write)


def test_another_fault_of_the_disk_is_not_waited_for(tmp_path: Path) -> None:
    disk = Disk(1, errno.EIO)
    with pytest.raises(OSError) as raised:
        disk.room(tmp_path).write("the state", disk.write)
    assert raised.value.errno == errno.EIO and disk.now == 0


def test_a_run_goes_on_to_the_same_weights(
    three_image_sites: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full once for every file of the run: updates, state, models and results."""
    job = small_image_job("fedavg", "schedule.rounds=2")
    expected = run_in_process(job, three_image_sites, tmp_path / "expected")
    calls: dict[str, int] = {}
    for name in ("store_update", "save_state", "save_model"):
        original = getattr(RunFiles, name)

        def full_at_first(
            self: RunFiles, *args: object, name: str = name, original: object = original, **options: object
        ) -> object:
            calls[name] = calls.get(name, 0) + 1
            if calls[name] % 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(self, *args, **options)  # type: ignore[operator]

        monkeypatch.setattr(RunFiles, name, full_at_first)
    make = coordinator_module.Room
    monkeypatch.setattr(coordinator_module, "Room", lambda *a, **k: make(*a, **k, sleep=lambda seconds: None))
    run = run_in_process(job, three_image_sites, tmp_path / "run")
    assert all(run.model.weights[k].tobytes() == v.tobytes() for k, v in expected.model.weights.items())
    assert calls == {"store_update": 18, "save_state": 10, "save_model": calls["save_model"]}
    assert read_results(tmp_path / "run").final == expected.results.final


def test_what_could_not_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *args: object, **options: object) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError) as raised:
            write_text(tmp_path / "results.json", "x")
    assert raised.value.errno == errno.ENOSPC
    update = Update("A", 1, 1, 1, {"w": np.zeros(3, np.float32), "x": np.zeros((2, 2), object)})
    with monkeypatch.context() as patch:
        patch.setattr("fedshift.federation.server.spool._bytes", lambda array: Disk(1).write())
        with pytest.raises(OSError) as raised:
            SpooledUpdate(update, tmp_path / "A.arrays", Change())
    assert raised.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_the_last_moment_of_a_run_has_room_in_reserve(tmp_path: Path) -> None:
    coordinator = Coordinator(small_image_job("fedavg"), tmp_path)
    progress = ProgressFile(tmp_path)
    progress.update(coordinator)
    assert (tmp_path / RESERVE).stat().st_size > 10_000
    progress.fail("the disk is full")
    assert not (tmp_path / RESERVE).exists()
    found = read_progress(tmp_path)
    assert found is not None and (found.state, found.reason) == ("failed", "the disk is full")
