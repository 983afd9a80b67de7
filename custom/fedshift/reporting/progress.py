"""``progress.json``: how far a run is, for other processes and people. The file is rewritten at every step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from fedshift.schema.files import write_text

if TYPE_CHECKING:
    from fedshift.federation.server.coordinator import Coordinator

log = logging.getLogger("fedshift")

FILE_NAME = "progress.json"
STOPPED = "stopped by the user"
RESERVE, RESERVED = ".reserved", 1 << 16
"""A file of so many bytes that gives its room to the last ``progress.json`` of a run whose disk is full."""
EVALUATION = 0.5
"""Estimated time of the last evaluation, as a fraction of a training round."""


Step = Literal["statistics", "training", "evaluation"]


class Progress(BaseModel):
    """A moment of a run.

    ``round`` goes from 0 (statistics) to ``rounds``, where it stays during the last evaluation. ``rejected`` names the
    sites whose answer was left out of the open round, with the reason. ``state`` is ``stopped`` if a person ended the
    run.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    state: Literal["running", "finished", "failed", "stopped"] = "running"
    step: Step = "statistics"
    round: int
    rounds: int
    sites: list[str]
    sites_in: list[str]
    rejected: dict[str, str] = {}
    metric: str
    score_round: int | None = None
    score: float | None = None
    best_round: int
    best_score: float | None = None
    seconds_per_round: float | None = None
    seconds_left: float | None = None
    phantom: bool = False
    reason: str = ""

    @property
    def share(self) -> float:
        """The part of the run that is over, from 0 to 1: the statistics and the last evaluation count as a round."""
        if self.state == "finished":
            return 1.0
        steps_before = {"statistics": 0, "training": self.round, "evaluation": self.rounds + 1}[self.step]
        inside = len(self.sites_in) / max(len(self.sites), 1)
        return min((steps_before + inside) / (self.rounds + 2), 1.0)


class ProgressFile:
    """Keeps the ``progress.json`` of a run up to date."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``folder`` is the run's folder; ``clock`` returns seconds."""
        self._path, self._clock = folder / FILE_NAME, clock
        self._round, self._since = -1, clock()
        self._last: tuple[Progress, float] | None = None
        self._reserve, self._warned = folder / RESERVE, False

    def latest(self) -> Progress | None:
        """The last moment written, its time left corrected for the time since; None if the run has not begun."""
        if self._last is None:
            return None
        progress, noted = self._last
        if progress.seconds_left is None:
            return progress
        return progress.model_copy(update={"seconds_left": max(progress.seconds_left - (self._clock() - noted), 0.0)})

    def update(self, coordinator: Coordinator) -> None:
        """Write where the run is."""
        if coordinator.round != self._round:
            self._round, self._since = coordinator.round, self._clock()
        results, rounds = coordinator.results, coordinator.rounds
        # The open round collects scores of the round before it, so the newest complete ones are a round older.
        newest = rounds if results.final is not None else min(coordinator.round - 2, rounds)
        whole = next((r for r in range(newest, 0, -1) if coordinator.mean_score(r) is not None), None)
        took = [record.seconds for record in results.rounds[-5:]]
        per_round = sum(took) / len(took) if took else None
        left = None
        if per_round is not None:
            ahead = max(rounds + 1 - coordinator.round, 0) + EVALUATION
            left = max(per_round * ahead - (self._clock() - self._since), 0.0)
        self._write(
            Progress(
                state="running" if results.final is None else "finished",
                step="statistics"
                if not coordinator.round
                else "training"
                if coordinator.round <= rounds
                else "evaluation",
                round=min(coordinator.round, rounds),
                rounds=rounds,
                sites=list(coordinator.invited),
                sites_in=list(coordinator.answered),
                rejected=coordinator.rejected,
                metric=coordinator.metric,
                score_round=whole,
                score=coordinator.mean_score(whole) if whole else None,
                best_round=coordinator.best_round,
                best_score=coordinator.mean_score(coordinator.best_round) if coordinator.best_round else None,
                seconds_per_round=per_round,
                seconds_left=0.0 if results.final else left,
                phantom=any(site.kind == "phantom" for site in results.data.values()),
            )
        )

    def fail(self, reason: str) -> None:
        """Write why the run failed."""
        self._end("failed", reason)

    def stop(self) -> None:
        """Write that a person ended the run."""
        self._end("stopped", STOPPED)

    def _end(self, state: Literal["failed", "stopped"], reason: str) -> None:
        never = Progress(round=0, rounds=0, sites=[], sites_in=[], metric="", best_round=0)
        last = never if self._last is None else self._last[0]
        self._write(last.model_copy(update={"state": state, "reason": reason, "seconds_left": None}))

    def _write(self, progress: Progress) -> None:
        """Write a moment. A full disk does not end the run here: for its last moment, there is room in reserve."""
        self._last = progress, self._clock()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if progress.state != "running":
                self._reserve.unlink(missing_ok=True)
            elif not self._reserve.exists():
                self._reserve.write_bytes(bytes(RESERVED))
            write_text(self._path, progress.model_dump_json(indent=1))
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning("%s cannot be written, so it shows an earlier moment of the run: %s", self._path, error)


def mark_stopped(folder: Path) -> None:
    """Write that a person ended the run in ``folder``, whose process is no longer there to do so."""
    progress = read_progress(folder)
    if progress is not None and progress.state != "finished":
        stopped = progress.model_copy(update={"state": "stopped", "reason": STOPPED, "seconds_left": None})
        write_text(folder / FILE_NAME, stopped.model_dump_json(indent=1))


def read_progress(folder: Path) -> Progress | None:
    """Read the progress of the run in ``folder``; None if it has not begun."""
    path = folder / FILE_NAME
    return Progress.model_validate_json(path.read_text(encoding="utf-8")) if path.is_file() else None


def duration(seconds: float) -> str:
    """``45 s``, ``3 min 20 s``, ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
