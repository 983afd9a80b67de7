"""A job of a provisioned federation, watched by its coordinator: FLARE's session and ``show_stats`` of the server."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.api_spec import JobNotFound, JobNotRunning
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from fedshift.flare.stats import progress_in
from fedshift.reporting.progress import FILE_NAME, Progress
from fedshift.reporting.watch.snapshot import Snapshot
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import one_line

CONNECT = 10.0
"""Seconds to log in."""
ANSWER = 15.0
"""Seconds for the server to answer. By default a session waits 5, and the server as long for the job's process, which
does not answer while it starts."""
WAIT = 15.0
"""Seconds after a failure before the server is asked again."""
RUNNING, FINISHED, COMPLETED, ABORTED = "RUNNING", "FINISHED:", "FINISHED:COMPLETED", "FINISHED:ABORTED"
"""FLARE's names for the states of a job, or how they begin."""


class WatchedJob:
    """A job as its coordinator's console may see it. It asks nothing that changes the job."""

    def __init__(
        self,
        kit: Path,
        *,
        user: str,
        job_id: str | None = None,
        connect: Callable[[], Session] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is connected yet.

        ``user`` is the name in the certificate of the console's ``kit``. Without ``job_id``, the job is the newest that
        runs, or else the newest. ``connect`` makes a session; ``clock`` returns seconds.
        """
        self._connect = connect or (lambda: new_secure_session(user, str(kit.absolute()), timeout=CONNECT))
        self._asked, self._clock, self._user, self._where = job_id, clock, user, f"the federation, as {user} sees it"
        self._session: Session | None = None
        self._job_id = job_id
        self._last: tuple[Progress, float] | None = None
        self._failed: tuple[float, str] | None = None

    def read(self) -> Snapshot:
        """Ask the server. If it cannot be asked, the last moment with the reason; it is asked again a little later."""
        if self._failed is None or self._clock() - self._failed[0] >= WAIT:
            try:
                self._failed = None
                return self._ask()
            except ConfigError as error:
                self._failed = self._clock(), str(error)
            except Exception as error:  # FLARE's have no common base
                self.close()
                self._failed = self._clock(), f"the server cannot be asked: {one_line(error) or type(error).__name__}"
        problem = self._failed[1]
        if self._last is None:
            return Snapshot(where=self._where, problem=problem)
        progress, read_at = self._last
        return Snapshot.from_progress(progress, where=self._where, news_age=self._clock() - read_at, problem=problem)

    def close(self) -> None:
        """Log out."""
        session, self._session = self._session, None
        if session is not None:
            try:
                session.close()
            except Exception as error:  # the server may have gone, and the session with it
                self._failed = self._clock(), f"logging out failed: {one_line(error)}"

    def _ask(self) -> Snapshot:
        if self._session is None:
            with redirect_stdout(sys.stderr):  # where it says that it connects
                self._session = self._connect()
            self._session.set_timeout(ANSWER)
        job = self._job(self._session)
        if job is None:
            return Snapshot(where=self._where, waits_for="no job has been submitted")
        status, name = str(job.get("status", "")), one_line(job.get("name") or job.get("job_name") or "")
        self._where = f"job {self._job_id} ({name}), as {self._user} sees it"
        if status == RUNNING:
            return self._running(self._session)
        if not status.startswith(FINISHED):
            return Snapshot(where=self._where, waits_for=f"the job is {one_line(status).lower()}")
        return self._ended(status)

    def _running(self, session: Session) -> Snapshot:
        """A job that runs, as far as the server knows: its process may not answer yet, or not any more."""
        waits_for = "the job's first round has not begun"
        try:
            progress = progress_in(session.show_stats(self._job_id, "server"))
        except JobNotFound:  # FLARE's word for a process that does not answer
            progress = None
        except JobNotRunning:
            progress, waits_for = None, "the job's process does not run: it ends, or waits for a site to come back"
        if progress is not None:
            self._last = progress, self._clock()
        if self._last is None:
            return Snapshot(where=self._where, waits_for=waits_for)
        progress, read_at = self._last
        return Snapshot.from_progress(progress, where=self._where, news_age=self._clock() - read_at)

    def _job(self, session: Session) -> dict[str, Any] | None:
        """What FLARE says of the job; which one that is may change while none was asked for and it does not run.

        Raises:
            ConfigError: the server does not know the job that was asked for.
        """
        if self._asked is None:
            jobs = sorted(session.list_jobs(), key=lambda job: str(job.get("submit_time", "")))
            if not jobs:
                return None
            newest = next((job for job in reversed(jobs) if job.get("status") == RUNNING), jobs[-1])
            if newest["job_id"] != self._job_id:
                self._job_id, self._last = str(newest["job_id"]), None
            return dict(newest)
        try:
            return dict(session.get_job_meta(self._asked))
        except JobNotFound:
            raise ConfigError(
                "no-run", f"the server knows no job {one_line(self._asked)}: see 'nvflare job list --startup-kit KIT'"
            ) from None

    def _ended(self, status: str) -> Snapshot:
        """A job that is over, which FLARE has no statistics of: the last progress that was seen of it."""
        take = "'nvflare job download' takes its results"
        failed = f"FLARE says {one_line(status)}; {take}, whose {FILE_NAME} has the reason"
        if self._last is None:
            how = {COMPLETED: f"the job is over, and {take}", ABORTED: f"the job was aborted; {take}"}
            return Snapshot(
                where=self._where,
                waits_for=how.get(status, f"the job failed: {failed}"),
                ended=True,
                failed=status != COMPLETED,
            )
        progress, read_at = self._last
        if progress.state == "running":
            states = {COMPLETED: ("finished", ""), ABORTED: ("stopped", f"the job was aborted; {take}")}
            state, reason = states.get(status, ("failed", failed))
            progress = progress.model_copy(update={"state": state, "reason": reason, "seconds_left": None})
            self._last = progress, read_at
        return Snapshot.from_progress(progress, where=self._where, news_age=self._clock() - read_at)
