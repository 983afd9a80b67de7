"""Faults that a deployed federation survives without a trace in its result: real processes, really killed."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import small_image_job
from modelfiles import assert_same_weights

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

        run.wait("site's job")
        run.job_process("B").kill()

        run.wait("site")
        federation.kill("C")
        federation.start("C")

        run.wait("server's job")
        process = run.job_process("B")
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: set(federation.progress(run.job_id).sites_in) == {"A", "C"}, 60, "A and C to answer")
        run.job_process(SERVER).kill()
        process.send_signal(signal.SIGCONT)

        run.wait("server")
        federation.close_session()
        federation.kill(SERVER)
        state = federation.kits / SERVER / run.job_id / STATE_FILE
        state.write_bytes(state.read_bytes()[:1000])
        federation.start(SERVER)
        federation.connected(federation.sites)
        yield run.end()


def test_no_fault_changes_the_weights(unharmed: DeployedRun, tmp_path: Path) -> None:
    run_in_process(unharmed.job, unharmed.federation.data, tmp_path)
    assert_same_weights(tmp_path / LAST, unharmed.folder / LAST)


def test_every_site_trains_in_every_round(unharmed: DeployedRun) -> None:
    assert [record.round for record in unharmed.results.rounds] == [1, 2, 3, 4, 5, 6, 7]
    for record in unharmed.results.rounds:
        assert unharmed.trained(record.round) == {"A", "B", "C"}
        assert not record.absent and not record.rejected


def test_a_killed_job_process_is_started_again(unharmed: DeployedRun) -> None:
    for name in ("B", SERVER):
        assert "was killed (SIGKILL)" in unharmed.federation.log(name)


def test_a_restarted_site_is_let_in_again(unharmed: DeployedRun) -> None:
    assert f"C takes part in job {unharmed.job_id}" in unharmed.federation.log(SERVER)


def test_a_restarted_server_goes_on_with_the_job_it_left(unharmed: DeployedRun) -> None:
    log = unharmed.federation.log(SERVER)
    assert f"job {unharmed.job_id} ran" in log
    before, after = (int(n) for n in re.findall(r"the run was interrupted: it goes on with round (\d+)", log))
    assert before == unharmed.struck["server's job"], "no round is lost"
    last = unharmed.struck["server"]
    assert last - 1 <= after <= last, "at most one round is lost"


def test_a_truncated_state_of_the_server_is_named(unharmed: DeployedRun) -> None:
    assert re.search(rf"{STATE_FILE} cannot be read", unharmed.federation.log(SERVER))


def test_no_site_trains_a_round_twice(unharmed: DeployedRun) -> None:
    """A and C had answered when the server's job process was killed: the round that was open comes again."""
    for site in "AC":
        assert "is sent again" in unharmed.federation.log(site)


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
    assert re.search(r"site B, round 1: .* after step \d+ of 400", federation.log("B"))
    assert not any(state.rglob(FILE)), "the round is over"
    run_in_process(job, {site: federation.data[site] for site in job.task.sites}, tmp_path)
    assert run.trained(1) == {"A", "B"}
    assert_same_weights(tmp_path / LAST, run.folder / LAST)
    ours, theirs = (read_model_file(folder / LAST)["methods"]["fedfa"] for folder in (tmp_path, run.folder))
    assert all(torch.equal(value, theirs[key]) for key, value in ours.items())
