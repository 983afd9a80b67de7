"""``fedshift job`` and ``fedshift run`` as a person uses them."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from flare.conftest import SimulatorRun, environment, run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cli.conftest import Refused
from fedshift.cli import main
from fedshift.federation import in_process, memory
from fedshift.flare import simulate
from fedshift.flare.export import read_job_folder
from fedshift.flare.simulator import LogFile
from fedshift.flare.workspaces import RunFolders
from fedshift.reporting.progress import read_progress
from fedshift.schema.results import read_results
from fedshift.tasks.machine import cores

pytestmark = pytest.mark.timeout(1200)
SMALL = [
    *("--protocol", "quick", "--sites", "BIDMC,HK", "--set", "network.options.features=4"),
    *("schedule.precision=fp32", "schedule.local_epochs=1"),
]
SHORT = [*SMALL, "schedule.rounds=2"]


def test_job_writes_a_folder_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "jobs"
    assert main(["job", "fedrdn+fedfa", "prostate", "--seed", "3", "--out", str(out), *SHORT]) == 0
    assert str(out / "fedrdn_fedfa_prostate") in capsys.readouterr().out
    job = read_job_folder(out / "fedrdn_fedfa_prostate")
    assert (job.seed, job.task.sites, job.federation.min_sites) == (3, ("BIDMC", "HK"), 2)
    assert main(["job", "fedavg", "prostate", "--name", "mine", "--production", "--out", str(out)]) == 0
    assert not (out / "mine" / "app" / "custom").exists()


def test_mistakes_are_one_sentence_and_exit_code_2(bare: Path, refused: Refused) -> None:
    refused("job", "fedaf", "prostate", code="unknown-method", naming="'fedfa'")
    refused("run", bare, code="no-job", naming=str(bare))
    assert main(["job", "fedfa", "prostate", *SHORT]) == 0
    refused("run", "jobs/fedfa_prostate", "-p", "7", code="invalid-value", naming="2 sites")
    started = time.monotonic()
    refused("run", "jobs/fedfa_prostate", "-w", "run", code="site-missing", naming="BIDMC")
    assert time.monotonic() - started < 10
    assert not (bare / "run").exists()


def test_a_folder_that_is_no_run_is_not_emptied(with_phantom: Path, refused: Refused) -> None:
    main(["job", "fedfa", "prostate", *SHORT])
    (with_phantom / "thesis").mkdir()
    (with_phantom / "thesis" / "text").write_text("years of work", encoding="utf-8")
    refused("run", "jobs/fedfa_prostate", "-w", "thesis", code="folder-in-use", naming="thesis")
    assert (with_phantom / "thesis" / "text").is_file()


@pytest.mark.slow
def test_run_shows_progress_scores_and_where_things_are(side_by_side: SimulatorRun) -> None:
    assert side_by_side.code == 0, side_by_side.output
    for shown in (
        "round 1/2",
        "simulated scans, no patients",
        "PHANTOM starting the sites",
        "PHANTOM, no patients: fedavg + fedfa + fedrdn on prostate, dice in percent",
    ):
        assert shown in side_by_side.output
    for name in ("best_global_model.pt", "results.json", "tb_events"):
        path = side_by_side.server / name
        assert path.exists()
        assert str(path) in side_by_side.output
    assert "round 2 of 2 done" in side_by_side.log
    final = read_results(side_by_side.server).final
    assert final is not None and set(final.image_free) == set(final.best.sites)


@pytest.mark.slow
def test_the_full_log_is_what_flare_says_and_goes_to_the_file_too(
    short_job: Path, phantom_home: Path, tmp_path: Path
) -> None:
    words = (sys.executable, "-m", "fedshift.cli", "run", str(short_job), "--log", "full")
    told = run(*words, workspace=tmp_path / "a blank" / "full", home=phantom_home)
    assert told.code == 0, told.output
    flares = [line for line in told.log.splitlines() if "Finished one task run for client" in line]
    assert flares and not set(flares) - set(told.output.splitlines())
    assert "round 2 of 2 done" in told.output, "a line of the server's log"
    assert "round 2/2" in told.output and "dice in percent" in told.output, "and what is shown without it"


@pytest.mark.slow
def test_at_a_terminal_there_is_a_bar_and_curves_can_be_read_while_the_run_works(
    tmp_path: Path, phantom_home: Path
) -> None:
    assert main(["job", "fedfa", "prostate", "--out", str(tmp_path), *SMALL, "schedule.rounds=1000"]) == 0
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "fedshift.cli", "run", str(tmp_path / "fedfa_prostate"), "-w", str(tmp_path / "run")],
        env={**environment(phantom_home), "TERM": "xterm-256color"},
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    folder = tmp_path / "run" / "server" / "simulate_job" / "tb_events"
    shown, curves, deadline = "", [], time.monotonic() + 120
    try:
        while len(curves) < 3:
            assert time.monotonic() < deadline and process.poll() is None, shown[-2000:]
            if select.select([screen], [], [], 0.2)[0]:
                shown += os.read(screen, 65536).decode(errors="replace")
            if any(folder.glob("*")):  # TensorBoard's reader wants a folder with files
                events = EventAccumulator(str(folder)).Reload()
                curves = events.Scalars("train_loss/HK") if "train_loss/HK" in events.Tags()["scalars"] else []
    finally:
        end_family(process.pid)
        process.wait()
        os.close(screen)
    assert [point.step for point in curves][:3] == [1, 2, 3]
    assert re.search(r"[━╸].*round \d+/1000.*\d:\d\d:\d\d", shown), "a bar, the round, and the time since the start"


def end_family(pid: int) -> None:
    """FLARE's processes are in sessions of their own."""
    for process in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def test_the_sites_share_a_process_a_core(side_by_side: SimulatorRun) -> None:
    started = {path.parent.name for path in side_by_side.workspace.glob("*/simulate_job")} - {"server"}
    sites = ["BIDMC", "HK", "I2CVB", "BMC", "RUNMC", "UCL"]
    assert len(started) == min(cores(), len(sites))
    assert [*side_by_side.results.rounds[-1].sites] == sites


@pytest.mark.slow
def test_a_run_that_does_not_fit_is_refused_and_leaves_the_former_one(
    with_phantom: Path, refused: Refused, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["job", "fedavg", "prostate", *SMALL, "schedule.rounds=1"])
    words = ["run", "jobs/fedavg_prostate", "-w", "run", "--force"]
    former = with_phantom / "run" / "server" / "simulate_job" / "results.json"
    former.parent.mkdir(parents=True)
    former.write_text("{}", encoding="utf-8")
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    monkeypatch.setattr(memory, "free_memory", lambda: 10**8)
    refused(*words, "-p", "2", code="too-little-memory", naming=("2 workers", "--ignore-memory"))
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before
    assert former.read_text(encoding="utf-8") == "{}"
    # As much as one worker needs and two do not: without -p one does the work of both.
    monkeypatch.setattr(simulate, "cores", lambda: 2)
    monkeypatch.setattr(memory, "free_memory", lambda: 95 * 10**7)
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "2 workers" in printed and "1 at a time" in printed
    assert {path.parent.name for path in (with_phantom / "run").glob("*/simulate_job")} == {"server", "host_1"}
    assert [*read_results(former).machines] == ["BIDMC", "HK"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_leave_no_process_behind(number: int, tmp_path: Path, phantom_home: Path) -> None:
    assert main(["job", "fedfa", "prostate", "--out", str(tmp_path), *SMALL, "schedule.rounds=1000"]) == 0
    # Tests that run in the background of a shell inherit an ignored SIGINT, and so would the command.
    server = tmp_path / "run" / "server" / "simulate_job"
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from fedshift.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "run", str(tmp_path / "fedfa_prostate"), "-w", str(tmp_path / "run")],
        env=environment(phantom_home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    family: list[psutil.Process] = []
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        family = psutil.Process(process.pid).children(recursive=True)
        if sum(map(_is_worker, family)) == 2 and read_progress(server) is not None:
            break
        time.sleep(0.2)
    else:
        pytest.fail("no two workers were started")
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert err.strip() == "fedshift: stopped"
    assert not psutil.wait_procs(family, timeout=60)[1]
    progress = read_progress(server)
    assert progress is not None and progress.state == "stopped" and progress.reason


@pytest.mark.slow
def test_a_killed_run_leaves_no_process_behind_and_goes_on(
    tmp_path: Path, phantom_home: Path, refused: Refused
) -> None:
    assert main(["job", "fedfa", "prostate", "--out", str(tmp_path), *SMALL, "schedule.rounds=1000"]) == 0
    command = [sys.executable, "-m", "fedshift.cli", "run", str(tmp_path / "fedfa_prostate"), "-w"]
    command.append(str(tmp_path / "run"))
    server = tmp_path / "run" / "server" / "simulate_job"

    def start_and_wait(*more: str, rounds: int) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
        """A run that has closed so many rounds, and its family."""
        process = subprocess.Popen(
            [*command, *more],
            env=environment(phantom_home),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        deadline = time.monotonic() + 300
        while True:
            family = psutil.Process(process.pid).children(recursive=True)
            progress = read_progress(server)
            if sum(map(_is_worker, family)) and progress is not None and progress.round > rounds:
                return process, family
            if time.monotonic() > deadline or process.poll() is not None:
                end_family(process.pid)
                pytest.fail(f"it came to {progress}")
            time.sleep(0.2)

    process, family = start_and_wait(rounds=2)
    refused(*command[3:], "--force", code="run-in-use", naming=f"(process {process.pid})")
    process.kill()
    assert not psutil.wait_procs(family, timeout=30)[1]
    process.communicate()
    done = len(read_results(server).rounds)
    assert done >= 2
    process, family = start_and_wait("--resume", rounds=done + 1)
    process.terminate()
    assert process.communicate(timeout=240)[1].strip() == "fedshift: stopped" and process.returncode == 130
    assert not psutil.wait_procs(family, timeout=60)[1]


def test_sigterm_ends_a_run_in_one_process_as_ctrl_c_does(
    with_phantom: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["job", "fedfa", "prostate", *SHORT]) == 0
    monkeypatch.setattr(in_process, "run_in_process", lambda *args, **options: os.kill(os.getpid(), signal.SIGTERM))
    words = ["run", "jobs/fedfa_prostate", "-w", "run", "--in-process", "--ignore-memory"]
    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert main(words) == 130
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, former)
    assert capsys.readouterr().err == "fedshift: stopped\n"


def _is_worker(process: psutil.Process) -> bool:
    """FLARE's workers are in sessions of their own."""
    try:
        return os.getsid(process.pid) == process.pid
    except ProcessLookupError:
        return False


def test_a_full_disk_does_not_stop_the_reader_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator waits for whoever reads what it prints; what could not be written comes when there is room."""
    (tmp_path / "server").mkdir()
    shown: list[str] = []
    opened, original = 0, Path.open

    def full_at_first(path: Path, *args: Any, **options: Any) -> Any:
        nonlocal opened
        opened += 1
        if opened <= 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(path, *args, **options)

    monkeypatch.setattr(Path, "open", full_at_first)
    process: Any = SimpleNamespace(stdout=iter([f"line {number}\n" for number in range(6)]))
    folders = RunFolders(tmp_path)
    LogFile(process, folders, shown.append).run()
    lines = [f"line {number}" for number in range(6)]
    assert shown == lines and folders.log.read_text(encoding="utf-8").splitlines() == lines
