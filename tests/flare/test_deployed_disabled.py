"""A site that is disabled while a job runs has no part in it from that moment, whether it does as it is told or not."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
from conftest import small_image_job

from fedshift.flare.round_answers import DISABLED
from fedshift.reporting.progress import Progress
from fedshift.schema.results import Rejection

from .conftest import ROOT, image_sites
from .deployed import OWNER, SERVER, Deployed, DeployedRun, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

OTHER_SOFTWARE = """
from nvflare.private.fed.client.client_engine import ClientEngine
ClientEngine.abort_app = lambda self, *args, **kwargs: "no"
"""
"""Of site C: it does not end its part of a job when it is told to."""
LATER = 5
"""Rounds in which the disabled site must not be."""


class Kept:
    """A job in which B, which does as it is told, and C, which does not, are disabled and enabled in turn."""

    def __init__(self, run: DeployedRun) -> None:
        self.run = run
        self.out: dict[str, tuple[int, int]] = {}
        """Site -> the round that was open when it was disabled, and one that was open before it was enabled."""
        self.told: dict[str, tuple[int, int]] = {}
        """Site -> the rounds that were open just before and just after the command."""
        self.back: dict[str, int] = {}
        """Site -> a round that it has trained in afterwards."""
        self.logs: dict[str, str] = {}
        """Site -> what the server logged between the two."""
        self.progress: dict[str, Progress] = {}

    def disable(self, site: str) -> None:
        federation, job_id = self.run.federation, self.run.job_id
        before, round_ = len(federation.log(SERVER)), self._now().round
        with federation.console(OWNER) as console:
            assert console.disable_client(site)["clients"][0]["state"] == "disabled"
            first = self._now().round
            federation.reaches(job_id, first + LATER)
            told = f"the server refuses this site: \"Client '{site}' is disabled\""
            wait_for(lambda: told in federation.log(site), 60, "the site to be told")
            if site == "C":
                wait_for(lambda: self._dropped(site, before), 120, "a message of a site that goes on to be dropped")
            self.logs[site] = federation.log(SERVER)[before:]
            wait_for(
                lambda: self._shows(site), 60, "the progress to show the site, which a new round does a little later"
            )
            self.out[site] = first, self._now().round
            console.enable_client(site)
        self.told[site] = round_, first
        self.back[site] = federation.trains(site, job_id)

    def _dropped(self, site: str, since: int) -> bool:
        """Whether the server has logged that it dropped a message to the job, after so many characters of its log."""
        dropped = rf"dropped a message from {site} \(\S+.* to server\.{self.run.job_id}.*\): site {site} is disabled by"
        return re.search(dropped, self.run.federation.log(SERVER)[since:]) is not None

    def _shows(self, site: str) -> bool:
        self.progress[site] = self._now()
        return site in self.progress[site].rejected

    def _now(self) -> Progress:
        progress = self.run.federation.progress(self.run.job_id)
        assert progress is not None
        return progress


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder = tmp_path_factory.mktemp("kept_out")
    other = folder / "other_software"
    other.mkdir()
    (other / "sitecustomize.py").write_text(OTHER_SOFTWARE, encoding="utf-8")
    path = os.pathsep.join([str(other), str(ROOT / "custom"), str(ROOT)])
    job = small_image_job(
        "fedavg", "schedule.rounds=5000", "schedule.local_epochs=12", "federation.min_sites=2", "federation.grace=60"
    )
    with Deployed(folder / "federation", image_sites(folder / "data")) as federation:
        federation.start(SERVER, "A", "B")
        federation.start("C", environment={"PYTHONPATH": path})
        federation.connected(federation.sites)
        made = Kept(DeployedRun.submit(federation, job))
        federation.reaches(made.run.job_id, 2)
        made.disable("C")
        made.disable("B")
        federation.session.abort_job(made.run.job_id)
        made.run.end("FINISHED:ABORTED")
        yield made


@pytest.mark.parametrize("site", ["B", "C"])
def test_a_disabled_site_is_in_no_round_and_the_others_go_on(kept: Kept, site: str) -> None:
    first, last = kept.out[site]
    assert last >= first + LATER
    for round_ in range(first + 1, last):
        assert kept.run.trained(round_) == {"A", "B", "C"} - {site}


@pytest.mark.parametrize("site", ["B", "C"])
def test_the_results_say_since_when_and_by_whom(kept: Kept, site: str) -> None:
    first, last = kept.out[site]
    for record in kept.run.results.rounds[first:last]:
        faults = [fault for fault in record.rejected if fault.site == site]
        if record.round < last:
            (fault,) = faults
            assert fault.key == DISABLED
            match = re.fullmatch(
                rf"by {OWNER} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(round (\d+)\)", fault.reason
            )
            assert match and kept.told[site][0] <= int(match[1]) <= kept.told[site][1] + 1  # as the next one began
    reason = kept.progress[site].rejected[site]
    assert reason.startswith(f"{DISABLED}: by {OWNER} since ")


@pytest.mark.parametrize("site", ["B", "C"])
def test_no_model_goes_out_to_it_and_nothing_of_it_comes_in(kept: Kept, site: str) -> None:
    _, _, after = kept.logs[site].partition(f"disabled by {OWNER}: {site}")
    whole = kept.run.federation.log(SERVER)
    sent, came = f"return task to client.  client_name: {site} ", f"submit_update process. client_name:{site} "
    assert sent in whole and came in whole
    assert f"site {site} is left out: {DISABLED}" in after and came not in after.partition(f"{site} is left out")[2]
    # NVFlare may be answering as the command comes, in the open round or the next: then the answer is dropped.
    dropped = re.findall(rf"dropped a message from server \(\S+:get_task to {site}\.", after)
    assert after.count(sent) <= min(1, len(dropped))


def test_what_a_site_says_that_goes_on_is_dropped_with_the_name_of_its_certificate(kept: Kept) -> None:
    assert re.search(rf"message from C \(.*\): .*{OWNER}", kept.logs["C"])


@pytest.mark.parametrize("site", ["B", "C"])
def test_an_enabled_site_takes_part_again(kept: Kept, site: str) -> None:
    assert site in kept.run.trained(kept.back[site])
    later = [f for r in kept.run.results.rounds[kept.back[site] - 1 :] for f in r.rejected if f.site == site]
    assert not [fault for fault in later if fault.key == DISABLED]


def test_nobody_else_is_left_out(kept: Kept) -> None:
    faults: list[Rejection] = [fault for record in kept.run.results.rounds for fault in record.rejected]
    assert {(fault.site, fault.key) for fault in faults} == {("B", DISABLED), ("C", DISABLED)}


def test_a_server_that_is_restarted_keeps_it_out(kept: Kept) -> None:
    federation = kept.run.federation
    with federation.console(OWNER) as console:
        console.disable_client("B")
    federation.close_session()
    federation.kill(SERVER)
    federation.start(SERVER)
    federation.connected(["A", "C"])
    job = small_image_job("fedavg", "schedule.rounds=2", "federation.min_sites=2", "federation.grace=1")
    run = DeployedRun.submit(federation, job).end()
    for record in run.results.rounds:
        assert [(fault.site, fault.key) for fault in record.rejected] == [("B", DISABLED)]
