"""A hostile site with a real kit speaks to a deployed federation while a job runs, which ends as if it were absent.

What it says is in tests/flare/attacks/.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from conftest import small_image_job
from modelfiles import assert_same_weights
from nvflare.fuel.hci.client import file_transfer

from fedshift.federation.in_process import run_in_process
from fedshift.schema.results import LAST

from .attacks import channels, connections, floods, messages
from .attacks.hostile import ANSWERS, CONNECTIONS, JOB, LOWERED, WAITING
from .conftest import ROOT, image_sites
from .deployed import LEAD, SERVER, Deployed, DeployedRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

HOSTILE, VICTIM = "C", "B"
WHILE_A_WAITS, WHILE_ROUNDS_GO_ON = (channels, messages), (floods, connections)
DROPPED = "dropped a message from "
LOWER = f"""
import importlib
for name, value in {LOWERED}.items():
    module, _, bound = name.partition(":")
    setattr(importlib.import_module(module), bound, value)
"""
"""What the server's processes do first."""


@dataclass
class Attacked:
    run: DeployedRun
    answers: dict[str, list[str]]
    """Attack → what the hostile site was answered."""
    said_before: dict[str, str]
    """Party → its log before the first attack."""
    kit_before: dict[str, bytes]
    """The victim's own files."""
    processes: dict[str, psutil.Process]
    rounds: range
    """Those that were closed while requests came in numbers."""

    def log(self, name: str) -> str:
        return self.run.federation.log(name)

    def audit(self, name: str) -> str:
        files = (self.run.federation.kits / name).rglob("*audit*")
        return "\n".join(path.read_text(encoding="utf-8") for path in files if path.is_file())


def own_files(federation: Deployed, site: str) -> dict[str, bytes]:
    kit = federation.kits / site
    return {str(p.relative_to(kit)): p.read_bytes() for d in ("startup", "local") for p in sorted((kit / d).iterdir())}


def attack(federation: Deployed, job_id: str, modules: tuple[object, ...]) -> dict[str, list[str]]:
    """Let the hostile site say all of these modules; returns what it was answered."""
    names = [module.__name__.rpartition(".")[2] for module in modules]  # type: ignore[attr-defined]
    printed = federation.command("tests.flare.attacks.hostile", str(federation.kits / HOSTILE), job_id, VICTIM, *names)
    (line,) = [line for line in printed.splitlines() if line.startswith(ANSWERS)]
    return dict(json.loads(line.removeprefix(ANSWERS)))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "lower").mkdir()
    (folder / "lower" / "sitecustomize.py").write_text(LOWER, encoding="utf-8")
    job = small_image_job("fedavg", "schedule.rounds=300", "federation.min_sites=2", "federation.grace=1")
    with Deployed(folder / "federation", image_sites(folder / "data")) as federation:
        path = os.pathsep.join([str(folder / "lower"), str(ROOT / "custom"), str(ROOT)])
        federation.start(SERVER, environment={"PYTHONPATH": path})
        federation.start("A", VICTIM)
        federation.connected(["A", VICTIM])
        run = DeployedRun.submit(federation, job)
        federation.reaches(run.job_id, 1)
        process = run.job_process("A")
        process.send_signal(signal.SIGSTOP)  # the round is open as long as this site is awaited
        processes = {name: psutil.Process(federation.processes[name].pid) for name in (SERVER, "A", VICTIM)}
        before = {name: federation.log(name) for name in processes}
        files = own_files(federation, VICTIM)
        answers = attack(federation, run.job_id, WHILE_A_WAITS)
        process.send_signal(signal.SIGCONT)
        first = closed(run)
        answers |= attack(federation, run.job_id, WHILE_ROUNDS_GO_ON)
        rounds = range(first + 1, closed(run) + 1)
        yield Attacked(run.end(), answers, before, files, processes, rounds)


def closed(run: DeployedRun) -> int:
    """Rounds that have ended."""
    results = run.federation.results(run.job_id)
    return len(results.rounds) if results else 0


def test_the_hostile_site_is_answered_nothing(attacked: Attacked) -> None:
    modules = (*WHILE_A_WAITS, *WHILE_ROUNDS_GO_ON)
    assert set(attacked.answers) == {attack.__name__ for module in modules for attack in module.ATTACKS}
    assert not {name: said for name, said in attacked.answers.items() if said}


def test_nobody_has_stopped_or_changed(attacked: Attacked) -> None:
    assert all(process.is_running() for process in attacked.processes.values())
    assert own_files(attacked.run.federation, VICTIM) == attacked.kit_before
    connected = {client.name for client in attacked.run.federation.session.get_connected_client_list()}
    assert connected >= {"A", VICTIM}


def test_the_weights_are_those_of_a_run_in_which_the_site_failed(attacked: Attacked, tmp_path: Path) -> None:
    data = {site: path for site, path in attacked.run.federation.data.items() if site != HOSTILE}
    run_in_process(attacked.run.job, data, tmp_path)
    assert_same_weights(tmp_path / LAST, attacked.run.folder / LAST)
    assert all(attacked.run.trained(record.round) == {"A", VICTIM} for record in attacked.run.results.rounds)


def test_nothing_that_honest_parties_say_is_dropped(attacked: Attacked) -> None:
    for name, said in attacked.said_before.items():
        assert "is in place" in said, name
        assert DROPPED not in said, name
    lines = [line for name in (SERVER, "A", VICTIM) for line in attacked.log(name).splitlines() if DROPPED in line]
    senders = {line.partition(DROPPED)[2].split()[0] for line in lines}
    assert senders == {HOSTILE}


def test_a_site_whose_answer_is_too_large_is_left_out_by_name(attacked: Attacked) -> None:
    rejected = [fault for record in attacked.run.results.rounds for fault in record.rejected]
    assert {(fault.site, fault.key) for fault in rejected} == {(HOSTILE, "answer")}
    assert all(f"{messages.LARGE}" in fault.reason for fault in rejected)


def test_rounds_go_on_in_their_time(attacked: Attacked) -> None:
    assert len(attacked.rounds) >= 2
    assert all(attacked.run.results.rounds[number - 1].seconds < 100 for number in attacked.rounds)


def test_the_log_names_the_certificate_for_each_bound_and_is_not_filled(attacked: Attacked) -> None:
    log = attacked.log(SERVER)
    for said in (
        f"more than {CONNECTIONS} connections",
        f"more than {WAITING} messages",
        "sent a message",
        "handshake of",
    ):
        lines = [line for line in log.splitlines() if f"'{HOSTILE}' has" in line and said in line]
        assert 1 <= len(lines) <= 5, said
    for name in ("A", VICTIM):
        assert f"'{name}' has" not in log


def test_what_was_dropped_is_in_the_servers_log_and_audit_log(attacked: Attacked) -> None:
    for said in (attacked.log(SERVER), attacked.audit(SERVER)):
        assert f"{DROPPED}{HOSTILE} (admin/none to {VICTIM})" in said
        assert f"{DROPPED}{HOSTILE} (admin/none to {VICTIM}, in" in said
    assert "[A:armour.dropped]" in attacked.audit(SERVER)


def test_a_job_that_brings_another_file_runs_nowhere(attacked: Attacked, tmp_path: Path) -> None:
    federation = attacked.run.federation
    job = Path(shutil.copytree(federation.folder / "jobs" / "job", tmp_path / "job"))
    (job / "app" / "config" / "another.json").write_text("{}", encoding="utf-8")
    assert federation.finished(federation.submit(job), 60).startswith("FINISHED:")
    assert "config/another.json" in federation.log(SERVER)
    assert not list(federation.kits.glob("*/**/another.json"))


def test_a_job_that_unpacks_to_much_is_refused_when_it_is_submitted(
    attacked: Attacked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job" / "app" / "custom").mkdir(parents=True)

    def zip_much(folder: str, name: str, output: str) -> None:
        with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("job/app/custom/x", bytes(JOB + 1))

    monkeypatch.setattr(file_transfer, "zip_directory_to_file", zip_much)
    with pytest.raises(Exception, match="unpacked"):
        attacked.run.federation.submit(tmp_path / "job")
    assert f"'{LEAD}' has submitted" in attacked.log(SERVER)
