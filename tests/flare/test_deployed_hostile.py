"""A hostile site with a real kit attacks a deployed federation while a job runs, which ends as if the site were absent.

The attacks are in tests/flare/attacks/.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
from conftest import small_image_job
from nvflare.fuel.utils.fobs.lobs import get_datum_dir

from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.schema.results import LAST
from flare_armour.patches.connections import CONNECTIONS

from .attacks import connections, messages, orders
from .attacks.hostile import ANSWERS
from .conftest import image_sites
from .deployed import SERVER, Deployed, DeployedRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

HOSTILE, VICTIM = "C", "B"
MODULES = (("orders", "messages"), ("connections",))
"""Of tests/flare/attacks/, in this order; each group has a process of its own."""
DROPPED = "dropped a message from "


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
    grown: int
    """Bytes by which the attacks have made the server's job process larger."""

    def log(self, name: str) -> str:
        return self.run.federation.log(name)

    def audit(self, name: str) -> str:
        files = (self.run.federation.kits / name).rglob("*audit*")
        return "\n".join(path.read_text(encoding="utf-8") for path in files if path.is_file())


def own_files(federation: Deployed, site: str) -> dict[str, bytes]:
    kit = federation.kits / site
    return {str(p.relative_to(kit)): p.read_bytes() for d in ("startup", "local") for p in sorted((kit / d).iterdir())}


def attack(federation: Deployed, job_id: str) -> dict[str, list[str]]:
    """Let the hostile site do what it likes; returns what it was answered."""
    kit, answers = federation.kits / HOSTILE, dict[str, list[str]]()
    for modules in MODULES:
        printed = federation.command("tests.flare.attacks.hostile", str(kit), job_id, VICTIM, *modules)
        (line,) = [line for line in printed.splitlines() if line.startswith(ANSWERS)]
        answers |= json.loads(line.removeprefix(ANSWERS))
    return answers


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("attacked")
    # Enough rounds that a site is stopped in one of them, and not after the last: a round takes a tenth of a second.
    job = small_image_job("fedavg", "schedule.rounds=30", "federation.min_sites=2", "federation.grace=1")
    with Deployed(folder, image_sites(folder / "data")) as federation:
        federation.start(SERVER, "A", VICTIM)
        federation.connected(["A", VICTIM])
        run = DeployedRun.submit(federation, job)
        federation.reaches(run.job_id, 1)
        process = run.job_process("A")
        process.send_signal(signal.SIGSTOP)  # the job is open as long as this site is awaited
        processes = {name: psutil.Process(federation.processes[name].pid) for name in (SERVER, "A", VICTIM)}
        before = {name: federation.log(name) for name in processes}
        files = own_files(federation, VICTIM)
        memory = run.job_process(SERVER).memory_info().rss
        answers = attack(federation, run.job_id)
        grown = run.job_process(SERVER).memory_info().rss - memory
        process.send_signal(signal.SIGCONT)
        yield Attacked(run.end(), answers, before, files, processes, grown)


def test_the_hostile_site_is_answered_nothing(attacked: Attacked) -> None:
    every = (*orders.ATTACKS, *messages.ATTACKS, *connections.ATTACKS)
    assert set(attacked.answers) == {attack.__name__ for attack in every}
    assert not {name: said for name, said in attacked.answers.items() if said}


def test_nobody_has_stopped_or_changed(attacked: Attacked) -> None:
    assert all(process.is_running() for process in attacked.processes.values())
    assert own_files(attacked.run.federation, VICTIM) == attacked.kit_before
    connected = {client.name for client in attacked.run.federation.session.get_connected_client_list()}
    assert connected >= {"A", VICTIM}


def test_the_weights_are_those_of_a_run_in_which_the_site_failed(attacked: Attacked, tmp_path: Path) -> None:
    data = {site: path for site, path in attacked.run.federation.data.items() if site != HOSTILE}
    run_in_process(attacked.run.job, data, tmp_path)
    ours, theirs = read_model_file(tmp_path / LAST), read_model_file(attacked.run.folder / LAST)
    for key, value in ours["weights"].items():
        assert torch.equal(value, theirs["weights"][key]), key
    assert all(attacked.run.trained(record.round) == {"A", VICTIM} for record in attacked.run.results.rounds)


def test_nothing_that_honest_parties_say_is_dropped(attacked: Attacked) -> None:
    for name, said in attacked.said_before.items():
        assert "the guard is in place" in said, name
        assert DROPPED not in said, name
    lines = [line for name in (SERVER, "A", VICTIM) for line in attacked.log(name).splitlines() if DROPPED in line]
    senders = {line.partition(DROPPED)[2].split()[0] for line in lines}
    assert senders == {HOSTILE}


def test_a_site_whose_answer_is_none_is_left_out_by_name(attacked: Attacked) -> None:
    rejected = [fault for record in attacked.run.results.rounds for fault in record.rejected]
    assert {(fault.site, fault.key) for fault in rejected} == {(HOSTILE, "answer")}
    # The first of a round's messages counts, and which of them arrives first is a matter of time.
    bytes_declared = re.compile(r"declares \d+ bytes, allowed are \d+")
    kinds = {bytes_declared.sub("declares too much", fault.reason.partition(" (")[0]) for fault in rejected}
    assert kinds <= {"cannot be decoded", "declares too much"}, kinds


def test_messages_fill_neither_memory_nor_disk(attacked: Attacked) -> None:
    assert attacked.grown < 300_000_000
    assert "it declares 3221225472 bytes, allowed are" in attacked.log(SERVER)
    left = [path for path in Path(get_datum_dir()).iterdir() if path.read_bytes() == messages.CONTENT]
    assert not left


def test_a_party_has_so_many_connections(attacked: Attacked) -> None:
    """The attacks themselves assert that the others are closed."""
    assert f"'{HOSTILE}' has more than {CONNECTIONS} connections" in attacked.log(SERVER)
    for name in ("A", VICTIM):
        assert f"'{name}' has" not in attacked.log(SERVER)


def test_what_was_dropped_is_in_the_servers_log_and_audit_log(attacked: Attacked) -> None:
    for said in (attacked.log(SERVER), attacked.audit(SERVER)):
        for what in (
            f"{DROPPED}{HOSTILE} (admin/admin to {VICTIM}): the server passes nothing on between these",
            f"{DROPPED}{HOSTILE} (admin/admin to {VICTIM}, in the name of server): it speaks for another party",
        ):
            assert what in said
    assert "[A:armour.dropped]" in attacked.audit(SERVER)


def test_a_job_that_brings_a_file_to_configure_connections_runs_nowhere(attacked: Attacked, tmp_path: Path) -> None:
    federation = attacked.run.federation
    job = Path(shutil.copytree(federation.folder / "jobs" / "job", tmp_path / "job"))
    (job / "app" / "config" / "comm_config.json").write_text("{}", encoding="utf-8")
    assert federation.finished(federation.submit(job), 60).startswith("FINISHED:")
    assert "comm_config.json', which no job of fedshift has" in federation.log(SERVER)
    assert not list(federation.kits.glob("*/**/comm_config.json"))
