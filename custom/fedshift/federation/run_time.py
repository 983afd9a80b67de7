"""How long a job takes on this machine, before it runs: a training step on noise, a trial of one round, and their sum.

The trial is one round with one step per site in one process; with it goes all else that a run does: opening data,
statistics, validation, the last evaluation and files. A whole round has more steps, which the measured step stands for.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from fedshift.data.samples import epoch_starts
from fedshift.federation.footprint import FEW, footprint, noise
from fedshift.federation.in_process import run_in_process, run_pooled
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict
from fedshift.tasks import optimizers
from fedshift.tasks.kinds import build_task
from fedshift.tasks.precision import autocast, prepare, settled, use_threads

MAX_ACTIVATION_BYTES = 2**30
"""Largest size of activations of a measured batch, in bytes; the time of a larger batch is extrapolated."""
MAX_TRIAL_SECONDS = 20.0
"""A trial with a longer expected time, in seconds, is not worth its time."""


class Step(Strict):
    """Cost of one image: seconds in training and in evaluation, bytes of activations; and bytes of the network."""

    train: float
    evaluate: float
    activations: int
    network: int


class Trial(Strict):
    """Seconds of the round of a trial, and of everything else except the start of the process."""

    round: float
    rest: float


def measure_step(job: JobSpec, device: str) -> Step:
    """Measure one training and one evaluation step of the job's network on noise, after a warm-up step."""
    use_threads(job.task.schedule.threads)
    built, place = build_task(job), torch.device(device)
    precision, batch = job.task.schedule.precision, job.task.schedule.batch_size
    memory = footprint(job, precision=settled(precision, place))
    net = prepare(built.network(), precision, place)
    optimizer = optimizers.SGD(net.parameters(), lr=0.0)

    def step(n: int) -> tuple[float, float]:
        x, y = noise(net, built, n)
        x, y = x.to(place), y.to(place)
        net.train()
        start = _clock(place)
        with autocast(precision, place):
            loss = built.loss(net(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        trained = _clock(place)
        net.eval()
        with torch.inference_mode(), autocast(precision, place):
            net(x)
        return trained - start, _clock(place) - trained

    n = max(FEW, min(batch, MAX_ACTIVATION_BYTES // memory.activations))
    step(n)
    train, evaluate = step(n)
    return Step(train=train / n, evaluate=evaluate / n, activations=memory.activations, network=memory.network)


def run_trial(job: JobSpec, data: Mapping[str, Path], *, device: str, is_pooled: bool = False) -> Trial:
    """Run a job of one round in this process and measure its time."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        run = run_pooled if is_pooled else run_in_process
        results = run(job, data, Path(folder), device=device).results
        seconds = time.perf_counter() - start
    in_round = sum(record.seconds for record in results.rounds)
    return Trial(round=in_round, rest=max(seconds - in_round, 0.0))


def one_round_of(job: JobSpec) -> JobSpec:
    """The job with one round of one step per site, without models of single sites."""
    schedule = job.task.schedule.model_copy(update={"rounds": 1, "local_steps": 1})
    task = job.task.model_copy(update={"schedule": schedule})
    return job.model_copy(update={"task": task, "evaluation": job.evaluation.model_copy(update={"local": False})})


def _clock(device: torch.device) -> float:
    """Seconds, after all work on the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def seconds_of(
    job: JobSpec, counts: Mapping[str, Mapping[str, int]], step: Step, trial: Trial | None
) -> tuple[float, float]:
    """Seconds of a job in its rounds and outside them, without the start of the process; computed if not tried.

    ``counts``: site → split → samples, as `fedshift.data.splits.about_counts` counts them.
    """
    task, schedule = job.task, job.task.schedule
    share = (job.federation.sites_per_round or len(task.sites)) / len(task.sites)
    # Numbers of images that pass through the network.
    trained = one_step = validated = tested = last_evaluation = 0.0
    for n in (counts[site] for site in task.sites):
        starts = epoch_starts(n["train"], batch_size=schedule.batch_size, drop_last=schedule.drop_last)
        steps = schedule.steps(len(starts))
        batch = min(schedule.batch_size, n["train"])
        if schedule.minutes is not None:
            steps = min(steps, max(1, round(60 * schedule.minutes / (batch * step.train))))
        models = 2 if job.evaluation.local else 1  # the second is trained and validated as often
        trained += models * steps * batch
        one_step += batch
        validated += n["val"]
        tested += (models - 1) * n["val"]
        tested += n["test"] / job.evaluation.every if job.evaluation.every is not None else 0
        last_evaluation += 2 * (n["val"] + n["test"]) + (models - 1) * n["test"]
    for n in (counts[site] for site in task.held_out):
        last_evaluation += 2 * (n["train"] + n["val"] + n["test"])
    if trial is not None:
        per_round = trial.round + share * ((trained - one_step) * step.train + tested * step.evaluate)
        return schedule.rounds * per_round, trial.rest
    # Seconds per round to write and check weights at every site, and to write the server's two models.
    transfer = (8 * len(task.sites) * share + 6) * step.network / 5e8 + 0.02 * len(task.sites) * share
    per_round = share * (trained * step.train + (validated + tested) * step.evaluate) + transfer
    return schedule.rounds * per_round, last_evaluation * step.evaluate
