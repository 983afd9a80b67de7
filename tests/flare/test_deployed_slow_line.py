"""A large update over a line that is cut in its middle: real processes, certificates, and a relay that counts bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import small_image_job
from modelfiles import assert_same_weights

from fedshift.federation.in_process import run_in_process
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


@contextmanager
def half_sent(folder: Path) -> Iterator[tuple[Line, DeployedRun, int, int]]:
    """A job in whose only round B has sent more than half of its update; bytes that had passed before it, and its size.

    Little else goes up before the update.
    """
    schedule = ("schedule.rounds=1", "schedule.local_steps=1", "federation.min_sites=2")
    job = small_image_job("fedavg", "network.options.width=46", *schedule, sites=("A", "B"))
    data = {site: path for site, path in image_sites(folder / "data").items() if site in job.task.sites}
    with Line(rate_mbit=24) as line, Deployed(folder, data, lines={"B": line}) as federation:
        federation.start_all()
        run = DeployedRun.submit(federation, job)
        federation.reaches(run.job_id, 1)
        start = line.up.passed
        size = sum(value.nbytes for value in read_weights(build_task(job).network()).values())
        wait_for(lambda: line.up.passed - start > 0.6 * size, 90, "B to send more than half of its update")
        yield line, run, start, size


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cut]:
    with half_sent(tmp_path_factory.mktemp("cut")) as (line, run, start, size):
        line.cut()
        time.sleep(0.5)
        before = line.up.passed
        line.mend()
        wait_for(lambda: run.federation.progress(run.job_id).step == "evaluation", 90, "the round to close")  # type: ignore[union-attr]
        after = line.up.passed
        yield Cut(run.end(), size, before - start, after - before)


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cut]:
    """The server is killed in the middle of the update and started again."""
    with half_sent(tmp_path_factory.mktemp("restarted")) as (line, run, start, size):
        federation = run.federation
        federation.close_session()
        federation.kill(SERVER)
        before = line.up.passed
        federation.start(SERVER)
        federation.connected(federation.sites)
        yield Cut(run.end(), size, before - start, line.up.passed - before)


def test_what_had_been_acknowledged_is_not_sent_again(cut: Cut) -> None:
    assert cut.size > LARGE
    assert cut.before + cut.after < cut.size + MOST + OTHERS
    lines = cut.run.federation.log("B").splitlines()
    assert any("update of round 1" in line and "it goes on" in line for line in lines)


@pytest.mark.parametrize("how", ["cut", "restarted"])
def test_the_weights_are_those_of_an_undisturbed_run_and_no_piece_is_left(
    how: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    disturbed: Cut = request.getfixturevalue(how)
    assert disturbed.before > disturbed.size / 2
    run = disturbed.run
    run_in_process(run.job, run.federation.data, tmp_path)
    assert_same_weights(tmp_path / LAST, run.folder / LAST)
    (record,) = run.results.rounds
    assert not record.absent and not record.rejected
    for folder in (*(run.federation.kits / name for name in (SERVER, "A", "B")), run.folder):
        assert not list(folder.rglob("pieces")), folder
