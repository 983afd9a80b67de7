"""``progress.json``: the progress of a run, for users and other processes (docs/watch.md).

The process that coordinates the run rewrites it, as a whole, whenever a round opens, an answer is accepted or refused,
or the run ends; with many sites not after every answer. Its size does not grow with the number of rounds.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedshift.reporting.recent_log import LogLine, RecentLog
from fedshift.schema.errors import ConfigError
from fedshift.schema.files import write_text
from fedshift.schema.strict import first_fault

if TYPE_CHECKING:
    from fedshift.federation.server.coordinator import Coordinator
    from fedshift.federation.validation_record import ValidationAnswers
    from fedshift.schema.results import Results
    from fedshift.schema.validation import Validation

log = logging.getLogger("fedshift")

FILE_NAME = "progress.json"
STOPPED = "stopped by the user"
RESERVE, RESERVED = ".reserved", 1 << 16
"""A file of so many bytes that gives its room to the last ``progress.json`` of a run whose disk is full."""
EVALUATION_FRACTION = 0.5
"""Estimated time of the last evaluation, as a fraction of a training round."""

MANY_SITES, INTERVAL = 100, 1.0
"""With more sites, answers that come within so many seconds are shown together: each would write all sites again."""

MOST_POINTS, MOST_REFUSED = 100, 20
"""Rounds of the curve, and refused answers, that ``progress.json`` holds."""

Step = Literal["statistics", "training", "evaluation"]


class Refused(BaseModel):
    """An answer that was left out; round 0 is the statistics round."""

    model_config = ConfigDict(extra="forbid")

    round: int
    site: str
    reason: str


class Progress(BaseModel):
    """The progress of a run at one moment (schema 1).

    ``round`` counts from 0 (statistics) to ``rounds`` and stays there during the last evaluation. ``rejected`` maps
    sites whose answer was rejected in the current round to the reason, ``absent`` names those that did not answer the
    round before. ``state`` is ``stopped`` if a user ended the run. ``seconds_per_round`` is the mean over the latest
    rounds.

    ``score`` is the mean validation score of the newest round that all sites have scored (``score_round``), with each
    site's in ``site_scores``; ``best_score`` and ``best_site_scores`` are those of the best round. ``history`` holds
    the mean scores of at most `MOST_POINTS` rounds, evenly spaced, ``refused`` the latest refused answers of
    ``n_refused`` in all, ``log`` the latest lines of the coordinating process.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), populate_by_name=True)

    schema_: Literal[1] = Field(default=1, alias="schema")
    job: str = ""
    state: Literal["running", "finished", "failed", "stopped"] = "running"
    step: Step = "statistics"
    round: int
    rounds: int
    sites: list[str]
    sites_in: list[str]
    rejected: dict[str, str] = {}
    absent: list[str] = []
    metric: str
    score_round: int | None = None
    score: float | None = None
    best_round: int
    best_score: float | None = None
    seconds_per_round: float | None = None
    seconds_left: float | None = None
    site_scores: dict[str, float] = {}
    best_site_scores: dict[str, float] = {}
    history: list[tuple[int, float]] = []
    refused: list[Refused] = []
    n_refused: int = 0
    log: list[LogLine] = []
    phantom: bool = False
    reason: str = ""

    def brief(self, *, points: int, refused: int, lines: int) -> Progress:
        """The same with fewer rounds of the curve, refused answers and lines of the log."""
        return self.model_copy(
            update={
                "history": thinned(self.history, points),
                "refused": self.refused[-refused:],
                "log": self.log[-lines:],
            }
        )

    @property
    def awaited(self) -> list[str]:
        """Sites that were asked and have not answered yet."""
        return [site for site in self.sites if site not in self.sites_in and site not in self.rejected]

    @property
    def share(self) -> float:
        """The completed fraction of the run, 0 to 1; the statistics and the last evaluation count as a round each."""
        if self.state == "finished":
            return 1.0
        in_step = len(self.sites_in) / max(len(self.sites), 1)
        if not self.rounds:  # nothing is trained
            return in_step
        steps_before = {"statistics": 0, "training": self.round, "evaluation": self.rounds + 1}[self.step]
        return min((steps_before + in_step) / (self.rounds + 2), 1.0)


class ProgressFile:
    """Keeps the ``progress.json`` of a run up to date."""

    def __init__(
        self, folder: Path, *, recent: RecentLog | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``folder`` is the run's; ``recent`` has the lines of the log; ``clock`` returns seconds."""
        self._path, self._clock = folder / FILE_NAME, clock
        self._round, self._round_start = -1, clock()
        self._last: tuple[Progress, float] | None = None
        self._reserve, self._warned = folder / RESERVE, False
        self._recent = recent
        self._history: list[tuple[int, float]] = []
        self._refused: deque[Refused] = deque(maxlen=MOST_REFUSED)
        self._n_refused, self._n_closed = 0, -1
        self._postponed: Coordinator | None = None

    def latest(self) -> Progress | None:
        """The last written progress with ``seconds_left`` reduced by the time since; None before the first update."""
        if self._last is None:
            return None
        progress, written_at = self._last
        seconds = progress.seconds_left
        if seconds is not None:
            seconds = max(seconds - (self._clock() - written_at), 0.0)
        return progress.model_copy(update={"seconds_left": seconds, "log": self._lines()})

    def update(self, coordinator: Coordinator) -> None:
        """Write the current progress; that of many sites at most once an `INTERVAL` within a round."""
        results, rounds = coordinator.results, coordinator.rounds
        if coordinator.round != self._round:
            self._round, self._round_start = coordinator.round, self._clock()
        elif len(coordinator.invited) > MANY_SITES and results.final is None and not self._is_due():
            self._postponed = coordinator
            return
        self._postponed = None
        # The current round collects the scores of the round before it; complete scores are one round older still.
        newest = rounds if results.final is not None else min(coordinator.round - 2, rounds)
        self._note_scores(coordinator, newest)
        self._note_closed(results)
        score_round = self._history[-1][0] if self._history else None
        open_faults = [Refused(round=self._round, site=s, reason=r) for s, r in coordinator.rejected.items()]
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
                job=coordinator.job.name,
                state="running" if results.final is None else "finished",
                step=step,
                round=min(coordinator.round, rounds),
                rounds=rounds,
                sites=list(coordinator.invited),
                sites_in=list(coordinator.answered),
                rejected=coordinator.rejected,
                absent=_absent(results),
                metric=coordinator.metric,
                score_round=score_round,
                score=coordinator.mean_score(score_round) if score_round else None,
                best_round=coordinator.best_round,
                best_score=coordinator.mean_score(coordinator.best_round) if coordinator.best_round else None,
                seconds_per_round=per_round,
                seconds_left=0.0 if results.final else seconds_left,
                site_scores=coordinator.site_scores(score_round) if score_round else {},
                best_site_scores=coordinator.site_scores(coordinator.best_round) if coordinator.best_round else {},
                history=thinned(self._history, MOST_POINTS),
                refused=[*self._refused, *open_faults][-MOST_REFUSED:],
                n_refused=self._n_refused + len(open_faults),
                phantom=any(site.kind == "phantom" for site in results.data.values()),
            )
        )

    def show(self, progress: Progress) -> None:
        """Write a moment of a job that has no coordinator."""
        self._write(progress)

    def catch_up(self) -> None:
        """Write what `update` has postponed, if it is time."""
        if self._postponed is not None and self._is_due():
            self.update(self._postponed)

    def _is_due(self) -> bool:
        return self._last is None or self._clock() - self._last[1] >= INTERVAL

    def _note_scores(self, coordinator: Coordinator, newest: int) -> None:
        """Add the rounds that have got their scores to the curve."""
        for round_ in range(self._history[-1][0] + 1 if self._history else 1, newest + 1):
            score = coordinator.mean_score(round_)
            if score is not None:
                self._history.append((round_, round(score, 6)))

    def _note_closed(self, results: Results) -> None:
        """Add the refused answers of rounds that were closed since the last call."""
        if results.statistics is None:
            return
        closed = [results.statistics] if self._n_closed < 0 else []
        closed += results.rounds[max(self._n_closed, 0) :]
        self._n_closed = len(results.rounds)
        for record in closed:
            self._n_refused += len(record.rejected)
            self._refused += [
                Refused(round=record.round, site=fault.site, reason=f"{fault.key}: {fault.reason}")
                for fault in record.rejected[-MOST_REFUSED:]
            ]

    def _lines(self) -> list[LogLine]:
        return [] if self._recent is None else self._recent.lines()

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
        """Write a moment, with the latest lines of the log.

        A full disk does not end the run here: for its last moment, there is room in reserve.
        """
        progress = progress.model_copy(update={"log": self._lines()})
        self._last = progress, self._clock()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if progress.state != "running":
                self._reserve.unlink(missing_ok=True)
            elif not self._reserve.exists():
                self._reserve.write_bytes(bytes(RESERVED))
            write_text(self._path, progress.model_dump_json(by_alias=True, indent=1))
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning("%s cannot be written, so it shows an earlier moment of the run: %s", self._path, error)


def of_validation(answers: ValidationAnswers, record: Validation | None = None) -> Progress:
    """The progress of a validation; ``record``: once it is over. It has no rounds, and its one step is evaluation."""
    refused = answers.refused if record is None else record.refused
    return Progress(
        job=answers.spec.validation,
        state="running" if record is None else "finished",
        step="evaluation",
        round=0,
        rounds=0,
        sites=list(answers.spec.sites),
        sites_in=list(answers.sites),
        rejected=refused,
        metric=answers.metric,
        best_round=0,
        refused=[Refused(round=0, site=site, reason=reason) for site, reason in refused.items()][-MOST_REFUSED:],
        n_refused=len(refused),
        phantom=any(site.kind == "phantom" for site in answers.sites.values()),
    )


def mark_stopped(folder: Path) -> None:
    """Write that a user ended the run in ``folder``, after its own process has gone."""
    progress = read_progress(folder)
    if progress is not None and progress.state != "finished":
        stopped = progress.model_copy(update={"state": "stopped", "reason": STOPPED, "seconds_left": None})
        write_text(folder / FILE_NAME, stopped.model_dump_json(by_alias=True, indent=1))


def mark_failed(folder: Path, reason: str) -> None:
    """Write that the run in ``folder`` failed, if its own process has gone without a word of its end."""
    progress = read_progress(folder)
    if progress is not None and progress.state == "running":
        failed = progress.model_copy(update={"state": "failed", "reason": reason, "seconds_left": None})
        write_text(folder / FILE_NAME, failed.model_dump_json(by_alias=True, indent=1))


def read_progress(folder: Path) -> Progress | None:
    """Read the progress of the run in ``folder``; None if there is none yet.

    Raises:
        ConfigError: the file is none of this version.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    try:
        return Progress.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise ConfigError(
            "other-version", f"{path} was not written by this version of fedshift ({first_fault(error)})"
        ) from None


def thinned(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """At most ``most`` of the points, evenly spaced; the first and the last are among them."""
    if len(points) <= most:
        return list(points)
    step = (len(points) - 1) / (most - 1)
    return [points[round(number * step)] for number in range(most)]


def _absent(results: Results) -> list[str]:
    """Sites that did not answer the last closed round at all."""
    last = results.rounds[-1] if results.rounds else results.statistics
    if last is None:
        return []
    refused = {fault.site for fault in last.rejected}
    return [site for site in last.absent if site not in refused]


def duration(seconds: float) -> str:
    """Format a time: ``45 s``, ``3 min 20 s``, ``2 h 05 min``."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"
