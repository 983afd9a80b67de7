"""A large update over a line that is cut in its middle: real processes, certificates, and a relay that counts bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from conftest import small_image_job

from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.tensors import read_weights
from fedshift.schema.results import LAST
from fedshift.tasks.kinds import build_task
from flare_armour.pieces.array_files import LARGE
from flare_armour.pieces.wire import MOST

from .conftest import image_sites
from .deployed import SERVER, Deployed, DeployedRun, Line, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OTHERS = 1_000_000
"""Bytes of everything but pieces that pass in a round, at most."""


@dataclass(frozen=True)
class Cut:
    run: DeployedRun
    size: int
    """Bytes of the model."""
    before: int
    after: int
    """Bytes that went up the line until it was cut, and from then on."""


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cut]:
    folder = tmp_path_factory.mktemp("cut")
    schedule = ("schedule.rounds=1", "schedule.local_steps=1", "federation.min_sites=2")
    job = small_image_job("fedavg", "network.options.width=46", *schedule, sites=("A", "B"))
    data = {site: path for site, path in image_sites(folder / "data").items() if site in job.task.sites}
    with Line(rate_mbit=24) as line, Deployed(folder, data, lines={"B": line}) as federation:
        federation.start_all()
        run = DeployedRun.submit(federation, job)
        run.federation.reaches(run.job_id, 1)
        start = line.up.passed  # little else goes up before the update
        size = sum(value.nbytes for value in read_weights(build_task(job).network()).values())
        wait_for(lambda: line.up.passed - start > 0.6 * size, 90, "B to send more than half of its update")
        line.cut()
        time.sleep(0.5)
        before = line.up.passed
        line.mend()
        wait_for(lambda: federation.progress(run.job_id).step == "evaluation", 90, "the round to close")  # type: ignore[union-attr]
        after = line.up.passed
        yield Cut(run.end(), size, before - start, after - before)


def test_what_had_been_acknowledged_is_not_sent_again(cut: Cut) -> None:
    assert cut.size > LARGE
    assert cut.before > cut.size / 2
    assert cut.before + cut.after < cut.size + MOST + OTHERS
    assert "sending the update of round 1: it goes on at" in cut.run.federation.log("B")


def test_the_weights_are_those_of_a_run_without_a_cut(cut: Cut, tmp_path: Path) -> None:
    run_in_process(cut.run.job, cut.run.federation.data, tmp_path)
    ours, theirs = read_model_file(tmp_path / LAST), read_model_file(cut.run.folder / LAST)
    for key, value in ours["weights"].items():
        assert torch.equal(value, theirs["weights"][key]), key
    (record,) = cut.run.results.rounds
    assert not record.absent and not record.rejected


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cut]:
    """As above, with a server that is killed in the middle of the update and started again, in place of the line."""
    folder = tmp_path_factory.mktemp("restarted")
    schedule = ("schedule.rounds=1", "schedule.local_steps=1", "federation.min_sites=2")
    job = small_image_job("fedavg", "network.options.width=46", *schedule, sites=("A", "B"))
    data = {site: path for site, path in image_sites(folder / "data").items() if site in job.task.sites}
    with Line(rate_mbit=24) as line, Deployed(folder, data, lines={"B": line}) as federation:
        federation.start_all()
        run = DeployedRun.submit(federation, job)
        run.federation.reaches(run.job_id, 1)
        start = line.up.passed
        size = sum(value.nbytes for value in read_weights(build_task(job).network()).values())
        wait_for(lambda: line.up.passed - start > 0.6 * size, 90, "B to send more than half of its update")
        federation.close_session()
        federation.kill(SERVER)
        before = line.up.passed
        federation.start(SERVER)
        federation.connected(federation.sites)
        run.end()
        yield Cut(run, size, before - start, line.up.passed - before)


def test_a_server_that_restarts_with_pieces_under_way_ends_with_the_same_weights(
    restarted: Cut, tmp_path: Path
) -> None:
    assert restarted.before > restarted.size / 2
    run_in_process(restarted.run.job, restarted.run.federation.data, tmp_path)
    ours, theirs = read_model_file(tmp_path / LAST), read_model_file(restarted.run.folder / LAST)
    for key, value in ours["weights"].items():
        assert torch.equal(value, theirs["weights"][key]), key
    (record,) = restarted.run.results.rounds
    assert not record.absent and not record.rejected
    for name in (SERVER, "A", "B"):
        assert not list((restarted.run.federation.kits / name).rglob("pieces")), name


def test_nothing_of_the_pieces_is_left(cut: Cut) -> None:
    for name in (SERVER, "A", "B"):
        assert not list((cut.run.federation.kits / name).rglob("pieces")), name
    assert not list(cut.run.folder.rglob("pieces"))
