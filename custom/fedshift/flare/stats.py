"""What the console's ``show_stats JOB server`` and ``show_stats JOB client`` show: lines of plain text.

The server reports what is in ``progress.json``. A site reports what it works on, and numbers that were in its last
answer: nothing leaves it this way that has not left before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.widgets.info_collector import InfoCollector
from pydantic import ValidationError

from fedshift.flare import codec
from fedshift.reporting.progress import FILE_NAME, Progress, duration
from fedshift.schema.errors import ConfigError
from fedshift.schema.messages import Answer, Failure, Update

GROUP = "fedshift"
"""Heading of the lines, beside FLARE's own."""
WATCHED = "fedshift watch"
"""Group of the line for programs."""
BRIEF = {"points": 30, "refused": 5, "lines": 8}
"""What is kept of the longer parts of ``progress.json``, as the console prints that line too."""
NONE = "none"


def add_stats(event_type: str, fl_ctx: FLContext, stats: Callable[[], dict[str, str]]) -> None:
    """Call this from a component's ``handle_event``: adds ``stats()`` when FLARE collects lines for ``show_stats``."""
    if event_type == InfoCollector.EVENT_TYPE_GET_STATS:
        fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR).set_info(GROUP, stats())


def add_progress(event_type: str, fl_ctx: FLContext, progress: Callable[[], Progress | None]) -> None:
    """The same, for programs: adds the progress as one line of JSON, shortened, which ``fedshift watch`` reads."""
    if event_type == InfoCollector.EVENT_TYPE_GET_STATS:
        latest = progress()
        text = "" if latest is None else latest.brief(**BRIEF).model_dump_json(by_alias=True, exclude_defaults=True)
        fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR).set_info(WATCHED, {FILE_NAME: text})


def progress_in(stats: Mapping[str, Any]) -> Progress | None:
    """The progress in the server's answer to ``show_stats``; None before the run has begun.

    An answer without any group comes from a job's process that is starting or ending.

    Raises:
        ConfigError: the job's server sends none: it runs another version, or the job is not one of fedshift's.
    """
    if not any(stats.values()):
        return None
    for groups in stats.values():
        text = groups.get(WATCHED, {}).get(FILE_NAME) if isinstance(groups, dict) else None
        if text is not None:
            try:
                return Progress.model_validate_json(text) if text else None
            except ValidationError:
                break
    raise ConfigError("other-version", "the job's server tells no progress that this version of fedshift can read")


def server_stats(progress: Progress | None) -> dict[str, str]:
    """The server's lines; ``progress`` is None before the run has begun."""
    if progress is None:
        return {"round": "not begun"}
    out = [f"{site} ({reason})" for site, reason in progress.rejected.items()]
    seconds = progress.seconds_left
    stats = {
        "round": _round(progress),
        "sites in": ", ".join(progress.sites_in) or NONE,
        "sites awaited": ", ".join(progress.awaited) or NONE,
        "sites left out of this round": "; ".join(out) or NONE,
        f"mean validation {progress.metric}": _score(progress.score, progress.score_round),
        "best so far": _score(progress.best_score, progress.best_round),
        "time left": "not known before round 1 is over" if seconds is None else f"about {duration(seconds)}",
    }
    if not progress.rounds:  # nothing is trained
        stats = {name: stats[name] for name in ("sites in", "sites awaited")}
        stats = {"round": "none: finished models are scored", **stats, "sites left out": "; ".join(out) or NONE}
    if progress.phantom:
        stats["data"] = "the phantom: simulated scans, not patients"
    if progress.state != "running":
        stats["state"] = " ".join((progress.state, progress.reason)).strip()
    return stats


def _round(progress: Progress) -> str:
    if progress.step == "statistics":
        return f"statistics, before round 1 of {progress.rounds}"
    if progress.step == "evaluation":
        return f"last evaluation, after round {progress.rounds} of {progress.rounds}"
    return f"{progress.round} of {progress.rounds}"


def _score(score: float | None, round_: int | None) -> str:
    return "no round scored yet" if score is None else f"{score:.4f} (round {round_})"


class SiteWork:
    """What a client works on, and what its last answer was."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds."""
        self._clock = clock
        self._task: tuple[str, float] | None = None
        self._answer = NONE

    def begin(self, task: str, round_: int) -> None:
        """A task has arrived."""
        self._task = _task(task, round_), self._clock()

    def end(self, answers: Iterable[Answer]) -> None:
        """The task was answered."""
        assert self._task is not None
        (what, began), self._task = self._task, None
        parts = [f"{what} in {duration(self._clock() - began)}"]
        for content in (answer.content for answer in answers):
            if isinstance(content, Failure):
                parts.append(f"failed: {content.reason}")
            elif isinstance(content, Update) and "train_loss" in content.metrics:
                parts.append(f"loss {content.metrics['train_loss']:.4f}")
        self._answer = ", ".join(parts)

    def stats(self) -> dict[str, str]:
        """The site's lines."""
        task = self._task
        work = "waiting for the server" if task is None else f"{task[0]}, for {duration(self._clock() - task[1])}"
        return {"at work on": work, "last answer": self._answer}


def _task(task: str, round_: int) -> str:
    if task == codec.TRAIN:
        return f"round {round_}"
    if task == codec.UNMASK:
        return f"the sum of round {round_}"
    return "statistics" if task == codec.STATISTICS else "evaluation"
