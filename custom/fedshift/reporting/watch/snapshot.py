"""A run at one moment, as someone who watches it sees it, and where it is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from fedshift.reporting.progress import FILE_NAME, Progress, read_progress
from fedshift.schema.errors import ConfigError

KILLED = "its process has gone without ending it: 'fedshift run JOB --resume' goes on after the last closed round"
QUIET = 5.0
"""Seconds without news after which it is looked whether a run's process is still there."""


class Snapshot(BaseModel):
    """A run at one moment. All of it is bounded: by the number of sites, and by the limits of ``progress.json``.

    ``progress`` is None before the run has begun. ``news_age``: seconds since the last news of it. ``waits_for``: what
    there is to wait for if there is no progress. ``problem``: why it could not be read just now. ``ended``: whether the
    run is over; ``failed``: without its result.
    """

    model_config = ConfigDict(extra="forbid")

    where: str
    progress: Progress | None = None
    share: float = 0.0
    news_age: float | None = None
    waits_for: str = ""
    problem: str = ""
    ended: bool = False
    failed: bool = False

    @classmethod
    def from_progress(cls, progress: Progress, *, where: str, news_age: float, problem: str = "") -> Snapshot:
        """The snapshot of this progress; the time left is less by the age of the news."""
        ended, seconds = progress.state != "running", progress.seconds_left
        if seconds is not None and not ended:
            progress = progress.model_copy(update={"seconds_left": max(seconds - news_age, 0.0)})
        return cls(
            where=where,
            progress=progress,
            share=progress.share,
            news_age=news_age,
            problem=problem,
            ended=ended,
            failed=ended and progress.state != "finished",
        )


class Source(Protocol):
    """Where a run's snapshots come from. It is read by one thread at a time, and never raises when it is read."""

    def read(self) -> Snapshot:
        """The run as it is now."""
        ...

    def close(self) -> None:
        """It will not be read again."""
        ...


class RunFile:
    """A run on this machine, by its ``progress.json``."""

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        where: str,
        clock: Callable[[], float] = time.time,
        was_killed: Callable[[], bool] = lambda: False,
    ) -> None:
        """Watch the file of one run.

        Args:
            folders: where the file may come to be; of two files the newer counts.
            where: of the run, for whoever watches.
            clock: as `time.time`.
            was_killed: whether the run's process has gone without ending it.
        """
        self._folders, self._where, self._clock, self._was_killed = tuple(folders), where, clock, was_killed
        self._last_read: tuple[tuple[Path, int, int], Progress] | None = None

    def read(self) -> Snapshot:
        """The run as its file has it; the file is parsed only when it is another than before."""
        files = []
        for folder in self._folders:
            try:
                status = (folder / FILE_NAME).stat()
            except OSError:  # not there yet, or just being replaced
                continue
            files.append((status.st_mtime, (folder, status.st_mtime_ns, status.st_size)))
        if not files:
            return Snapshot(where=self._where, waits_for="the run has not begun")
        changed, mark = max(files)
        if self._last_read is None or self._last_read[0] != mark:
            try:
                progress = read_progress(mark[0])
            except (ConfigError, OSError) as error:
                return Snapshot(where=self._where, problem=str(error))
            if progress is None:
                return Snapshot(where=self._where, waits_for="the run has not begun")
            self._last_read = mark, progress
        progress, news_age = self._last_read[1], max(self._clock() - changed, 0.0)
        if progress.state == "running" and news_age > QUIET and self._was_killed():
            progress = progress.model_copy(update={"state": "failed", "reason": KILLED, "seconds_left": None})
        return Snapshot.from_progress(progress, where=self._where, news_age=news_age)

    def close(self) -> None:
        """Nothing is open."""
