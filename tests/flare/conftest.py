"""Real simulator runs, each made once a session, on sites small enough for a round to take a second."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from conftest import make_image_site, make_site, small_job
from filelock import FileLock

from fedshift.flare.export import SPEC, read_job_folder, write_job
from fedshift.reporting.progress import Progress, read_progress
from fedshift.schema.job import JobSpec
from fedshift.schema.results import Results, read_results
from fedshift_testing.serialised import Kit

from .deployed import Deployed

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "jobs" / "fedfa_fedrdn_prostate"
SHIFTS = {
    "BIDMC": (1.0, 0.0),
    "HK": (0.5, 20.0),
    "I2CVB": (0.8, 40.0),
    "BMC": (1.2, -20.0),
    "RUNMC": (0.6, 60.0),
    "UCL": (1.4, -30.0),
}


@dataclass(frozen=True)
class SimulatorRun:
    """What a run of FLARE's stock simulator left."""

    workspace: Path
    code: int
    output: str
    seconds: float

    @property
    def server(self) -> Path:
        return self.workspace / "server" / "simulate_job"

    @property
    def log(self) -> str:
        """Of ``fedshift run``; the simulator itself prints it."""
        return (self.workspace / "simulator.log").read_text(encoding="utf-8")

    @property
    def results(self) -> Results:
        return read_results(self.server)

    @property
    def progress(self) -> Progress:
        progress = read_progress(self.server)
        assert progress is not None, self.output[-3000:]
        return progress


@pytest.fixture(scope="session")
def phantom_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An $XDG_DATA_HOME with the six sites of the prostate task at 96 pixels."""
    home = tmp_path_factory.mktemp("share")
    for site, (gain, offset) in SHIFTS.items():
        make_site(home / "fedshift" / "phantom", site, cases=3, depth=8, matrix=96, gain=gain, offset=offset)
    return home


def environment(home: Path) -> dict[str, str]:
    """For processes that use this checkout and the data in ``home``."""
    return {k: v for k, v in os.environ.items() if k != "FEDSHIFT_DATA"} | {
        "XDG_DATA_HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "custom"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
    }


OF_A, OF_HUB, MEMBER = "admin@a.org", "boss@hub.org", "member@hub.org"
PEOPLE = {OF_A: ("a", "org_admin"), OF_HUB: ("hub", "org_admin"), MEMBER: ("hub", "member")}
"""Of site A's organisation; of the server's and the lead's; and somebody who may look."""
IMAGE_SHIFTS = {"A": (1.0, 0.0), "B": (0.5, 20.0), "C": (1.4, -30.0)}


def image_sites(folder: Path) -> dict[str, Path]:
    """Three prepared sites."""
    return {s: make_image_site(folder, s, gain=g, offset=o) for s, (g, o) in IMAGE_SHIFTS.items()}


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """A provisioned federation of three sites that runs; for tests that leave it running."""
    folder = tmp_path_factory.mktemp("federation")
    with Deployed(folder, image_sites(folder / "data"), keys=True, people=PEOPLE) as deployed:
        deployed.start_all()
        yield deployed


@pytest.fixture(scope="session")
def short_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`JOB`, cut."""
    folder = tmp_path_factory.mktemp("jobs") / JOB.name
    cut(JOB, folder)
    return folder


@pytest.fixture(scope="session")
def side_by_side(short_job: Path, phantom_home: Path, tmp_path_factory: pytest.TempPathFactory) -> SimulatorRun:
    """All six sites at a time, by way of ``fedshift run``, in a folder with blanks; once for all of pytest-xdist."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    known = folder / "t6.pickle"
    with FileLock(folder / "t6.lock"):
        if not known.exists():
            command = (sys.executable, "-m", "fedshift.cli", "run", str(short_job))
            known.write_bytes(pickle.dumps(run(*command, workspace=folder / "six at work", home=phantom_home)))
        content: SimulatorRun = pickle.loads(known.read_bytes())
    return content


def run_simulator(job: Path, workspace: Path, *, home: Path, threads: int, timeout: float = 600) -> SimulatorRun:
    """``nvflare simulator JOB -w WORKSPACE -t THREADS`` as a process of its own."""
    simulator = (sys.executable, "-m", "nvflare.private.fed.app.simulator.simulator")
    return run(*simulator, str(job), "-t", str(threads), workspace=workspace, home=home, timeout=timeout)


def run(*command: str, workspace: Path, home: Path, timeout: float = 600, path: str | None = None) -> SimulatorRun:
    """Any command that takes ``-w WORKSPACE``, as a process of its own; ``path`` comes first in its PYTHONPATH."""
    started = time.monotonic()
    env = environment(home)
    if path is not None:
        env["PYTHONPATH"] = os.pathsep.join([path, env["PYTHONPATH"]])
    result = subprocess.run(
        [*command, "-w", str(workspace)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=timeout,
        check=False,
    )
    return SimulatorRun(workspace, result.returncode, result.stdout, time.monotonic() - started)


def cut(job: Path, target: Path, **federation: float) -> JobSpec:
    """A committed job with fewer rounds and epochs and a narrower network, and nothing else changed."""
    spec = read_job_folder(job)
    raw = spec.dump()
    raw["task"]["network"]["options"] |= {"features": 4}
    raw["task"]["schedule"] |= {"rounds": 2, "local_epochs": 1}
    raw["federation"] |= federation
    short = JobSpec.parse(raw, where=str(job))
    write_job(short, target)
    return short


def make_faulty(job: JobSpec, target: Path, faults: dict[str, str]) -> Path:
    """The job with code of its own: an executor that misbehaves. ``faults``: ``SITE.round`` -> what happens."""
    write_job(job, target)
    code = Path(__file__).with_name("faulty_executor.py").read_text(encoding="utf-8")
    (target / "app" / "custom" / "faulty_executor.py").write_text(code, encoding="utf-8")
    path = target / "app" / "config" / "config_fed_client.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["executors"][0]["executor"] = {
        "path": "faulty_executor.FaultyExecutor",
        "args": {"faults": faults},
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    assert yaml.safe_load((target / SPEC).read_text(encoding="utf-8"))["name"] == job.name
    return target


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    """A kit of site HK with the job deployed in it, and its data."""
    make_site(tmp_path / "share" / "fedshift" / "phantom", "HK")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    job = small_job("fedfa+fedrdn")
    return Kit.make(job, "HK", None, tmp_path / "kit", sent=write_job(job, tmp_path / "job"))
