"""What a workspace holds, what a new run may replace there, and how an interrupted run goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import SHAPES, small_job
from errors import raises
from modelfiles import assert_same_model
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from fedshift.cli.run import require_free
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.flare.export import write_job
from fedshift.flare.workspaces import (
    JOB,
    SITES,
    VARIABLE,
    RunFolders,
    aside_of,
    find_former,
    find_run,
    put_aside,
    take_server_back,
    take_site_back,
)
from fedshift.reporting.progress import read_progress
from fedshift.schema.results import BEST, LAST, new_results, read_results

from .conftest import IMAGE_SHIFTS, environment, image_sites, run

ROUNDS = 12
TAKEN_BACK = (
    *("server_state.pt", "best_global_model.pt", "results.json", "unmasking.json"),
    *("mlflow_run_id", "mlflow.db", "mlflow.db-wal"),
)


def leave(folders: RunFolders, round_: int, **clients: str) -> None:
    """What a run leaves: the server's files, and each client's sites (names of one letter)."""
    folders.server.mkdir(parents=True)
    for name in (*TAKEN_BACK, "progress.json"):
        (folders.server / name).write_text(f"{name} {round_}", encoding="utf-8")
    for client, sites in clients.items():
        for site in sites:
            state = folders.workspace / client / JOB / SITES / site
            state.mkdir(parents=True)
            (state / f"round_{round_:06d}.pt").write_text(site, encoding="utf-8")


# --- what a workspace holds -----------------------------------------------------------------------------


def test_where_a_run_is_looked_for(tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    require_free(workspace, resume=False, force=False, in_process=False)
    for place in (RunFolders(workspace).server, aside_of(workspace) / "server"):
        place.mkdir(parents=True)
        (place / "results.json").write_text("{}", encoding="utf-8")
        run = find_run(workspace)
        assert run is not None and not run.in_process and not run.has_finished
        with raises("run-exists", naming="results.json"):
            require_free(workspace, resume=False, force=False, in_process=False)
        require_free(workspace, resume=False, force=True, in_process=False)
        (place / "results.json").unlink()


def test_a_run_of_which_no_round_has_ended_is_replaced_by_its_own_kind_or_by_force(tmp_path: Path) -> None:
    alone, simulated = tmp_path / "alone", tmp_path / "simulated"
    alone.mkdir()
    new_results(small_job("fedavg"), metric="dice").write(alone)
    RunFolders(simulated).server.mkdir(parents=True)
    for workspace, in_process, how in ((alone, True, "in one process"), (simulated, False, "under FLARE")):
        assert find_former(workspace, in_process=in_process, force=False).in_process == in_process
        with raises("run-exists", naming=how):
            find_former(workspace, in_process=not in_process, force=False)
        find_former(workspace, in_process=not in_process, force=True).remove()
        assert not [*workspace.iterdir()]


@pytest.mark.parametrize("in_process", [True, False])
def test_another_programs_results_are_no_run(in_process: bool, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"accuracy": 1}', encoding="utf-8")
    (tmp_path / "progress.json").write_text("[]", encoding="utf-8")
    with raises("folder-in-use", naming=str(tmp_path)):
        require_free(tmp_path, resume=False, force=True, in_process=in_process)


def test_what_the_simulator_keeps_and_what_a_link_points_to_stay(tmp_path: Path) -> None:
    workspace, elsewhere = tmp_path / "w", tmp_path / "elsewhere"
    for folder in (RunFolders(workspace).server, workspace / "local", elsewhere):
        folder.mkdir(parents=True)
    (workspace / "link").symlink_to(elsewhere)
    find_former(workspace, in_process=False, force=False).remove()
    assert [path.name for path in workspace.iterdir()] == ["local"] and elsewhere.is_dir()


# --- an interrupted run ---------------------------------------------------------------------------------


def test_states_are_put_aside_and_taken_back_by_whoever_has_the_site_now(tmp_path: Path) -> None:
    folders = RunFolders(tmp_path / "w")
    leave(folders, 3, host_1="AB", host_2="C")
    aside = put_aside(folders)
    assert aside == aside_of(folders.workspace) and aside.parent == tmp_path
    assert not folders.site_states and not folders.server.exists()
    environ = {VARIABLE: str(aside)}
    new, states = tmp_path / "server", tmp_path / "host_9" / "sites"
    new.mkdir()
    take_server_back(new, environ)
    assert {path.name for path in new.iterdir()} == set(TAKEN_BACK)
    for site in "ABCD":
        take_site_back(site, states, environ)
    assert {path.name for path in states.iterdir()} == {"A", "B", "C"}, "D had not begun"
    (states / "A" / "round_000003.pt").write_text("newer", encoding="utf-8")
    take_site_back("A", states, environ)
    assert (states / "A" / "round_000003.pt").read_text(encoding="utf-8") == "newer"
    take_server_back(tmp_path / "nothing", {})
    take_site_back("A", tmp_path / "nothing", {})
    assert not (tmp_path / "nothing").exists()


def test_a_run_that_is_interrupted_while_it_starts_loses_nothing(tmp_path: Path) -> None:
    folders = RunFolders(tmp_path / "w")
    leave(folders, 3, host_1="AB")
    put_aside(folders)
    folders.server.mkdir(parents=True)  # the simulator has begun, and nothing is written yet
    aside = put_aside(folders)
    assert (aside / "server" / "server_state.pt").read_text(encoding="utf-8") == "server_state.pt 3"
    folders.server.rmdir()
    leave(folders, 4, host_1="A")  # here A has answered, and B not
    put_aside(folders)
    assert (aside / "server" / "server_state.pt").read_text(encoding="utf-8") == "server_state.pt 4"
    found = {site: [path.name for path in (aside / SITES / site).iterdir()] for site in "AB"}
    assert found == {"A": ["round_000004.pt"], "B": ["round_000003.pt"]}


def test_the_simulator_calls_its_job_so() -> None:
    assert JOB == SimulatorConstants.JOB_NAME


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_killed_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    data = image_sites(tmp_path / "fedshift" / "phantom")
    options = (f"schedule.rounds={ROUNDS}", "optimizer.keep=true")
    job = resolve(str(SHAPES), "fedbn", sites=[*IMAGE_SHIFTS], options=options)
    whole = run_in_process(job, data, tmp_path / "whole")
    folder, workspace = write_job(job, tmp_path / "job"), tmp_path / "run"
    command = [sys.executable, "-m", "fedshift.cli", "run", str(folder)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "-w", str(workspace), "-p", "2"],
            env=environment(tmp_path),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        server, deadline = RunFolders(workspace).server, time.monotonic() + 120
        while (progress := read_progress(server)) is None or progress.round < 3:
            assert time.monotonic() < deadline and process.poll() is None, (tmp_path / "log").read_text(
                encoding="utf-8"
            )
            time.sleep(0.02)
        for member in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            os.kill(member.pid, 9)
        process.wait()
    closed = len(read_results(server).rounds)
    assert 2 <= closed < ROUNDS
    refused = run(*command, workspace=workspace, home=tmp_path)
    assert refused.code == 2 and f"round {closed} of {ROUNDS}" in refused.output

    resumed = run(*command, "--resume", "-p", "3", workspace=workspace, home=tmp_path)
    assert resumed.code == 0, resumed.output
    shown = [int(round_) for round_ in re.findall(rf"round (\d+)/{ROUNDS}", resumed.output)]
    assert shown and min(shown) > 1, "a quick round may end between two looks at progress.json"
    assert not aside_of(workspace).exists()
    results = read_results(server)
    assert [record.round for record in results.rounds] == [*range(1, ROUNDS + 1)]
    assert results.final == whole.results.final and results.selected == whole.results.selected
    for name in (BEST, LAST):
        assert_same_model(server / name, tmp_path / "whole" / name)
    assert resumed.progress.state == "finished"
