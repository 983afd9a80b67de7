"""What ``simulate`` decides before, during and after the simulator's run. The simulator itself is a stand-in here.

The real one runs in ``tests/cli/test_run.py`` and in the slow tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import make_site, small_job
from errors import raises

from fedshift.federation.memory import Measured
from fedshift.flare import simulate as module
from fedshift.flare.export import read_job_folder, write_job
from fedshift.flare.simulate import simulate
from fedshift.flare.simulator import RunFailed
from fedshift.flare.workspaces import VARIABLE, RunFolders, aside_of
from fedshift.reporting.progress import Progress, read_progress
from fedshift.schema.job import JobSpec
from fedshift.tasks.machine import WORKERS

SITES = ("BIDMC", "HK", "UCL")
SMALL_RUN = Measured(activations=1000, network=1000, evaluation=1000)


def progress(state: str, reason: str = "") -> str:
    """A ``progress.json``."""
    told = {"round": 1, "rounds": 2, "sites": SITES, "sites_in": (), "metric": "dice", "best_round": 0}
    return Progress.model_validate({**told, "state": state, "reason": reason}).model_dump_json()


@dataclass
class StandIn:
    """A process that writes what ``after`` yields as ``progress.json``, then ends with ``code``."""

    folders: RunFolders
    after: Iterator[str]
    code: int = 0
    measured: Measured | None = None
    last_error: str = ""
    started: dict[str, object] = field(default_factory=dict)
    ended: int = 0

    def ready(self) -> Measured | None:
        return self.measured

    def start(self, folder: Path, *, threads: int, environ: Mapping[str, str]) -> None:
        self.started = {"job": read_job_folder(folder), "threads": threads, "environ": dict(environ)}
        self.folders.server.mkdir(parents=True, exist_ok=True)

    @property
    def returncode(self) -> int | None:
        told = next(self.after, None)
        if told is None:
            return self.code
        (self.folders.server / "progress.json").write_text(told, encoding="utf-8")
        return None

    def end(self) -> None:
        self.ended += 1


@dataclass
class Place:
    """A job with data, and a workspace."""

    job: JobSpec
    folder: Path
    workspace: Path
    use: Callable[..., StandIn]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for site in SITES:
        make_site(tmp_path / "data", site, cases=3)
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    monkeypatch.setattr(module, "cores", lambda: 8)
    job = small_job("fedavg")
    workspace = tmp_path / "run"

    def use(*after: str, **options: object) -> StandIn:
        process = StandIn(RunFolders(workspace), iter(after), **options)
        monkeypatch.setattr(module, "SimulatorProcess", lambda folder, folders, **named: process)
        return process

    return Place(job, write_job(job, tmp_path / "job"), workspace, use)


def test_a_run_that_finishes_is_ended_and_what_was_put_aside_goes(place: Place) -> None:
    process = place.use(progress("running"), progress("finished"), measured=SMALL_RUN)
    aside_of(place.workspace).mkdir(parents=True)
    looks: list[Progress | None] = []
    folders = simulate(place.job, place.folder, place.workspace, on_look=looks.append)
    assert folders == RunFolders(place.workspace) and process.ended
    assert [look and look.state for look in looks] == [None, "running", "finished", "finished"]
    assert process.started["threads"] == 3 and process.started["job"] == place.job, "a client for each site"
    assert process.started["environ"] == {WORKERS: "3"}
    assert not aside_of(place.workspace).exists()


def test_fewer_at_a_time_share_the_sites(place: Place) -> None:
    process = place.use(progress("finished"))
    simulate(place.job, place.folder, place.workspace, parallel=2, ignore_memory=True)
    job = process.started["job"]
    assert isinstance(job, JobSpec) and process.started["threads"] == 2
    assert sorted(site for share in job.federation.shares for site in share) == sorted(SITES)
    assert len(job.federation.shares) == 2


def test_too_little_memory_for_all_takes_fewer_and_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    process = place.use(progress("finished"), measured=SMALL_RUN)
    monkeypatch.setattr(module, "choose_workers", lambda needs, *, wanted, asked: (1, f"{wanted} do not fit"))
    notes: list[str] = []
    simulate(place.job, place.folder, place.workspace, on_note=notes.append)
    assert process.started["threads"] == 1 and notes == ["3 do not fit"]


def test_to_go_on_the_states_are_put_aside_and_named_to_the_simulator(place: Place) -> None:
    folders = RunFolders(place.workspace)
    folders.server.mkdir(parents=True)
    (folders.server / "server_state.pt").write_bytes(b"state")
    process = place.use(progress("failed", "no quorum"))
    with pytest.raises(RunFailed, match="no quorum"):
        simulate(place.job, place.folder, place.workspace, resume=True, ignore_memory=True)
    environ = process.started["environ"]
    assert isinstance(environ, dict) and environ[VARIABLE] == str(aside_of(place.workspace))
    assert (aside_of(place.workspace) / "server" / "server_state.pt").read_bytes() == b"state", "for another try"


@pytest.mark.parametrize(
    ("told", "end", "reason"),
    [
        ([progress("failed", "round 1: 1 of 2 updates came")], {}, "^round 1: 1 of 2 updates came$"),
        ([], {"code": 3, "last_error": "no space left"}, "code 3: no space left"),
        ([progress("running")], {"code": 0}, "code 0: no reason"),
    ],
    ids=["server", "last error", "none"],
)
def test_the_reason_of_a_failure_is_the_servers_or_the_last_error(
    told: list[str], end: dict[str, object], reason: str, place: Place
) -> None:
    process = place.use(*told, **end)
    with pytest.raises(RunFailed, match=reason):
        simulate(place.job, place.folder, place.workspace, ignore_memory=True)
    assert process.ended


def test_a_simulator_that_goes_on_after_the_run_has_failed_is_ended_when_its_time_is_over(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_AFTER_FAILURE", 0.0)
    process = place.use(*[progress("failed", "stuck")] * 10**4)
    with pytest.raises(RunFailed, match="stuck"):
        simulate(place.job, place.folder, place.workspace, ignore_memory=True)
    assert process.ended and next(process.after, None), "it had not ended by itself"


def test_a_run_that_has_finished_waits_for_its_tracker(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_AFTER_SUCCESS", 0.0)
    process = place.use(*[progress("finished")] * 20)
    simulate(place.job, place.folder, place.workspace, ignore_memory=True)
    assert next(process.after, None), "it had not ended by itself"
    federation = place.job.federation.model_copy(update={"tracking": "mlflow"})
    process = place.use(*[progress("finished")] * 20)
    job = place.job.model_copy(update={"federation": federation})
    simulate(job, place.folder, place.workspace, ignore_memory=True)
    assert next(process.after, None) is None


def test_an_interrupted_run_says_that_the_user_stopped_it(place: Place) -> None:
    process = place.use(progress("running"), progress("running"))
    looked = 0

    def interrupt(look: Progress | None) -> None:
        nonlocal looked
        looked += 1
        if look is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(place.job, place.folder, place.workspace, ignore_memory=True, on_look=interrupt)
    told = read_progress(RunFolders(place.workspace).server)
    assert process.ended and told is not None and told.state == "stopped"


def test_an_earlier_run_goes_and_another_folder_does_not(place: Place, tmp_path: Path) -> None:
    process = place.use(progress("finished"))
    (place.workspace / "notes").mkdir(parents=True)
    (tmp_path / "file").write_text("", encoding="utf-8")
    for workspace, code in ((place.workspace, "folder-in-use"), (tmp_path / "file", "not-a-folder")):
        with raises(code, naming=str(workspace)):
            simulate(place.job, place.folder, workspace, ignore_memory=True)
    assert not process.started and (place.workspace / "notes").is_dir()
    RunFolders(place.workspace).server.mkdir(parents=True)
    (place.workspace / "old.txt").write_text("", encoding="utf-8")
    simulate(place.job, place.folder, place.workspace, ignore_memory=True)
    assert not (place.workspace / "notes").exists() and not (place.workspace / "old.txt").exists()


def test_a_run_in_one_process_goes_only_by_force(place: Place) -> None:
    process = place.use(progress("finished"))
    place.workspace.mkdir()
    (place.workspace / "progress.json").write_text(progress("finished"), encoding="utf-8")
    with raises("run-exists", naming=str(place.workspace)):
        simulate(place.job, place.folder, place.workspace, ignore_memory=True)
    assert not process.started and (place.workspace / "progress.json").is_file()
    simulate(place.job, place.folder, place.workspace, force=True, ignore_memory=True)
    assert process.started and not (place.workspace / "progress.json").exists()


@pytest.mark.parametrize(("hosts", "what"), [(None, "3 sites"), (2, "2 hosts")])
def test_more_at_a_time_than_there_are_is_refused(hosts: int | None, what: str, place: Place) -> None:
    federation = place.job.federation.model_copy(update={"hosts": hosts})
    job = place.job.model_copy(update={"federation": federation})
    with raises("invalid-value", naming=("--parallel 4", what)):
        simulate(job, place.folder, place.workspace, parallel=4)
