"""``fedshift job --budget``: as many rounds as fit into a time on this machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fedshift.cli.memory import check_memory
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec

ROUNDS, MINUTES = "schedule.rounds", "schedule.minutes"
TRIAL_SHARE = 0.02
"""Longest trial, as a part of the budget."""
UNITS = {"d": 86400, "h": 3600, "m": 60}
_TIME = re.compile("".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?){unit})?" for unit in UNITS))


def parse_time(text: str) -> float:
    """Seconds of a time such as ``90m``, ``1h``, ``1h30m`` or ``2d``; `ConfigError` if it is none."""
    match = _TIME.fullmatch(text)
    numbers = match.groupdict() if match else {}
    seconds = sum(float(number) * UNITS[unit] for unit, number in numbers.items() if number)
    if not seconds:
        raise ConfigError("invalid-value", f"--budget {text!r} is no time: write it as 45m, 1h, 1h30m or 2d")
    return seconds


def add_option(job: Any) -> None:
    job.add_argument(
        "--budget",
        metavar="TIME",
        help="as many rounds as 'fedshift run' makes in a time such as 45m, 1h30m or 2d on this machine, which is "
        "measured; all sites' data are here",
    )


def fitting_rounds(text: str, job: JobSpec, options: Sequence[str]) -> int:
    """Measure a job, print what was measured, and return how many rounds fit.

    Args:
        text: the time, as typed.
        job: the job with its own number of rounds.
        options: those of ``--set``.

    Raises:
        ConfigError: not one round fits, or something else also says how long the run is.
        DataError: a site has no data here.
    """
    from fedshift.data.locate import find_sites
    from fedshift.data.splits import about_counts
    from fedshift.federation.run_time import MAX_TRIAL_SECONDS, measure_step, one_round_of, run_trial, seconds_of
    from fedshift.flare.simulate import balanced, work_of
    from fedshift.reporting.progress import duration
    from fedshift.schema.manifest import read_manifest
    from fedshift.tasks.device import own_device

    budget = parse_time(text)
    if any(option.partition("=")[0].strip() == ROUNDS for option in options):
        raise ConfigError("options-clash", f"--budget decides how many rounds there are: leave out it or {ROUNDS}")
    if job.task.schedule.minutes is not None:
        raise ConfigError("options-clash", f"--budget is for rounds whose steps are set: leave out it or {MINUTES}")
    data, device = find_sites(job), own_device()
    check_memory(job, data)
    print(f"budget {text}: measuring on this machine", flush=True)
    counts = {site: about_counts(read_manifest(folder), job.task.data) for site, folder in data.items()}
    side_by_side, job = _as_it_runs(job)
    step, trial_job = measure_step(job, device), one_round_of(job)
    is_short = sum(seconds_of(trial_job, counts, step, None)) <= max(MAX_TRIAL_SECONDS, TRIAL_SHARE * budget)
    trial = run_trial(trial_job, data, device=device) if is_short else None
    share = 1.0  # all sites share a GPU
    if device == "cpu":  # a round lasts as long as the worker with most to do
        work = work_of(job, data)
        share = max(sum(work[site] for site in sites) for sites in balanced(work, side_by_side)) / sum(work.values())
    in_rounds, outside = (share * seconds for seconds in seconds_of(job, counts, step, trial))
    one_round = in_rounds / job.task.schedule.rounds
    rounds = int((budget - outside) / one_round)
    if rounds < 1:
        raise ConfigError(
            "budget-too-small",
            f"--budget {text}: a round takes about {duration(one_round)} here, and all else "
            f"{duration(outside)}: give more time, or shorten rounds with --set schedule.local_steps=N",
        )
    print(
        f"budget {text}: {rounds} rounds of about {duration(one_round)}, and about {duration(outside)} for all "
        f"else; without a budget there are {job.task.schedule.rounds}"
    )
    return rounds


def _as_it_runs(job: JobSpec) -> tuple[int, JobSpec]:
    """How many sites `fedshift run` has train side by side, and the job with the threads that each of them then has."""
    from fedshift.flare.simulate import sites_at_a_time
    from fedshift.tasks.machine import own_cores

    side_by_side, schedule = sites_at_a_time(job, None), job.task.schedule
    if schedule.threads == "auto":
        schedule = schedule.model_copy(update={"threads": own_cores(side_by_side)})
    return side_by_side, job.model_copy(update={"task": job.task.model_copy(update={"schedule": schedule})})
