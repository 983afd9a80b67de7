"""A run to watch that nobody has to run."""

from __future__ import annotations

import time
from typing import Any

from fedshift.reporting.progress import MOST_POINTS, MOST_REFUSED, Progress, Refused, thinned
from fedshift.reporting.recent_log import MOST_LINES, LogLine
from fedshift.reporting.watch.snapshot import Snapshot

SITES = ["BIDMC", "HK", "I2CVB", "BMC", "RUNMC", "UCL"]


def progress_at(round_: int, *, rounds: int = 40, sites: list[str] = SITES, **changes: Any) -> Progress:
    """A run in the middle of a round: one site refused, two awaited, one of them silent before."""
    history = [(n, 0.8 - 0.5 / n + 0.02 * (n % 3)) for n in range(1, max(round_ - 1, 1))]
    best = max(history, key=lambda point: point[1], default=(0, None))
    scored = history[-1][0] if history else None
    refused = [
        Refused(round=n, site=sites[0], reason=f"norm: the update moved by {n} times")
        for n in range(max(1, round_ - MOST_REFUSED), round_)
    ]
    levels = ("INFO", "WARNING", "ERROR")
    now = time.time()
    log = [
        LogLine(time=now - 60 * (round_ - n), level=levels[n % 3], text=f"round {n} of {rounds} done in 12.4 s")
        for n in range(max(1, round_ - MOST_LINES), round_)
    ]
    content: dict[str, Any] = {
        "job": "fedfa_fedrdn_prostate",
        "step": "training",
        "round": round_,
        "rounds": rounds,
        "sites": sites,
        "sites_in": sites[2:-2],
        "rejected": {sites[0]: "norm: the update moved by 31.2 times the median"},
        "absent": sites[-1:],
        "metric": "dice",
        "score_round": scored,
        "score": history[-1][1] if history else None,
        "best_round": best[0],
        "best_score": best[1],
        "seconds_per_round": 75.0,
        "seconds_left": 75.0 * (rounds - round_) + 40,
        "site_scores": {site: 0.7 + 0.01 * n for n, site in enumerate(sites)} if scored else {},
        "best_site_scores": {site: 0.72 + 0.01 * n for n, site in enumerate(sites)} if scored else {},
        "history": thinned(history, MOST_POINTS),
        "refused": refused,
        "n_refused": max(round_ - 1, 0),
        "log": log,
        "phantom": True,
    }
    return Progress.model_validate(content | changes)


class StandIn:
    """A source that shows what it is told to, and counts how often it is asked."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress, self.problem, self.waits_for, self.asked = progress, "", "the run has not begun", 0
        self.age = 3.0

    def read(self) -> Snapshot:
        self.asked += 1
        if self.progress is None:
            return Snapshot(where="runs/first", waits_for=self.waits_for, problem=self.problem)
        return Snapshot.from_progress(self.progress, where="runs/first", news_age=self.age, problem=self.problem)

    def close(self) -> None:
        pass
