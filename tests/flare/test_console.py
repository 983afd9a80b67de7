"""A coordinator's day at FLARE's admin console and with ``nvflare job``, typed as it would be, on provisioned sites."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import small_image_job

from fedshift.flare.export import write_job
from fedshift.flare.watched_job import WatchedJob
from fedshift.reporting.progress import read_progress
from fedshift.reporting.watch.snapshot import Snapshot
from fedshift.schema.results import read_results

from .console import Console
from .deployed import LEAD, SERVER, Deployed, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

JOB_ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
ROUNDS = 5000
"""More than there is time for: the job is there to be watched and aborted."""


@dataclass(frozen=True)
class Day:
    """What the console printed: word that stands for a command -> its answer."""

    said: dict[str, str]
    watched: tuple[Snapshot, Snapshot]
    """What `fedshift watch` shows of it while it runs, and when it has been aborted."""
    status: str
    """What `fedshift status` prints in between."""
    job_id: str
    folder: Path
    """Of the job at the server, as the console downloads it."""


@pytest.fixture(scope="module")
def console(federation: Deployed) -> Iterator[Console]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with Console(federation.kits / LEAD, {**federation.environment(), "PATH": path}) as console:
        yield console


@pytest.fixture(scope="module")
def day(console: Console, federation: Deployed, tmp_path_factory: pytest.TempPathFactory) -> Day:
    """A job that is submitted, watched and aborted."""
    job = small_image_job("fedavg", f"schedule.rounds={ROUNDS}", "schedule.local_epochs=3")
    folder = write_job(job, tmp_path_factory.mktemp("jobs") / "watched", production=True)
    said = {"submit_job": console.do(f"submit_job {folder}")}
    match = re.search(JOB_ID, said["submit_job"])
    assert match, said
    job_id = match[0]
    federation.reaches(job_id, 3)
    for name, line in {
        "list_jobs": "list_jobs",
        "check_status server": "check_status server",
        "check_status client": "check_status client",
        "show_stats server": f"show_stats {job_id} server",
        "show_stats client": f"show_stats {job_id} client B",
        "show_errors": f"show_errors {job_id} server",
        "cat": f"cat server {job_id}/progress.json",
        "a site's log": f"tail A {job_id}/log.txt",
        "cells": "cells",
    }.items():
        said[name] = console.do(line)
    source = WatchedJob(federation.kits / LEAD, user=LEAD)
    running = source.read()
    status = federation.command("fedshift.cli", "status", str(federation.kits / LEAD))
    # Aborted within the round that the site had answered, the job would end without a record of that round.
    federation.reaches(job_id, int(re.findall(r"round (\d+) in", said["show_stats client"])[0]) + 1)
    said["abort_job"] = console.do(f"abort_job {job_id}", "y")
    said["status"] = federation.finished(job_id)
    aborted = source.read()
    source.close()
    said["list_jobs afterwards"] = console.do("list_jobs")
    said["show_stats afterwards"] = console.do(f"show_stats {job_id} server")
    said["download_job"] = console.do(f"download_job {job_id}")
    return Day(said, (running, aborted), status, job_id, downloaded(federation, job_id))


def downloaded(federation: Deployed, job_id: str) -> Path:
    """Where the console puts a job's folder at the server."""
    return federation.kits / LEAD / "transfer" / job_id / "workspace"


def stats(said: str) -> Any:
    """The object that ``show_stats`` prints before the line that says how long it took."""
    return json.loads(said.rpartition("Done [")[0])


def test_a_job_is_submitted_listed_and_at_work_everywhere(day: Day) -> None:
    assert f"Submitted job: {day.job_id}" in day.said["submit_job"]
    assert re.search(rf"\| {day.job_id} \| fedavg_shapes +\| RUNNING +\|", day.said["list_jobs"])
    assert "Engine status: started" in day.said["check_status server"]
    assert re.search(rf"\| {day.job_id} \| app ", day.said["check_status server"])
    for site in "ABC":
        assert re.search(rf"\| {site} +\|", day.said["check_status server"])
        assert re.search(rf"\| {site} +\| app +\| {day.job_id} \| \w+", day.said["check_status client"])


def test_show_stats_tells_a_person_where_the_job_is(day: Day) -> None:
    told = stats(day.said["show_stats server"])["server"]["fedshift"]
    match = re.fullmatch(rf"(\d+) of {ROUNDS}", told["round"])
    assert match and int(match[1]) >= 3
    sites = [told[key].split(", ") for key in ("sites in", "sites awaited") if told[key] != "none"]
    assert sorted(site for some in sites for site in some) == ["A", "B", "C"]
    assert re.fullmatch(r"about \d+ (s|min \d\d s|h \d\d min)", told["time left"])
    assert "phantom" in told["data"]
    rounds = read_results(day.folder).rounds
    for key in ("mean validation accuracy", "best so far"):
        scored = re.fullmatch(r"(\d\.\d{4}) \(round (\d+)\)", told[key])
        assert scored, told
        scores = [site.val["accuracy"] for site in rounds[int(scored[2]) - 1].sites.values()]
        assert len(scores) == 3 and float(scored[1]) == pytest.approx(sum(scores) / 3, abs=1e-4)


def test_show_stats_of_a_site_repeats_what_it_has_sent_and_no_more(day: Day) -> None:
    told = stats(day.said["show_stats client"])
    assert list(told) == ["B"]
    assert sorted(told["B"]["fedshift"]) == ["at work on", "last answer"]
    match = re.fullmatch(r"round (\d+) in .* s, loss (\d\.\d{4})", told["B"]["fedshift"]["last answer"])
    assert match, told
    loss = read_results(day.folder).rounds[int(match[1]) - 1].sites["B"].train_loss
    assert loss == pytest.approx(float(match[2]), abs=1e-4)


def test_a_coordinator_watches_the_job_on_a_screen(day: Day) -> None:
    running, aborted = day.watched
    assert not running.problem and not running.ended and day.job_id in running.where
    progress = running.progress
    assert progress is not None and progress.job == "fedavg_shapes" and progress.phantom
    assert progress.state == "running" and progress.round >= 3 and progress.rounds == ROUNDS
    assert sorted([*progress.sites_in, *progress.awaited]) == ["A", "B", "C"]
    assert progress.score_round is not None
    record = read_results(day.folder).rounds[progress.score_round - 1]
    assert progress.site_scores == {site: one.val["accuracy"] for site, one in record.sites.items()}
    assert progress.history[-1] == (progress.score_round, pytest.approx(progress.score, abs=1e-6))
    assert any(re.match(rf"round \d+ of {ROUNDS} done in", line.text) for line in progress.log)
    # The kit's own words, of connecting, come before it.
    assert re.search(rf"^fedavg_shapes: running, PHANTOM round \d+/{ROUNDS}, ", day.status, flags=re.MULTILINE)
    assert aborted.ended and aborted.progress is not None
    assert (aborted.progress.state, aborted.progress.site_scores != {}) == ("stopped", True)
    assert "aborted" in aborted.progress.reason


def test_no_command_reads_a_partys_files_or_looks_into_its_connections(day: Day) -> None:
    for line in ("cat", "a site's log", "cells"):
        assert "Undefined command" in day.said[line], line
    assert "No Error" in day.said["show_errors"]


def test_an_aborted_job_ends_and_says_so(day: Day) -> None:
    assert day.said["status"] == "FINISHED:ABORTED"
    assert re.search(rf"\| {day.job_id} \| fedavg_shapes +\| FINISHED:ABORTED +\|", day.said["list_jobs afterwards"])
    assert f"{day.job_id} is not running" in day.said["show_stats afterwards"]
    progress = read_progress(day.folder)
    assert progress is not None and "from outside" in progress.reason
    assert "content downloaded to " in day.said["download_job"]


def test_a_job_by_command_is_downloaded_by_command_and_in_the_console(
    console: Console, federation: Deployed, tmp_path: Path
) -> None:
    job = small_image_job("fedavg", "schedule.rounds=2")
    folder, kit = write_job(job, tmp_path / "short", production=True), str(federation.kits / LEAD)

    def nvflare(*command: str) -> dict[str, Any]:
        printed = federation.command("nvflare.cli", "--format", "json", "job", *command, "--startup-kit", kit)
        content: dict[str, Any] = json.loads(printed[printed.index("{") :])
        assert content["status"] == "ok", printed
        data: dict[str, Any] = content["data"]
        return data

    job_id = nvflare("submit", "-j", str(folder))["job_id"]
    assert nvflare("wait", job_id, "--timeout", "120")["status"] == "FINISHED:COMPLETED"
    taken = nvflare("download", job_id, "-o", str(tmp_path / "taken"))
    by_command, by_console = Path(taken["download_path"]), downloaded(federation, job_id)
    assert by_command == tmp_path / "taken" / job_id

    answer = console.do(f"download_job {job_id}")
    assert "content downloaded to " in answer and job_id in answer
    results = read_results(by_console)
    assert results == read_results(by_command / "workspace")
    assert results.final is not None and set(results.final.best.sites) == {"A", "B", "C"}
    for name in ("best_global_model.pt", "last_global_model.pt"):
        assert (by_console / name).is_file()


def test_a_job_submitted_twice_runs_once_at_a_time_and_is_watched_from_its_first_second(
    day: Day, federation: Deployed, tmp_path: Path
) -> None:
    folder = write_job(small_image_job("fedavg", "schedule.rounds=2"), tmp_path / "twice", production=True)
    first, second = (federation.submit(folder) for _ in range(2))
    source = WatchedJob(federation.kits / LEAD, user=LEAD, job_id=first)
    problems, states = set[str](), set[tuple[str, str]]()

    def both_ended() -> bool:
        problems.add(source.read().problem)
        states.add((federation.status(first), federation.status(second)))
        return all(federation.status(job_id).startswith("FINISHED") for job_id in (first, second))

    wait_for(both_ended, 300, "both jobs' ends")
    source.close()
    assert problems == {""}, "a job that begins is no problem of the server's"
    assert ("RUNNING", "SUBMITTED") in states and ("RUNNING", "RUNNING") not in states
    assert federation.status(first) == federation.status(second) == "FINISHED:COMPLETED"


@pytest.mark.parametrize("asked", ["nope", "00000000-0000-4000-8000-000000000000"])
def test_a_job_that_there_is_not_is_named(asked: str, day: Day, federation: Deployed) -> None:
    source = WatchedJob(federation.kits / LEAD, user=LEAD, job_id=asked)
    assert asked in source.read().problem
    source.close()


def test_nothing_that_a_coordinator_does_is_dropped(day: Day, federation: Deployed) -> None:
    for name in (SERVER, *federation.sites):
        assert "is in place" in federation.log(name)
        assert "dropped a message" not in federation.log(name)


def test_the_console_lets_a_person_go(federation: Deployed, console: Console) -> None:
    assert "list commands" in console.welcome
    assert console.bye() == 0
