"""Sites of a deployed federation that miss rounds for all kinds of reasons, and how they come back."""

from __future__ import annotations

import re
import resource
import signal
from collections.abc import Iterator

import pytest
from conftest import small_image_job

from fedshift.federation.model_files import read_model_file
from fedshift.schema.results import LAST

from .conftest import image_sites
from .deployed import SERVER, Deployed, DeployedRun, Line

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def missing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedRun]:
    """Every fault lasts for two rounds; ``struck`` also has when each site was back."""
    folder = tmp_path_factory.mktemp("missing")
    # Adam's moments make a site's state larger than FLARE's own files.
    adam = ("optimizer.name=adam", "optimizer.lr=0.001")
    options = (*adam, "schedule.local_epochs=6", "federation.min_sites=1", "federation.grace=1")
    job = small_image_job("fedavg", "schedule.rounds=300", *options)
    with Line() as line, Deployed(folder, image_sites(folder / "data"), lines={"B": line}) as federation:
        federation.start(SERVER, "A", "B")
        federation.connected(["A", "B"])
        run = DeployedRun.submit(federation, job)

        def back(fault: str, site: str) -> None:
            federation.reaches(run.job_id, run.struck[fault] + 2)
            if site == "A":
                process.send_signal(signal.SIGCONT)
            run.struck[f"{fault}: over"] = federation.trains(site, run.job_id)

        run.wait("late")
        federation.start("C")
        run.struck["late: over"] = federation.trains("C", run.job_id)

        run.wait("hang")
        process = run.job_process("A")
        process.send_signal(signal.SIGSTOP)
        back("hang", "A")

        run.wait("disk")
        process.rlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        federation.reaches(run.job_id, run.struck["disk"] + 2)
        process.rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        back("disk", "A")

        run.wait("state")
        federation.kill("C")
        states = sorted((federation.kits / "C" / run.job_id / "sites" / "C").glob("round_*.pt"))
        states[-1].write_bytes(states[-1].read_bytes()[:1000])
        federation.start("C")
        back("state", "C")

        run.wait("cut")
        line.cut()
        federation.reaches(run.job_id, run.struck["cut"] + 2)
        line.mend()
        back("cut", "B")

        federation.session.abort_job(run.job_id)
        yield run.end("FINISHED:ABORTED")


def test_a_site_that_comes_late_is_let_in(missing: DeployedRun) -> None:
    assert missing.trained(1) == {"A", "B"}
    assert "C" in missing.trained(missing.struck["late: over"])


def test_a_site_that_hangs_is_not_waited_for_and_comes_back(missing: DeployedRun) -> None:
    round_ = missing.struck["hang"]
    assert "A" in missing.results.rounds[round_].absent
    assert "A" in missing.trained(missing.struck["hang: over"])


def test_a_site_whose_disk_is_full_says_so_and_comes_back(missing: DeployedRun) -> None:
    rejected = [r for record in missing.results.rounds for r in record.rejected]
    assert {r.site for r in rejected} == {"A"}
    assert "DataError (the site's log says more)" in {r.reason for r in rejected}
    assert re.search(
        r"round_\d+\.pt cannot be written",
        missing.federation.log("A"),
    )
    assert "A" in missing.trained(missing.struck["disk: over"])


def test_a_site_whose_last_state_is_truncated_goes_on_from_the_one_before(missing: DeployedRun) -> None:
    assert re.search(r"round_\d+\.pt cannot be read", missing.federation.log("C"))
    assert "C" in missing.trained(missing.struck["state: over"])


def test_a_site_that_is_cut_off_is_not_waited_for_and_comes_back(missing: DeployedRun) -> None:
    assert "B" in missing.results.rounds[missing.struck["cut"]].absent
    assert "B" in missing.trained(missing.struck["cut: over"])


def test_an_aborted_job_leaves_what_it_had_reached(missing: DeployedRun) -> None:
    assert (missing.folder / LAST).is_file()
    assert read_model_file(missing.folder / LAST)["round"] == missing.results.rounds[-1].round


def test_a_job_that_ended_early_leaves_no_answer_of_a_single_site(missing: DeployedRun) -> None:
    assert not list(missing.folder.rglob("updates"))
