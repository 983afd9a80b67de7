"""Processes of jobs in a real Slurm queue: by network at one site, by files at another, and beside a third as usual."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import small_image_job
from modelfiles import assert_same_weights
from slurm import Slurm, needs_slurm, running_slurm

from fedshift.federation.in_process import run_in_process
from fedshift.federation.site.checkpoint import FILE
from fedshift.schema.launcher import parse_launcher
from fedshift.schema.results import LAST

from .conftest import environment, image_sites
from .deployed import Deployed, DeployedRun, free_ports, wait_for

pytestmark = [needs_slurm, pytest.mark.slow, pytest.mark.timeout(600)]

NETWORK, FILES = "B", "C"
LONG = ("schedule.rounds=2", "schedule.local_steps=300", "schedule.checkpoint_minutes=0.002", "federation.grace=120")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with running_slurm(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


@pytest.fixture(scope="module")
def federation(cluster: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("queue")
    python = folder / "python"  # Slurm gives a job nothing of the environment
    variables = environment(folder)
    exports = "".join(f"export {name}='{variables[name]}'\n" for name in ("PYTHONPATH", "OMP_NUM_THREADS"))
    python.write_text(f'#!/bin/sh\n{exports}exec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    (port,) = free_ports(1)
    by_network = {"host": "127.0.0.1", "port": port, "python": str(python), "cpus": 1, "time": "10:00"}
    by_files = {"connection": "files", "python": str(python), "setup": 'test -z "${OF_THE_SITE:-}"'}
    launchers = {NETWORK: parse_launcher("slurm", by_network), FILES: parse_launcher("slurm", by_files)}
    with Deployed(folder, image_sites(folder / "data"), launchers=launchers) as deployed:
        for site in launchers:
            (deployed.kits / site).chmod(0o700)
        deployed.start("localhost", "A")
        deployed.start(*launchers, environment={**cluster.environment, "OF_THE_SITE": "1"})
        deployed.connected(deployed.sites)
        yield deployed


def test_what_a_queue_ends_goes_on_where_it_was_and_changes_no_weight(
    federation: Deployed, cluster: Slurm, tmp_path: Path
) -> None:
    run = DeployedRun.submit(federation, small_image_job("fedbn", *LONG))
    wait_for(lambda: len(cluster.queue()) == 2, 120, "two jobs in the queue")
    state = federation.kits / FILES / run.job_id
    wait_for(lambda: any(state.rglob(FILE)), 120, "a checkpoint")
    cluster.fail_node()
    run.end()
    assert [state for _, state in cluster.jobs()].count("NODE_FAIL") == 2
    for site in (NETWORK, FILES):
        log = federation.log(site)
        assert re.search(r"was killed \(Slurm job \d+: NODE_FAIL after .*\): started again", log)
        assert not federation.job_process(site, run.job_id), "nothing of the job ran beside the site"
    assert all(run.trained(round_) == {"A", "B", "C"} for round_ in (1, 2))
    run_in_process(run.job, federation.data, tmp_path)
    assert_same_weights(tmp_path / LAST, run.folder / LAST)
    assert not cluster.queue()


def test_a_killed_site_leaves_nothing_in_the_queue_and_an_operator_may_cancel(
    federation: Deployed, cluster: Slurm
) -> None:
    cluster.close_node()
    run = DeployedRun.submit(federation, small_image_job("fedbn", *LONG, "federation.min_sites=2"))
    wait_for(lambda: len(cluster.queue()) == 2, 120, "two jobs in the queue")
    federation.kill(FILES)
    left = set(cluster.queue())
    federation.start(FILES, environment=cluster.environment)
    federation.connected(federation.sites)
    wait_for(lambda: len(cluster.queue()) == 2 and set(cluster.queue()) != left, 120, "another job in the queue")
    assert f"has left nvfl-{FILES}-" in federation.log(FILES)
    cluster.open_node()
    cancelled = cluster.job_named(f"nvfl-{NETWORK}-")
    federation.reaches(run.job_id, 1)
    cluster.ask("scancel", cancelled)
    run.end()
    assert re.search(rf"Slurm job {cancelled}: CANCELLED by .*not by this site\): given up", federation.log(NETWORK))
    assert run.trained(2) == {"A", FILES}
    assert not cluster.queue()


def test_aborting_a_job_takes_it_out_of_the_queue(federation: Deployed, cluster: Slurm) -> None:
    cluster.close_node()
    run = DeployedRun.submit(federation, small_image_job("fedbn", *LONG))
    wait_for(lambda: len(cluster.queue()) == 2, 120, "two jobs in the queue")
    waiting = set(cluster.queue())
    federation.session.abort_job(run.job_id)
    wait_for(lambda: not cluster.queue(), 60, "the queue to be empty")
    wait_for(lambda: {dict(cluster.jobs()).get(number) for number in waiting} == {"CANCELLED"}, 60, "the accounting")
    cluster.open_node()
