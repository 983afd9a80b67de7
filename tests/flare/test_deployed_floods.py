"""A site with a real kit floods a deployed federation while a job runs: memory, threads and rounds stay as they were.

The attacks are in tests/flare/attacks/floods.py. Bounds are far from what is usual, and far from what was before.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from conftest import small_image_job
from nvflare.fuel.hci.client import file_transfer

from flare_armour.patches.stream_shares import WAITING

from .conftest import image_sites
from .deployed import LEAD, SERVER, Deployed, DeployedRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

HOSTILE = "C"
MB = 1_000_000


@dataclass
class Flooded:
    run: DeployedRun
    parent: int
    """Bytes by which the server's process between jobs has grown."""
    job: int
    """Bytes by which its job process has grown."""
    rounds: range
    """Those that were closed while it was flooded."""

    @property
    def log(self) -> str:
        return self.run.federation.log(SERVER)


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flooded]:
    folder = tmp_path_factory.mktemp("flooded")
    job = small_image_job("fedavg", "schedule.rounds=5000", "federation.min_sites=2", "federation.grace=1")
    with Deployed(folder, image_sites(folder / "data")) as federation:
        federation.start(SERVER, "A", "B")
        federation.connected(["A", "B"])
        run = DeployedRun.submit(federation, job)
        federation.reaches(run.job_id, 3)
        parent, process = psutil.Process(federation.processes[SERVER].pid), run.job_process(SERVER)
        before = (parent.memory_info().rss, process.memory_info().rss, closed(run))
        federation.command("tests.flare.attacks.hostile", str(federation.kits / HOSTILE), run.job_id, "B", "floods")
        grown = (parent.memory_info().rss - before[0], process.memory_info().rss - before[1])
        rounds = range(before[2] + 1, closed(run) + 1)
        federation.session.abort_job(run.job_id)
        yield Flooded(run.end("FINISHED:ABORTED"), *grown, rounds)


def closed(run: DeployedRun) -> int:
    """Rounds that have ended."""
    results = run.federation.results(run.job_id)
    return len(results.rounds) if results else 0


def test_rounds_go_on_in_their_time_with_all_honest_sites(flooded: Flooded) -> None:
    """A round took 6 s alone and 124 s in a flood before requests had shares."""
    assert len(flooded.rounds) >= 2
    for number in flooded.rounds:
        assert flooded.run.trained(number) == {"A", "B"}
        assert flooded.run.results.rounds[number - 1].seconds < 30


def test_no_memory_is_taken_for_good(flooded: Flooded) -> None:
    """Two handshakes took 420 MB of the server, and the headers of 60 streams 250 MB of its job process."""
    assert flooded.parent < 150 * MB and flooded.job < 150 * MB


def test_the_log_names_the_certificate_for_each_limit_and_is_not_filled(flooded: Flooded) -> None:
    for said in (
        f"'{HOSTILE}' has sent a handshake of",
        f"'{HOSTILE}' has sent a message for 'get_task' that is refused: it has headers of",
        f"'{HOSTILE}' has more than {WAITING} messages that wait",
    ):
        assert 1 <= flooded.log.count(said) <= 5, said
    assert len(flooded.log) < 3 * MB
    for name in ("A", "B"):
        assert f"'{name}' has" not in flooded.log


def test_a_job_that_unpacks_to_much_is_refused_when_it_is_submitted(
    flooded: Flooded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = flooded.run.federation
    server = psutil.Process(federation.processes[SERVER].pid)
    job = tmp_path / "job" / "app" / "custom"
    job.mkdir(parents=True)

    def zip_much(folder: str, name: str, output: str) -> None:
        with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
            for number in range(10):
                archive.writestr(f"job/app/custom/{number}", bytes(50 * MB))

    monkeypatch.setattr(file_transfer, "zip_directory_to_file", zip_much)
    before = server.memory_info().rss
    with pytest.raises(Exception, match="500 MB when it is unpacked, allowed are 200"):
        federation.submit(tmp_path / "job")
    assert server.memory_info().rss - before < 50 * MB
    assert f"'{LEAD}' has submitted a job that is refused" in federation.log(SERVER)
