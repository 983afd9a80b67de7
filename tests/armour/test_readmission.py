"""Sites that come late or come back, and sites' reports that they have failed, with stand-ins for NVFlare's server.

tests/flare/test_deployed_absences.py has the same with real processes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import RunProcessKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.job_def import Job, JobMetaKey, RunStatus
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.fuel.f3.message import Message
from nvflare.private.admin_defs import ReturnCode
from nvflare.private.defs import ERROR_MSG_PREFIX, CellMessageHeaderKeys, JobFailureMsgKey
from nvflare.private.fed.server.fed_server import FederatedServer

from armour.conftest import Enforce, Lower
from fedshift.schema.job import FILE_NAME
from flare_armour import locks, readmission
from flare_armour.disabled_sites import DISABLED
from flare_armour.readmission import INTERVAL, LACKS_APP, STILL_RUNS, Admission, Readmission, update_clients


class Server:
    """What NVFlare's server asks when such a report comes, and what it then does."""

    def __init__(self) -> None:
        self.done: list[tuple[str, ...]] = []
        self.logger = SimpleNamespace(info=print, warning=print, error=print)
        clients = SimpleNamespace(
            is_from_authorized_client=lambda token: True, clients={"t": SimpleNamespace(name="UCL")}
        )
        self.client_manager = clients
        self.engine = SimpleNamespace(job_runner=self, new_context=lambda: self)

    def __enter__(self) -> FLContext:
        return FLContext()

    def __exit__(self, *_: object) -> None: ...

    def is_client_outcome_pending(self, job_id: str, name: str) -> bool:
        return True

    def resolve_client_outcome(self, job_id: str, name: str) -> None:
        self.done.append(("ended", name))

    def fail_run(self, job_id: str, code: Any, context: Any) -> None:
        self.done.append(("job failed",))

    def stop_run(self, job_id: str, context: Any) -> None:
        self.done.append(("job stopped",))

    def reported(self, code: Any, reason: str | None = None) -> list[tuple[str, ...]]:
        payload = {JobFailureMsgKey.JOB_ID: "job", JobFailureMsgKey.CODE: code, JobFailureMsgKey.REASON: reason}
        FederatedServer.process_job_failure(self, Message({CellMessageHeaderKeys.TOKEN: "t"}, payload))
        return self.done


CODES = [
    ProcessExitCode.EXCEPTION,
    ProcessExitCode.CONFIG_ERROR,
    ProcessExitCode.UNSAFE_COMPONENT,
    JobReturnCode.ABORTED,
]


@pytest.mark.parametrize("code", CODES)
def test_what_a_site_reports_of_its_part_is_noted_and_ends_nothing(
    code: Any, enforce: Enforce, caplog: pytest.LogCaptureFixture
) -> None:
    enforce(readmission.PATCH)
    assert Server().reported(code) == [("ended", "UCL")]
    assert ("of job 'job': " in caplog.text) is (code != JobReturnCode.ABORTED), "no reason is not one called None"
    if code != JobReturnCode.ABORTED:
        Server().reported(code, "out of\nmemory")
        assert r"of job 'job' ('out of\nmemory'): " in caplog.text


class Engine:
    """NVFlare's server engine, job runner, job manager and admin server, as far as the patch asks them.

    ``resources`` and ``starts`` say what a site answers, one after another; the last answer is repeated.
    """

    def __init__(self, folder: Path, *, sites: Sequence[str] = ("HK", "UCL"), restored: bool = True) -> None:
        self.clients = {site: Client(site, f"token-{site}") for site in sites}
        self.job = Job("job-1", {}, {"app": list(sites)}, {JobMetaKey.STATUS: RunStatus.RUNNING})
        self.stored: Job | None = self.job
        self.running_jobs: dict[str, Job] = {}
        self.run_processes: dict[str, dict[str, Any]] = {}
        self._pending_client_outcomes: dict[str, set[str]] = {}
        self.resources: list[tuple[bool, str]] = [(True, "free")]
        self.starts: list[str | None] = ["started"]
        self.deployed: object = SimpleNamespace(get_header=lambda key, default: default, body="deployed")
        self.done: list[tuple[str, ...]] = []
        self.job_runner = self.server = self.admin_server = self
        self.uri_root = str(folder / "store" / "jobs")
        self._folder, self._restored = folder, restored

    def context(self) -> Any:
        return SimpleNamespace(get_engine=lambda: self, get_workspace=lambda: self)

    def get_app_dir(self, job_id: str) -> str:
        return str(self._folder / job_id)

    def get_root_dir(self) -> str:
        return str(self._folder)

    def get_component(self, name: str) -> Engine:
        return self

    def get_clients(self) -> list[Client]:
        return list(self.clients.values())

    def get_jobs_by_status(self, states: object, context: object) -> list[Job]:
        return [self.job]

    def get_job(self, job_id: str, context: object) -> Job | None:
        return self.stored

    def set_status(self, job_id: str, status: str, context: object) -> None:
        self.done.append(("status", str(status)))

    def resolve_client_outcome(self, job_id: str, name: str) -> None:
        self._pending_client_outcomes[job_id].remove(name)

    def restore_running_job(self, job_id: str, clients: dict[str, Client], snapshot: object, context: object) -> None:
        if self._restored:
            self.run(*(client.name for client in clients.values()))

    def run(self, *sites: str) -> None:
        """The job runs at these sites, whose ends NVFlare awaits."""
        self.running_jobs["job-1"] = self.job
        self._pending_client_outcomes["job-1"] = set(sites)
        self.run_processes["job-1"] = {
            RunProcessKey.PARTICIPANTS: {self.clients[site].token: self.clients[site] for site in sites}
        }

    def check_client_resources(self, job: Job, needs: dict[str, Any], context: object) -> dict[str, tuple[bool, str]]:
        return dict.fromkeys(needs, self._next(self.resources))

    def start_client_job(self, job: Job, sites: dict[str, Any], context: object) -> list[Any]:
        self.done += [("start", site) for site in sites]
        body = self._next(self.starts)
        return [SimpleNamespace(reply=body and SimpleNamespace(body=body))]

    def abort_client_run(self, job_id: str, sites: list[str], context: object) -> None:
        self.done += [("abort", site) for site in sites]

    def _make_deploy_message(self, job: Job, data: object, app: str, context: object) -> str:
        return app

    def send_requests_and_get_reply_dict(self, requests: dict[str, str], timeout_secs: float) -> dict[str, object]:
        self.done += [("deploy", token.removeprefix("token-")) for token in requests]
        return dict.fromkeys(requests, self.deployed)

    def awaited(self) -> set[str]:
        return self._pending_client_outcomes["job-1"]

    def participants(self) -> set[str]:
        return {client.name for client in self.run_processes["job-1"][RunProcessKey.PARTICIPANTS].values()}

    @staticmethod
    def _next(answers: list[Any]) -> Any:
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Clock:
    """Stands still."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def admission(clock: Clock, lower: Lower) -> Admission:
    lower(Job, get_application=lambda self, app, context: b"")
    return Admission(resumable=FILE_NAME, clock=clock)


def test_a_site_that_comes_late_is_started_once_and_takes_part(admission: Admission, tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.run("HK")
    for _ in range(2):
        admission.look(engine, engine.context())
    assert engine.done == [("start", "UCL")] and engine.participants() == {"HK", "UCL"}
    assert not engine.awaited(), "no site's end decides the job's"


def test_a_site_that_is_started_again_takes_the_place_of_its_former_self_and_the_log_says_so_once(
    admission: Admission, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(tmp_path)
    engine.run("HK", "UCL")
    engine.clients["UCL"] = Client("UCL", "another token")
    for _ in range(2):
        admission.look(engine, engine.context())
    assert set(engine.run_processes["job-1"][RunProcessKey.PARTICIPANTS]) == {"token-HK", "another token"}
    assert len([text for text in caplog.messages if text.startswith("site UCL has registered again")]) == 1


@pytest.mark.parametrize("late", [False, True])
def test_a_site_that_was_disabled_is_off_the_job_and_is_started_again_when_it_may_come_back(
    late: bool, admission: Admission, tmp_path: Path
) -> None:
    """Also one that came late, and had been started here before."""
    engine = Engine(tmp_path)
    engine.run(*(("HK",) if late else ("HK", "UCL")))
    admission.look(engine, engine.context())
    assert engine.participants() == {"HK", "UCL"}
    engine.done.clear()
    DISABLED.use(tmp_path)
    try:
        DISABLED.add(["UCL"], by="admin@hub.org")
        client = engine.clients.pop("UCL")
        admission.look(engine, engine.context())
        assert engine.participants() == {"HK"} and not engine.done
        DISABLED.remove(["UCL"])
        engine.clients["UCL"] = client  # NVFlare knows it by its former token
        admission.look(engine, engine.context())
        assert engine.participants() == {"HK", "UCL"} and engine.done == [("start", "UCL")]
    finally:
        DISABLED._path = None


@pytest.mark.parametrize(
    ("resources", "starts", "deployed", "reason"),
    [
        ((False, "no GPU"), "started", "ok", r"its resources do not suffice \(no GPU\)"),
        ((True, ""), None, "ok", "it does not answer"),
        ((True, ""), ERROR_MSG_PREFIX + "no", "ok", "no"),
        ((True, ""), ERROR_MSG_PREFIX + LACKS_APP, None, "it does not answer"),
        ((True, ""), ERROR_MSG_PREFIX + LACKS_APP, "refused", "no such app"),
        ((True, ""), ERROR_MSG_PREFIX + LACKS_APP, "ok", "it has lost the job's folder"),
    ],
)
def test_what_a_site_refuses_is_told_and_tried_again_later(
    resources: tuple[bool, str],
    starts: str | None,
    deployed: str | None,
    reason: str,
    admission: Admission,
    clock: Clock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine(tmp_path)
    engine.run("HK")
    engine.resources, engine.starts = [resources], [starts]
    code = {"ok": ReturnCode.OK, "refused": ReturnCode.ERROR}.get(deployed or "")
    engine.deployed = deployed and SimpleNamespace(get_header=lambda key, default: code, body="no such app")
    with caplog.at_level("INFO"):
        admission.look(engine, engine.context())
    assert engine.participants() == {"HK"}
    assert re.search(f"job-1 .* UCL: .*{reason}", caplog.text)
    tried = len(engine.done)
    admission.look(engine, engine.context())
    assert len(engine.done) == tried, "not at once"
    clock.now += INTERVAL
    engine.resources, engine.starts = [(True, "")], ["started"]
    admission.look(engine, engine.context())
    assert engine.participants() == {"HK", "UCL"}


def test_a_site_without_the_jobs_folder_gets_it_and_starts(admission: Admission, tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.run("HK")
    engine.starts = [ERROR_MSG_PREFIX + LACKS_APP, "started"]
    admission.look(engine, engine.context())
    assert engine.done == [("start", "UCL"), ("deploy", "UCL"), ("start", "UCL")]
    assert engine.participants() == {"HK", "UCL"}


def test_after_the_server_was_stopped_a_job_goes_on_when_a_site_is_back(
    admission: Admission, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(tmp_path)
    (tmp_path / "job-1" / "config").mkdir(parents=True)
    (tmp_path / "job-1" / "config" / FILE_NAME).write_text("", encoding="utf-8")
    admission.look_back(engine.context())
    engine.starts = [STILL_RUNS, "started"]
    admission.look(engine, engine.context())
    assert ("status", str(RunStatus.RUNNING)) in engine.done and "site HK" in caplog.text
    assert ("abort", "HK") in engine.done, "its process does not know the server's new one"
    assert engine.participants() == {"HK", "UCL"}


@pytest.mark.parametrize("how", ["nothing left", "deleted", "aborted", "not restored"])
def test_a_job_that_cannot_go_on_after_the_server_was_stopped_is_left(
    how: str, admission: Admission, tmp_path: Path
) -> None:
    engine = Engine(tmp_path, restored=how != "not restored")
    if how != "nothing left":
        (tmp_path / "job-1" / "config").mkdir(parents=True)
        (tmp_path / "job-1" / "config" / FILE_NAME).write_text("", encoding="utf-8")
    admission.look_back(engine.context())
    if how == "deleted":
        engine.stored = None
    if how == "aborted":
        engine.job.meta[JobMetaKey.STATUS] = RunStatus.FINISHED_ABORTED
    admission.look(engine, engine.context())
    abandoned = [("status", str(RunStatus.ABANDONED))]
    assert engine.done == (abandoned if how in ("nothing left", "not restored") else [])
    assert not engine.run_processes


def test_a_job_in_the_store_of_another_kit_is_left_as_it_is(
    admission: Admission, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it left to continue from is in that kit."""
    engine = Engine(tmp_path / "copy")
    engine.uri_root = str(tmp_path / "first" / "store" / "jobs")
    admission.look_back(engine.context())
    admission.look(engine, engine.context())
    assert not engine.done and not engine.run_processes
    assert "job job-1 " in caplog.text and "local/resources.json" in caplog.text


def test_a_server_does_not_start_in_a_store_that_another_one_uses(
    tmp_path: Path, lower: Lower, caplog: pytest.LogCaptureFixture
) -> None:
    lower(locks, STORE_PATIENCE=0.0)
    engine, first, second = Engine(tmp_path), Readmission(), Readmission()
    first.handle_event(EventType.SYSTEM_BOOTSTRAP, engine.context())
    with pytest.raises(UnsafeComponentError, match=re.escape(engine.uri_root)):
        second.handle_event(EventType.SYSTEM_BOOTSTRAP, engine.context())
    assert engine.uri_root in caplog.text and not engine.done
    del first
    second.handle_event(EventType.SYSTEM_BOOTSTRAP, engine.context())


def test_the_jobs_process_takes_over_who_takes_part(lower: Lower) -> None:
    old, new = {"t1": Client("HK", "t1")}, {"t1": Client("HK", "t1"), "t2": Client("UCL", "t2")}
    manager = SimpleNamespace(clients=old, name_to_clients={})

    def told(clients: dict[str, Client]) -> None:
        """The parent process says that these take part."""
        update_clients(SimpleNamespace(client_manager=manager, _retrieve_clients_data=lambda job_id: clients), "job-1")

    told(new)
    assert manager.clients == new and set(manager.name_to_clients) == {"HK", "UCL"}
    told({})
    assert manager.clients == new, "an empty answer is none"
    lower(readmission, PATCH=SimpleNamespace(fits=lambda: False))
    told(old)
    assert manager.clients == new, "with another NVFlare it stays as it is"
