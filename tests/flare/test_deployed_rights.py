"""What people may do at the console of a deployed federation: organisations' admins, leads and members.

And what a coordinator can make of the models of an encrypted job, which the console downloads like any others.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import small_image_job
from errors import raises
from nvflare.fuel.flare_api.flare_api import Session

from fedshift.cli import main
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.inference.model import open_model
from fedshift.schema.results import BEST, LAST
from flare_armour.guard.console import COMMANDS

from .conftest import MEMBER, OF_A, OF_HUB
from .deployed import LEAD, OWNER, SERVER, Deployed, DeployedRun, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def said(session: Session, line: str) -> tuple[bool, str]:
    """Whether the server has done a command that is typed as it is, and what it said."""
    reply: dict[str, Any] = session.api.server_execute(line)
    errors = [item for item in reply.get("data") or [{"type": "error"}] if item["type"] == "error"]
    done = not errors and (reply.get("meta") or {}).get("status", "ok") == "ok"
    return done, f"{reply.get('data')} {reply.get('meta')}"


@pytest.fixture(scope="module")
def running(federation: Deployed) -> DeployedRun:
    """A job of the lead that nobody waits for."""
    run = DeployedRun.submit(federation, small_image_job("fedavg", "schedule.rounds=5000", "schedule.local_epochs=3"))
    federation.reaches(run.job_id, 1)
    return run


@pytest.mark.parametrize("person", [OF_A, MEMBER])
def test_nobody_touches_the_jobs_and_sites_of_other_organisations(
    person: str, federation: Deployed, running: DeployedRun
) -> None:
    job = running.job_id
    with federation.console(person) as console:
        assert said(console, "check_status server")[0] and said(console, f"get_job_meta {job}")[0], "looking is allowed"
        for line in (
            *(f"{name} {job}" for name in ("abort_job", "delete_job", "download_job", "clone_job", "get_job_log")),
            *(f"reset_errors {job} server", f"configure_job_log {job} server ERROR"),
            *("disable_client B", "enable_client B", "remove_client B", "disable_client A", "remove_client A"),
            *("shutdown server", "restart server", "configure_site_log server ERROR", "list_sessions"),
            *("register_study mine --sites A", "list_studies", "app_command x y", "report_env A", "dead B x"),
        ):
            done, text = said(console, line)
            assert not done, (line, text)
    assert running.job_process("B").is_running() and running.job_process(SERVER).is_running()
    assert {client.name for client in federation.session.get_connected_client_list()} == {"A", "B", "C"}


def test_an_organisations_admin_does_not_end_a_site_of_another(federation: Deployed) -> None:
    """No job runs: the server would refuse all of it then. The server passes these on, and each site decides."""
    for job in federation.session.list_jobs():
        if job["status"] == "RUNNING":
            federation.session.abort_job(job["job_id"])
            federation.finished(job["job_id"])
    with federation.console(OF_A) as console:
        for line in ("shutdown client B", "restart client B C", "shutdown all", "restart all"):
            said(console, line)  # of several sites it has a table of what each has answered
        assert said(console, "shutdown client A")[0], "its own"
    assert all(federation.processes[site].poll() is None for site in (SERVER, "B", "C"))
    for site in ("B", "C"):
        assert not (federation.kits / site / "shutdown.fl").exists(), site
        assert not (federation.kits / site / "restart.fl").exists(), site
    wait_for(lambda: federation.processes["A"].poll() is not None, 120, "site A to end")
    federation.processes.pop("A")
    federation.start("A")
    federation.connected(federation.sites)


def test_an_admin_of_the_leads_organisation_manages_its_jobs_and_no_sites(federation: Deployed) -> None:
    run = DeployedRun.submit(federation, small_image_job("fedavg", "schedule.rounds=5000"))
    federation.reaches(run.job_id, 1)
    with federation.console(OF_HUB) as console:
        for line in ("disable_client B", "remove_client B", f"clone_job {run.job_id}"):
            assert not said(console, line)[0], line
        assert said(console, f"get_job_log {run.job_id}")[0]
        assert said(console, f"abort_job {run.job_id}")[0]
    assert federation.finished(run.job_id) == "FINISHED:ABORTED"


def test_a_leads_log_command_takes_a_partys_name_and_a_level_and_nothing_else(federation: Deployed) -> None:
    run = DeployedRun.submit(federation, small_image_job("fedavg", "schedule.rounds=5000"))
    federation.reaches(run.job_id, 1)
    before = len(federation.log(SERVER))
    with federation.console(LEAD) as console:
        done, text = said(console, f"get_job_log {run.job_id} server")
        assert done and "fedshift" in text, "the job's own log is read"
        for line in (
            *(f"get_job_log {run.job_id} {site}" for site in ("A,B", "server report.html")),
            f"configure_job_log {run.job_id} server other.json",
            f"configure_job_log {run.job_id} server debug",
            f"configure_job_log {run.job_id} client A INFO",
        ):
            assert not said(console, line)[0], line
        assert said(console, f"configure_job_log {run.job_id} server INFO")[0]
        assert said(console, f"abort_job {run.job_id}")[0]
    assert f"from {LEAD} (console/get_job_log)" in federation.log(SERVER)[before:]
    federation.finished(run.job_id)


def test_no_command_is_done_that_the_table_leaves_out(federation: Deployed) -> None:
    with federation.console(OWNER) as console:
        for name, command in COMMANDS.items():
            if not command.roles:
                done, text = said(console, f"{name} A")
                assert not done, (name, text)
        assert said(console, "list_sessions")[0]


def test_the_models_of_an_encrypted_job_are_downloaded_as_ciphertexts_that_a_site_opens(
    federation: Deployed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("federation.encryption=ckks", "schedule.rounds=2", "federation.min_sites=2")
    run = DeployedRun.submit(federation, small_image_job("fedavg", *options)).end()
    plain = small_image_job("fedavg", "schedule.rounds=2", "federation.min_sites=2")
    run_in_process(plain, federation.data, tmp_path / "plain")
    weights = read_model_file(tmp_path / "plain" / LAST)["weights"]
    key, expected = max(weights.items(), key=lambda item: item[1].numel())
    for name in (BEST, LAST):
        content = (run.folder / name).read_bytes()
        assert expected.numpy().astype(np.float32).tobytes()[:64] not in content
        with raises("model-encrypted", naming=name):
            open_model(run.folder / name)
    out = tmp_path / "opened.pt"
    assert main(["site", "decrypt", str(federation.kits / "B"), str(run.folder / LAST), "--out", str(out)]) == 0
    capsys.readouterr()
    assert torch.allclose(read_model_file(out)["weights"][key], expected, atol=1e-4)
    # Neither the coordinator's nor the server's kit has a key that opens it.
    for kit in (LEAD, SERVER):
        assert main(["site", "decrypt", str(federation.kits / kit), str(run.folder / LAST), "--out", str(out)]) != 0
        assert re.search(r"key|console|kit", capsys.readouterr().err)
