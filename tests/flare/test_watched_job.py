"""A job watched through FLARE's session, with a stand-in for the session; a real one is in test_console.py."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.flare_api.api_spec import JobNotFound, JobNotRunning
from nvflare.private.fed.server.server_engine import ServerEngine
from nvflare.widgets.info_collector import GroupInfoCollector, InfoCollector
from reporting.watch.standin import progress_at

from fedshift.flare.stats import add_progress, progress_in
from fedshift.flare.watched_job import WAIT, WatchedJob
from fedshift.reporting.progress import MOST_POINTS, Progress
from fedshift.schema.errors import ConfigError


class Standin:
    """A server with jobs, which can be out of reach."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []
        self.progress: Progress | None = None
        self.fault: Exception | None = None
        self.no_stats: Exception | None = None
        self.asked = self.connected = self.closed = 0
        self.patience = 0.0

    def __call__(self) -> Standin:
        self.connected += 1
        if self.fault is not None:
            raise self.fault
        return self

    def set_timeout(self, value: float) -> None:
        self.patience = value

    def list_jobs(self) -> list[dict[str, Any]]:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        return self.jobs

    def get_job_meta(self, job_id: str) -> dict[str, Any]:
        for job in self.list_jobs():
            if job["job_id"] == job_id:
                return job
        raise JobNotFound(f"no such job: {job_id}")

    def show_stats(self, job_id: str, target_type: str) -> dict[str, Any]:
        assert target_type == "server"
        if self.no_stats is not None:
            raise self.no_stats
        return {"server": collected(self.progress)}

    def close(self) -> None:
        self.closed += 1


def collected(progress: Progress | None) -> dict[str, Any]:
    """What the workflow adds to FLARE's statistics."""
    collector, context = GroupInfoCollector(), FLContext()
    context.set_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR, collector, private=True, sticky=False)
    add_progress(InfoCollector.EVENT_TYPE_GET_STATS, context, lambda: progress)
    info: dict[str, Any] = json.loads(json.dumps(collector.info))
    return info


def job(number: int, status: str) -> dict[str, Any]:
    return {"job_id": f"id-{number}", "job_name": f"job{number}", "status": status, "submit_time": f"2026-01-0{number}"}


def test_the_progress_in_the_statistics_is_short_however_long_the_run() -> None:
    many = [f"site_{number:03d}" for number in range(100)]
    progress = progress_at(4000, rounds=5000, sites=many)
    assert len(progress.history) == MOST_POINTS
    (text,) = collected(progress)["fedshift watch"].values()
    assert len(text) < 12_000 and "\n" not in text
    again = progress_in({"server": collected(progress)})
    assert again is not None and again.history[-1] == progress.history[-1] and again.history[0] == progress.history[0]
    assert again.site_scores == progress.site_scores and again.refused == progress.refused[-5:]
    assert progress_in({"server": collected(None)}) is None
    assert progress_in({"server": {}}) is None, "a job's process that is starting"
    for told in ({"fedshift": {"round": "1 of 2"}}, {"fedshift watch": {"progress.json": '{"schema": 2}'}}):
        with pytest.raises(ConfigError, match="tells no progress"):
            progress_in({"server": told})


def test_a_session_waits_longer_than_the_server_waits_for_a_jobs_process(tmp_path: Any) -> None:
    """Otherwise a process that is starting looks like a server that does not answer."""
    server = Standin()
    WatchedJob(tmp_path, user="lead@hub.org", connect=server).read()
    asks = inspect.signature(ServerEngine.send_command_to_child_runner_process)
    assert server.patience >= 2 * asks.parameters["timeout"].default


def test_a_job_from_its_submission_to_its_end(tmp_path: Any) -> None:
    now, server = [0.0], Standin()
    source = WatchedJob(tmp_path, user="lead@hub.org", connect=server, clock=lambda: now[0])
    assert "no job" in source.read().waits_for
    server.jobs = [job(1, "FINISHED:COMPLETED"), job(2, "SUBMITTED")]
    assert source.read().waits_for.endswith("submitted")
    server.jobs[1]["status"] = "RUNNING"
    assert "first round" in source.read().waits_for
    server.progress = progress_at(5)
    running = source.read()
    assert running.progress is not None and running.progress.round == 5 and not running.problem
    assert "id-2 (job2)" in running.where and "lead@hub.org" in running.where
    assert server.connected == 1

    server.fault = ConnectionError("no route\x1b[2J to host")
    now[0] += 10
    lost = source.read()
    assert "no route" in lost.problem and "\x1b" not in lost.problem
    assert lost.progress is not None and lost.news_age == 10 and server.closed == 1
    asked = server.asked
    assert source.read().problem == lost.problem and server.asked == asked, "not asked again at once"
    server.fault = None
    now[0] += WAIT
    assert not source.read().problem and server.connected == 2

    server.jobs[1]["status"] = "FINISHED:EXECUTION_EXCEPTION"
    end = source.read()
    assert end.ended and end.progress is not None
    assert end.progress.state == "failed" and "FINISHED:EXECUTION_EXCEPTION" in end.progress.reason
    server.jobs.append(job(3, "RUNNING"))
    server.progress = progress_at(2)
    following = source.read()
    assert following.progress is not None and following.progress.round == 2 and "id-3" in following.where


def test_a_job_that_was_asked_for_stays(tmp_path: Any) -> None:
    server = Standin()
    server.jobs = [job(1, "FINISHED:ABORTED"), job(2, "RUNNING")]
    source = WatchedJob(tmp_path, user="lead@hub.org", job_id="id-1", connect=server)
    moment = source.read()
    assert moment.ended and moment.failed and moment.progress is None and "was aborted" in moment.waits_for


def test_a_job_that_had_failed_before_it_was_watched_says_where_its_reason_is(tmp_path: Any) -> None:
    server = Standin()
    server.jobs = [job(1, "FINISHED:EXECUTION_EXCEPTION")]
    moment = WatchedJob(tmp_path, user="lead@hub.org", connect=server).read()
    assert moment.ended and moment.failed
    assert "FINISHED:EXECUTION_EXCEPTION" in moment.waits_for
    assert "progress.json" in moment.waits_for


def test_a_job_whose_process_does_not_answer_yet_is_no_fault_of_the_server(tmp_path: Any) -> None:
    """FLARE then says that there is no such job, for half a minute after it was submitted."""
    now, server = [0.0], Standin()
    server.jobs, server.no_stats = [job(1, "RUNNING")], JobNotFound("no such job: id-1")
    source = WatchedJob(tmp_path, user="lead@hub.org", connect=server, clock=lambda: now[0])
    starting = source.read()
    assert "first round" in starting.waits_for and not starting.problem
    server.no_stats = JobNotRunning("job id-1 is not running")
    assert "does not run" in source.read().waits_for
    server.no_stats, server.progress = None, progress_at(5)
    assert source.read().progress is not None
    for server.no_stats in (JobNotFound("no such job: id-1"), JobNotRunning("job id-1 is not running")):
        now[0] += 7
        later = source.read()
        assert later.progress is not None and later.progress.round == 5 and not later.problem
        assert later.news_age == now[0], "how old the news is, is told"
    assert server.connected == 1


def test_a_job_that_the_server_does_not_know_is_named(tmp_path: Any) -> None:
    server = Standin()
    server.jobs = [job(1, "RUNNING")]
    source = WatchedJob(tmp_path, user="lead@hub.org", job_id="nope\x1b[2J", connect=server)
    problem = source.read().problem
    assert "no job nope" in problem
    assert "cannot be asked" not in problem and "\x1b" not in problem
