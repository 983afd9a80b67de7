"""``progress.json``: how far a run is, for whoever watches it. Rewritten whole at every step."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from fedshift.schema.files import write_text

if TYPE_CHECKING:
    from fedshift.federation.server.coordinator import Coordinator

FILE_NAME = "progress.json"
EVALUATION = 0.5
"""The last evaluation takes about this part of a training round."""


class Progress(BaseModel):
    """A moment of a run. ``round`` is 0 in the statistics round, ``rounds`` + 1 in the last evaluation.

    ``rejected`` has sites of the open round whose answer was left out, and why.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    state: Literal["running", "finished", "failed"] = "running"
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


class ProgressFile:
    """Keeps a run's ``progress.json`` up to date."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``folder`` is the run's; ``clock`` counts seconds."""
        self._path, self._clock = folder / FILE_NAME, clock
        self._round, self._since = -1, clock()
        self._last: tuple[Progress, float] | None = None

    def latest(self) -> Progress | None:
        """The last moment that was noted, with the time that is left by now; None if the run has not begun."""
        if self._last is None:
            return None
        progress, noted = self._last
        if progress.seconds_left is None:
            return progress
        return progress.model_copy(update={"seconds_left": max(progress.seconds_left - (self._clock() - noted), 0.0)})

    def update(self, coordinator: Coordinator) -> None:
        """Note where the run is."""
        if coordinator.round != self._round:
            self._round, self._since = coordinator.round, self._clock()
        results, rounds = coordinator.results, coordinator.rounds
        # While a round is open, its own scores are still coming in: those of the round before are whole.
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
                round=coordinator.round,
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
        """Note why the run ended."""
        never = Progress(round=0, rounds=0, sites=[], sites_in=[], metric="", best_round=0)
        last = never if self._last is None else self._last[0]
        self._write(last.model_copy(update={"state": "failed", "reason": reason}))

    def _write(self, progress: Progress) -> None:
        self._last = progress, self._clock()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._path, progress.model_dump_json(indent=1))


def read_progress(folder: Path) -> Progress | None:
    """The progress of the run in ``folder``, or None if it has not begun."""
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
