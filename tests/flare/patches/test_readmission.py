"""A site's report that it has failed, taken by NVFlare's server. tests/flare/test_deployed_absences.py has the rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys, JobFailureMsgKey
from nvflare.private.fed.server.fed_server import FederatedServer

from fedshift.flare.patches import patch
from fedshift.flare.patches.readmission import Readmission


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

    def reported(self, code: Any) -> list[tuple[str, ...]]:
        payload = {JobFailureMsgKey.JOB_ID: "job", JobFailureMsgKey.CODE: code}
        FederatedServer.process_job_failure(self, Message({CellMessageHeaderKeys.TOKEN: "t"}, payload))
        return self.done


CODES = [
    ProcessExitCode.EXCEPTION,
    ProcessExitCode.CONFIG_ERROR,
    ProcessExitCode.UNSAFE_COMPONENT,
    JobReturnCode.ABORTED,
]


@pytest.mark.parametrize("code", CODES)
def test_one_site_does_not_end_the_job_by_saying_that_it_has_failed(
    code: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patch, "_fits", {})
    assert len(Server().reported(code)) == 2, "NVFlare ends the job no longer: the patch can go"
    monkeypatch.setattr(FederatedServer, "process_job_failure", FederatedServer.process_job_failure)
    Readmission()
    caplog.clear()
    assert Server().reported(code) == [("ended", "UCL")]
    assert ("its log has the reason" in caplog.text) is (code != JobReturnCode.ABORTED)
