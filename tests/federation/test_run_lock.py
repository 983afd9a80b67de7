"""Two runs in one folder: the second is refused, and what a dead process has left blocks nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import small_image_job
from errors import raises

from fedshift.federation.in_process import run_in_process, run_pooled
from fedshift.federation.protocols import leave_one_out
from fedshift.federation.run_lock import lock_file, lock_run, require_unlocked, was_killed
from fedshift.federation.server.coordinator import Coordinator

HOLD = """
import sys
from pathlib import Path
from fedshift.federation.run_lock import lock_run
with lock_run(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_in_use_is_refused_until_its_process_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        for use in (lambda: lock_run(folder).__enter__(), lambda: require_unlocked(folder)):
            with raises("run-in-use", naming=str(other.pid)):
                use()
        assert not was_killed(folder)
        other.kill()
    for _ in range(2):  # looking changes nothing
        require_unlocked(folder)
        assert was_killed(folder)
    with lock_run(folder):
        assert lock_file(folder).read_text(encoding="utf-8").strip() == str(os.getpid())
        assert not was_killed(folder)
    assert not lock_file(folder).exists() and not was_killed(folder)


def test_where_no_file_can_be_locked_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with lock_run(tmp_path / "file" / "run"):
        pass


class _Stop(Exception):
    pass


@pytest.mark.parametrize(
    ("method", "run"), [("fedavg", run_in_process), ("all", run_pooled)], ids=["federation", "pooled"]
)
def test_a_second_run_changes_nothing_of_the_first(
    method: str, run: Callable[..., Coordinator], three_image_sites: dict[str, Path], tmp_path: Path
) -> None:
    job, tried = small_image_job(method, "schedule.rounds=2"), []
    other = small_image_job(method, "schedule.rounds=1", seed=1)

    def start_another(coordinator: Coordinator) -> None:
        if coordinator.round == 2 and len(coordinator.answered) == 3 and not tried:
            with raises("run-in-use"):
                run(other, three_image_sites, tmp_path / "run")
            tried.append(True)

    run(job, three_image_sites, tmp_path / "alone")
    run(job, three_image_sites, tmp_path / "run", on_progress=start_another)
    alone, disturbed = (tmp_path / name / "last_global_model.pt" for name in ("alone", "run"))
    assert tried and disturbed.read_bytes() == alone.read_bytes()
    assert not lock_file(tmp_path / "run").exists()

    def fail(coordinator: Coordinator) -> None:
        raise _Stop

    with pytest.raises(_Stop):
        run(other, three_image_sites, tmp_path / "run", on_progress=fail)
    assert run(other, three_image_sites, tmp_path / "run", resume=True).results.final is not None


def test_a_second_leave_one_out_is_refused(tmp_path: Path) -> None:
    jobs = {"A": small_image_job("fedavg", sites=("B", "C"))}
    with lock_run(tmp_path / "turns"), raises("run-in-use"):
        leave_one_out(jobs, tmp_path / "turns", name="turns", run=lambda job, folder: pytest.fail("it was run"))
    assert not (tmp_path / "turns").exists()
