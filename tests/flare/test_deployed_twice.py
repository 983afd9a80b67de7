"""A site that is there twice: two processes of one kit, and a copy of the kit on another machine, while a job runs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from conftest import small_image_job

from .conftest import image_sites
from .deployed import SERVER, Deployed, DeployedRun, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@dataclass
class Twice:
    run: DeployedRun
    second: subprocess.Popen[bytes]
    """The process that was started from the kit of C a second time, while the first ran."""
    copied_in: int
    """The round in which a copy of C's kit was started, on what might be another machine."""
    before: str
    """The server's log until then."""
    after: int
    """A round in which C trained after that."""


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twice]:
    folder = tmp_path_factory.mktemp("twice")
    job = small_image_job(
        "fedavg", "schedule.rounds=5000", "schedule.local_epochs=12", "federation.min_sites=2", "federation.grace=2"
    )
    with Deployed(folder / "f", image_sites(folder / "data")) as federation:
        federation.start_all()
        run = DeployedRun.submit(federation, job)
        federation.reaches(run.job_id, 2)
        first = federation.processes["C"]
        federation.start("C")
        second = federation.processes["C"]
        federation.processes["C"] = first
        wait_for(lambda: second.poll() is not None, 120, "the second process to end")
        before = federation.log(SERVER)
        # The copy keeps nothing of the lock: it might be on any machine.
        kit = federation.kits / "C"
        kept = kit.with_name("copy_of_C")
        shutil.copytree(kit, kept, ignore=shutil.ignore_patterns(".running.lock", "*.fl", run.job_id))
        copied_in = federation.progress(run.job_id).round  # type: ignore[union-attr]
        federation.start_from("copy_of_C", kept, "C")
        wait_for(lambda: "registered again" in federation.log(SERVER)[len(before) :], 120, "the copy to register")
        after = federation.trains("C", run.job_id)
        federation.reaches(run.job_id, after + 20)
        federation.session.abort_job(run.job_id)
        yield Twice(run.end("FINISHED:ABORTED"), second, copied_in, before, after)


def test_a_second_process_of_a_kit_does_not_start_and_says_why(twice: Twice) -> None:
    assert twice.second.returncode not in (0, None)
    assert "in use by" in twice.run.federation.log("C")
    assert "registered again" not in twice.before, "it has not come as far as the server"


def test_the_first_process_is_not_disturbed_by_it(twice: Twice) -> None:
    assert twice.copied_in > 1
    for record in twice.run.results.rounds[: twice.copied_in - 1]:
        assert twice.run.trained(record.round) == {"A", "B", "C"} and not record.rejected and not record.absent


def test_of_a_kit_and_its_copy_the_last_one_that_registered_takes_part(twice: Twice) -> None:
    log = twice.run.federation.log(SERVER)[len(twice.before) :]
    assert "C has registered again" in log
    assert f"C takes part in job {twice.run.job_id}" in log
    assert "C" in twice.run.trained(twice.after)


def test_the_other_sites_take_part_in_every_round(twice: Twice) -> None:
    for record in twice.run.results.rounds:
        assert twice.run.trained(record.round) >= {"A", "B"}
        assert not [fault for fault in record.rejected if fault.site != "C"]
