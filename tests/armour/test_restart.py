"""Job processes that are started again: when, how often, and when not. Real processes, FLARE's handles."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle

from fedshift.flare.guard import DIED, ServerJobLauncher
from fedshift.reporting.progress import FILE_NAME, Progress, read_progress
from flare_armour.restart import PersistentHandle

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
SLEEPS = "import time; time.sleep(60)"


class Starter:
    """Starts one command after another, the last again and again."""

    def __init__(self, *codes: str) -> None:
        self.codes, self.started = codes, 0

    def __call__(self) -> ProcessHandle:
        code = self.codes[min(self.started, len(self.codes) - 1)]
        self.started += 1
        if code == "cannot":
            raise OSError("no memory")
        return ProcessHandle(process=subprocess.Popen([sys.executable, "-c", code], start_new_session=True))


def handle(start: Callable[[], ProcessHandle], *, dispensable: bool = True) -> PersistentHandle:
    return PersistentHandle(start, restarts=2, pause=0.01, dispensable=dispensable)


def run_at_server(code: str, folder: Path) -> None:
    """The server's process of the job in this folder, until it has ended for good."""
    ended = partial(ServerJobLauncher.ended, folder)
    PersistentHandle(Starter(code), restarts=2, pause=0.01, dispensable=False, ended=ended).wait()


@pytest.mark.parametrize("code", [0, 1, 103])
def test_a_process_that_ends_by_itself_stays_ended(code: int) -> None:
    starter = Starter(f"raise SystemExit({code})")
    handle(starter).wait()
    assert starter.started == 1


def test_a_killed_process_is_started_again() -> None:
    starter = Starter(DIES, "pass")
    process = handle(starter)
    process.wait()
    assert starter.started == 2
    assert process.poll() == JobReturnCode.SUCCESS


@pytest.mark.parametrize(
    ("dispensable", "code"), [(True, JobReturnCode.SUCCESS), (False, JobReturnCode.EXECUTION_ERROR)]
)
def test_after_some_times_it_is_given_up_and_a_site_does_not_fail_the_job(
    dispensable: bool, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    starter = Starter(DIES)
    process = handle(starter, dispensable=dispensable)
    process.wait()
    assert starter.started == 3
    assert process.poll() == code
    assert "3 times (SIGKILL)" in caplog.text


def test_a_process_that_cannot_be_started_again_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    starter = Starter(DIES, "cannot")
    handle(starter).wait()
    assert starter.started == 3
    assert "no memory" in caplog.text


def test_a_process_that_flare_ends_stays_ended() -> None:
    starter = Starter(SLEEPS)
    process = handle(starter)
    waiting = threading.Thread(target=process.wait)
    waiting.start()
    process.terminate()
    waiting.join(timeout=20)
    assert not waiting.is_alive()
    assert starter.started == 1


def test_nothing_is_started_once_flare_has_ended_it_in_the_pause() -> None:
    starter = Starter(DIES, SLEEPS)
    process = PersistentHandle(starter, restarts=2, pause=30, dispensable=True)
    waiting = threading.Thread(target=process.wait)
    waiting.start()
    while process.poll() == JobReturnCode.UNKNOWN:
        time.sleep(0.01)
    process.terminate()
    waiting.join(timeout=20)
    assert not waiting.is_alive()
    assert starter.started == 1


@pytest.mark.parametrize(("before", "after"), [("running", "failed"), ("finished", "finished"), ("stopped", "stopped")])
def test_no_job_seems_to_run_whose_process_has_died(before: str, after: str, tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    told = Progress(state=before, round=2, rounds=3, sites=["HK"], sites_in=[], metric="dice", best_round=1)  # type: ignore[arg-type]
    path.write_text(told.model_dump_json(), encoding="utf-8")
    run_at_server("import os; os._exit(1)", tmp_path)
    progress = read_progress(tmp_path)
    assert progress is not None and progress.state == after
    assert (progress.reason == DIED) is (after == "failed")


def test_a_job_that_wrote_no_progress_ends_too(tmp_path: Path) -> None:
    run_at_server("raise SystemExit(1)", tmp_path)
    assert not list(tmp_path.iterdir())
