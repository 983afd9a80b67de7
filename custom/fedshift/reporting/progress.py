"""``progress.json``: the progress of a run, for users and other processes. It is rewritten at every step."""

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
EVALUATION_FRACTION = 0.5
"""Estimated time of the last evaluation, as a fraction of a training round."""

Step = Literal["statistics", "training", "evaluation"]


class Progress(BaseModel):
    """The progress of a run at one moment.

    ``round`` counts from 0 (statistics) to ``rounds`` and stays there during the last evaluation. ``rejected`` maps
    sites whose answer was rejected in the current round to the reason. ``state`` is ``stopped`` if a user ended the
    run. ``seconds_per_round`` is the mean over the latest rounds.
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
        """The completed fraction of the run, 0 to 1; the statistics and the last evaluation count as a round each."""
        if self.state == "finished":
            return 1.0
        steps_before = {"statistics": 0, "training": self.round, "evaluation": self.rounds + 1}[self.step]
        in_step = len(self.sites_in) / max(len(self.sites), 1)
        return min((steps_before + in_step) / (self.rounds + 2), 1.0)


class ProgressFile:
    """Keeps the ``progress.json`` of a run up to date."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``folder`` is the run's; ``clock`` returns seconds."""
        self._path, self._clock = folder / FILE_NAME, clock
        self._round, self._round_start = -1, clock()
        self._last: tuple[Progress, float] | None = None
        self._reserve, self._warned = folder / RESERVE, False

    def latest(self) -> Progress | None:
        """The last written progress with ``seconds_left`` reduced by the time since; None before the first update."""
        if self._last is None:
            return None
        progress, written_at = self._last
        if progress.seconds_left is None:
            return progress
        return progress.model_copy(
            update={"seconds_left": max(progress.seconds_left - (self._clock() - written_at), 0.0)}
        )

    def update(self, coordinator: Coordinator) -> None:
        """Write the current progress."""
        if coordinator.round != self._round:
            self._round, self._round_start = coordinator.round, self._clock()
        results, rounds = coordinator.results, coordinator.rounds
        # The current round collects the scores of the round before it; complete scores are one round older still.
        newest = rounds if results.final is not None else min(coordinator.round - 2, rounds)
        score_round = next((r for r in range(newest, 0, -1) if coordinator.mean_score(r) is not None), None)
        durations = [record.seconds for record in results.rounds[-5:]]
        per_round = sum(durations) / len(durations) if durations else None
        seconds_left = None
        if per_round is not None:
            rounds_left = max(rounds + 1 - coordinator.round, 0) + EVALUATION_FRACTION
            seconds_left = max(per_round * rounds_left - (self._clock() - self._round_start), 0.0)
        step: Step = "training"
        if not coordinator.round:
            step = "statistics"
        elif coordinator.round > rounds:
            step = "evaluation"
        self._write(
            Progress(
                state="running" if results.final is None else "finished",
                step=step,
                round=min(coordinator.round, rounds),
                rounds=rounds,
                sites=list(coordinator.invited),
                sites_in=list(coordinator.answered),
                rejected=coordinator.rejected,
                metric=coordinator.metric,
                score_round=score_round,
                score=coordinator.mean_score(score_round) if score_round else None,
                best_round=coordinator.best_round,
                best_score=coordinator.mean_score(coordinator.best_round) if coordinator.best_round else None,
                seconds_per_round=per_round,
                seconds_left=0.0 if results.final else seconds_left,
                phantom=any(site.kind == "phantom" for site in results.data.values()),
            )
        )

    def fail(self, reason: str) -> None:
        """Write why the run failed."""
        self._end("failed", reason)

    def stop(self) -> None:
        """Write that a user ended the run."""
        self._end("stopped", STOPPED)

    def _end(self, state: Literal["failed", "stopped"], reason: str) -> None:
        not_started = Progress(round=0, rounds=0, sites=[], sites_in=[], metric="", best_round=0)
        last = not_started if self._last is None else self._last[0]
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
    """Write that a user ended the run in ``folder``, after its own process has gone."""
    progress = read_progress(folder)
    if progress is not None and progress.state != "finished":
        stopped = progress.model_copy(update={"state": "stopped", "reason": STOPPED, "seconds_left": None})
        write_text(folder / FILE_NAME, stopped.model_dump_json(indent=1))


def mark_failed(folder: Path, reason: str) -> None:
    """Write that the run in ``folder`` failed, if its own process has gone without a word of its end."""
    progress = read_progress(folder)
    if progress is not None and progress.state == "running":
        failed = progress.model_copy(update={"state": "failed", "reason": reason, "seconds_left": None})
        write_text(folder / FILE_NAME, failed.model_dump_json(indent=1))


def read_progress(folder: Path) -> Progress | None:
    """Read the progress of the run in ``folder``; None if there is none yet."""
    path = folder / FILE_NAME
    return Progress.model_validate_json(path.read_text(encoding="utf-8")) if path.is_file() else None


def duration(seconds: float) -> str:
    """Format a time: ``45 s``, ``3 min 20 s``, ``2 h 05 min``."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"
