"""What one site does must not stop the others, and what stops the job must be said. Real processes, real kills."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.flare.export import write_job
from fedshift.schema.results import LAST

from .conftest import SimulatorRun, make_faulty, run_simulator

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]  # each run starts processes for all sites
SITES = ("BIDMC", "HK", "I2CVB", "BMC")
SHORT = ("network.options.features=4", "schedule.local_epochs=1", "schedule.precision=fp32")


@pytest.fixture(scope="session")
def troubled(phantom_home: Path, tmp_path_factory: pytest.TempPathFactory) -> SimulatorRun:
    """Four sites, two of which suffice, and a fault of every kind in three rounds."""
    job = resolve(
        "prostate",
        "fedfa",
        protocol="quick",
        sites=SITES,
        options=[*SHORT, "schedule.rounds=3", "federation.min_sites=2", "federation.grace=8"],
    )
    faults = {
        "HK.1": "raise",
        "I2CVB.1": "nan",
        "HK.2": "shape",
        "I2CVB.2": "missing",
        "BMC.3": "killed",
    }
    folder = make_faulty(job, tmp_path_factory.mktemp("jobs") / "troubled", faults)
    return run_simulator(folder, tmp_path_factory.mktemp("troubled"), home=phantom_home, threads=4)


def test_the_job_ends_well_without_the_faulty_sites(troubled: SimulatorRun) -> None:
    assert troubled.code == 0, troubled.output[-3000:]
    assert troubled.progress.state == "finished"
    weights = read_model_file(troubled.server / LAST)["weights"]
    assert all(np.isfinite(value.numpy()).all() for value in weights.values())


@pytest.mark.parametrize(
    ("round_", "site", "key", "reason"),
    [
        (1, "HK", "train", "EXECUTION_EXCEPTION"),
        (1, "I2CVB", "encoder1.enc1_conv1.weight", "NaN"),
        (2, "HK", "encoder1.enc1_conv1.weight", "has shape (1, 3, 3, 3), expected (4, 3, 3, 3)"),
        (2, "I2CVB", "encoder1.enc1_conv1.weight", "is missing"),
    ],
)
def test_a_faulty_answer_is_left_out_and_named(
    troubled: SimulatorRun, round_: int, site: str, key: str, reason: str
) -> None:
    record = troubled.results.rounds[round_ - 1]
    (fault,) = [rejection for rejection in record.rejected if rejection.site == site]
    assert fault.key == key
    assert reason in fault.reason
    assert site in record.absent
    assert site not in record.sites or not record.sites[site].steps, "it may score the round's model, no more"
    assert f"round {round_}: site {site} is left out" in troubled.output


def test_a_site_that_failed_is_used_again(troubled: SimulatorRun) -> None:
    assert {site for site, record in troubled.results.rounds[2].sites.items() if record.steps} >= {"HK", "I2CVB"}


def test_a_killed_worker_is_absent_and_the_rest_go_on(troubled: SimulatorRun) -> None:
    record = troubled.results.rounds[2]
    assert record.absent == ["BMC"]
    assert "no answer from BMC" in troubled.output
    assert troubled.results.final is not None
    assert set(troubled.results.final.last.sites) == {"BIDMC", "HK", "I2CVB"}


def test_a_lost_quorum_ends_the_job_with_a_sentence(phantom_home: Path, tmp_path: Path) -> None:
    job = resolve(
        "prostate",
        "fedavg",
        protocol="quick",
        sites=SITES[:2],
        options=[*SHORT, "schedule.rounds=2", "federation.min_sites=2", "federation.round_timeout=60"],
    )
    folder = make_faulty(job, tmp_path / "job", {"HK.1": "killed"})
    run = run_simulator(folder, tmp_path / "run", home=phantom_home, threads=2)
    assert run.code not in (0, None)
    assert run.progress.state == "failed"
    assert re.match(r"round 1: 1 .*, 2 needed; without HK", run.progress.reason)
    assert run.progress.reason in run.output
    assert run.results.rounds[0].absent == ["HK"]


def test_missing_data_are_one_sentence(tmp_path: Path) -> None:
    write_job(resolve("prostate", "fedavg", protocol="quick", sites=SITES[:2], options=SHORT), tmp_path / "job")
    run = run_simulator(tmp_path / "job", tmp_path / "run", home=tmp_path / "nothing", threads=2)
    assert run.code not in (0, None)
    for name in ("site BIDMC", str(tmp_path / "nothing" / "fedshift" / "phantom" / "prostate" / "BIDMC")):
        assert name in run.progress.reason
    assert run.progress.reason in run.output
