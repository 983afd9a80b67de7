"""Faults that a deployed federation survives without a trace in its result: real processes, really killed."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import small_image_job

from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.server.run_files import STATE_FILE
from fedshift.federation.site.checkpoint import FILE
from fedshift.schema.results import LAST

from .conftest import image_sites
from .deployed import SERVER, Deployed, DeployedRun, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedRun]:
    folder = tmp_path_factory.mktemp("unharmed")
    job = small_image_job("fedbn", "schedule.rounds=7", "schedule.local_epochs=12", "federation.grace=120")
    with Deployed(folder, image_sites(folder / "data")) as federation:
        federation.start_all()
        run = DeployedRun.submit(federation, job)

        run.wait("a site's job process is killed")
        run.job_process("B").kill()

        run.wait("a site is killed and started again")
        federation.kill("C")
        federation.start("C")

        run.wait("the server's job process is killed")
        process = run.job_process("B")
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: set(federation.progress(run.job_id).sites_in) == {"A", "C"}, 60, "A and C to answer")
        run.job_process(SERVER).kill()
        process.send_signal(signal.SIGCONT)

        run.wait("the server is killed, its last state truncated, and it is started again")
        federation.close_session()
        federation.kill(SERVER)
        state = federation.kits / SERVER / run.job_id / STATE_FILE
        state.write_bytes(state.read_bytes()[:1000])
        federation.start(SERVER)
        federation.connected(federation.sites)
        yield run.end()


def test_no_fault_changes_the_weights(unharmed: DeployedRun, tmp_path: Path) -> None:
    run_in_process(unharmed.job, unharmed.federation.data, tmp_path)
    ours, theirs = read_model_file(tmp_path / LAST), read_model_file(unharmed.folder / LAST)
    for key, value in ours["weights"].items():
        assert torch.equal(value, theirs["weights"][key]), key


def test_every_site_trains_in_every_round(unharmed: DeployedRun) -> None:
    assert [record.round for record in unharmed.results.rounds] == [1, 2, 3, 4, 5, 6, 7]
    for record in unharmed.results.rounds:
        assert unharmed.trained(record.round) == {"A", "B", "C"}
        assert not record.absent and not record.rejected


def test_a_killed_job_process_is_started_again(unharmed: DeployedRun) -> None:
    for name in ("B", SERVER):
        assert "the job process was killed (SIGKILL): started again" in unharmed.federation.log(name)


def test_a_restarted_site_is_let_in_again(unharmed: DeployedRun) -> None:
    assert f"site C takes part in job {unharmed.job_id} from now on" in unharmed.federation.log(SERVER)


def test_a_restarted_server_goes_on_with_the_job_it_left(unharmed: DeployedRun) -> None:
    log = unharmed.federation.log(SERVER)
    assert f"job {unharmed.job_id} ran when the server was stopped" in log
    before, after = (int(n) for n in re.findall(r"the run was interrupted: it goes on with round (\d+)", log))
    assert before == unharmed.struck["the server's job process is killed"], "no round is lost"
    last = unharmed.struck["the server is killed, its last state truncated, and it is started again"]
    assert last - 1 <= after <= last, "at most one round is lost"


def test_a_truncated_state_of_the_server_is_named(unharmed: DeployedRun) -> None:
    assert re.search(
        rf"{STATE_FILE} cannot be read .*; the state of the round before is used", unharmed.federation.log(SERVER)
    )


def test_no_site_trains_a_round_twice(unharmed: DeployedRun) -> None:
    """A and C had answered when the server's job process was killed: the round that was open comes again."""
    for site in "AC":
        assert "its answer is sent again" in unharmed.federation.log(site)


def test_a_site_killed_within_a_round_goes_on_with_it(unharmed: DeployedRun, tmp_path: Path) -> None:
    federation = unharmed.federation
    # FedFA's layers keep moving averages from step to step, beside the network and the momentum.
    long_round = ("schedule.rounds=1", "schedule.local_steps=400", "schedule.checkpoint_minutes=0.002")
    options = ("optimizer.lr=0.01", "optimizer.momentum=0.9", "federation.grace=120")
    job = small_image_job("fedfa", *long_round, *options, sites=("A", "B"))
    run = DeployedRun.submit(federation, job)
    state = federation.kits / "B" / run.job_id
    wait_for(lambda: any(state.rglob(FILE)), 120, "a checkpoint of B")
    run.job_process("B").kill()
    run.end()
    assert re.search(
        r"site B, round 1: training was interrupted: it goes on after step \d+ of 400", federation.log("B")
    )
    assert not any(state.rglob(FILE)), "the round is over"
    run_in_process(job, {site: federation.data[site] for site in job.task.sites}, tmp_path)
    ours, theirs = read_model_file(tmp_path / LAST), read_model_file(run.folder / LAST)
    assert run.trained(1) == {"A", "B"}
    for name, part in (("weights", ours["weights"]), ("fedfa", ours["methods"]["fedfa"])):
        for key, value in part.items():
            other = theirs["weights"] if name == "weights" else theirs["methods"][name]
            assert torch.equal(value, other[key]), f"{name}: {key}"
