"""Estimate a cell's time and memory before it runs.

Three things are measured on this machine and stored beside the cells: the start of a process (once), a training step
(for each network), and a trial run of one round with one step per site (for each network and its data). The trial
includes everything else that a cell does: opening data, statistics, validation, the last evaluation and files. If a
trial would take too long, its time is computed from the training step. The cost of methods is learned from finished
cells; until then the estimate is a wide range.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pydantic import ValidationError

from fedshift.data.samples import epoch_starts
from fedshift.data.splits import about_counts
from fedshift.federation.footprint import FEW, evaluation_of, footprint, noise
from fedshift.federation.memory import PROCESS, SERVERS, training_bytes
from fedshift.schema.errors import FedshiftError
from fedshift.schema.files import write_text
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest
from fedshift.schema.strict import Strict
from fedshift.tasks import optimizers
from fedshift.tasks.device import device_name
from fedshift.tasks.kinds import build_task
from fedshift.tasks.precision import autocast, prepare, settled, use_threads
from fedshift_bench.cell_plan import CellKind
from fedshift_bench.cells import Cell
from fedshift_bench.spec import Samples

log = logging.getLogger("fedshift")

FILE_NAME = "calibration.json"
ASSUMED_SAMPLES = Samples(train=500, val=200, test=200)
"""Default number of samples of a site whose data are missing."""
MAX_ACTIVATION_BYTES = 2**30
"""Largest size of activations of a measured batch, in bytes; the time of a larger batch is extrapolated."""
MAX_TRIAL_SECONDS = 20.0
"""A trial with a longer expected time, in seconds, is not run."""
MAX_OBSERVATIONS = 30
"""Number of finished cells of each kind that are kept, the latest ones."""
LEARNED_RANGE, UNLEARNED_RANGE = (0.75, 1.5), (0.75, 2.5)
"""Factors from an estimate to its range: if cells of the same kind have finished here, and otherwise."""


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


class Observation(Strict):
    """A finished cell: its rounds' time divided by the estimate, and the seconds outside rounds."""

    ratio: float
    rest: float
    peak_bytes: int


class Calibration(Strict):
    """Measurements on this machine; ``start`` is the time to start a process in seconds."""

    start: float | None = None
    steps: dict[str, Step] = {}
    trials: dict[str, Trial] = {}
    learned: dict[str, list[Observation]] = {}


@dataclass(frozen=True)
class Estimate:
    """The estimate of a cell: learned from finished cells of its kind or not, of data here or of assumed numbers."""

    seconds: float
    peak_bytes: int
    is_learned: bool = False
    is_assumed: bool = False

    @property
    def range(self) -> tuple[float, float]:
        """The expected range in seconds."""
        low, high = LEARNED_RANGE if self.is_learned else UNLEARNED_RANGE
        return low * self.seconds, high * self.seconds


class Estimator:
    """Estimates the cost of cells, and learns from finished ones."""

    def __init__(self, folder: Path, *, device: str, samples: Samples | None = None) -> None:
        """``folder`` is the store's; ``samples`` are the assumed numbers of samples at sites whose data are missing."""
        self._path, self._device = folder / FILE_NAME, device
        self._samples = samples or ASSUMED_SAMPLES
        self._known = _read(self._path)
        self._counts: dict[str, tuple[dict[str, Samples], bool]] = {}
        self._failed_trials: set[str] = set()

    def __call__(self, cell: Cell) -> Estimate:
        """Estimate the cost of a cell from start to end."""
        rounds, rest, peak, assumed = self._unscaled(cell)
        step_key, learned = _step_key(cell.plan.job, self._device), self._known.learned
        same = learned.get(_cost_key(cell, self._device), [])
        similar = same or [cost for key, costs in learned.items() if key.startswith(step_key) for cost in costs]
        if similar:
            rounds, rest = rounds * median(cost.ratio for cost in similar), median(cost.rest for cost in similar)
        if same:
            peak = max(cost.peak_bytes for cost in same)
        return Estimate(rounds + rest, peak, bool(same), assumed)

    def learn(self, cell: Cell, *, seconds: float, in_rounds: float, peak_bytes: int) -> None:
        """Store the cost of a finished cell; ``in_rounds`` is the part of its seconds spent in training rounds."""
        rounds, _, _, assumed = self._unscaled(cell)
        if assumed:
            return
        observation = Observation(ratio=in_rounds / rounds, rest=max(seconds - in_rounds, 0.0), peak_bytes=peak_bytes)
        key = _cost_key(cell, self._device)
        observations = [*_read(self._path).learned.get(key, []), observation]
        self._save(learned={key: observations[-MAX_OBSERVATIONS:]})

    def _unscaled(self, cell: Cell) -> tuple[float, float, int, bool]:
        """The estimate without learned costs: seconds in rounds and outside, peak bytes, whether data are missing."""
        job = cell.plan.job
        step = self._step(job)
        counts, assumed = self._sample_counts(cell)
        trial = self._trial(cell, counts, step)
        times = [seconds_of(job, cell.plan.kind, counts, step, trial) for job in cell.plan.jobs.values()]
        rounds, rest = sum(in_rounds for in_rounds, _ in times), self._start() + sum(outside for _, outside in times)
        batch = job.task.schedule.batch_size * (len(job.task.groups) if cell.plan.is_pooled else 1)
        largest = min(batch, max(samples.train for samples in counts.values()) * len(counts))
        need = training_bytes(step.network, step.activations, images=largest, evaluation=evaluation_of(build_task(job)))
        peak = PROCESS + SERVERS * step.network + need
        return rounds, rest, peak, assumed

    def _sample_counts(self, cell: Cell) -> tuple[dict[str, Samples], bool]:
        """Number of samples by site, and whether some are assumed."""
        task = cell.plan.job.task
        everyone = tuple(dict.fromkeys(site for job in cell.plan.jobs.values() for site in job.task.everyone))
        key = json.dumps([task.dataset, task.data, everyone, [str(path) for path in cell.data.values()]])
        if key not in self._counts:
            most = min(self._samples.train, task.data.get("images") or self._samples.train)
            counts = dict.fromkeys(everyone, self._samples.model_copy(update={"train": most}))
            for site, folder in cell.data.items():
                counts[site] = Samples(**about_counts(read_manifest(folder), task.data))
            self._counts[key] = counts, len(cell.data) < len(everyone)
        return self._counts[key]

    def _start(self) -> float:
        if self._known.start is None:
            self._save(start=measure_start())
        assert self._known.start is not None
        return self._known.start

    def _step(self, job: JobSpec) -> Step:
        key = _step_key(job, self._device)
        if key not in self._known.steps:
            self._save(steps={key: measure_step(job, self._device)})
        return self._known.steps[key]

    def _trial(self, cell: Cell, counts: Mapping[str, Samples], step: Step) -> Trial | None:
        """The trial of a cell's network and data; None if data are missing, it would take too long, or it failed."""
        job = cell.plan.job
        key = f"{_step_key(job, self._device)} {json.dumps([job.task.dataset, job.task.data, *job.task.everyone])}"
        if key in self._known.trials:
            return self._known.trials[key]
        trial_job = one_round_of(job)
        if cell.work is None or key in self._failed_trials:
            return None
        if sum(seconds_of(trial_job, "federation", counts, step, None)) > MAX_TRIAL_SECONDS:
            return None
        try:
            trial = run_trial(trial_job, cell.data, device=self._device, is_pooled=cell.plan.is_pooled)
        except FedshiftError as error:  # for example divergence; the run itself will report it
            log.debug("no trial of %s: %s", cell.name, error)
            self._failed_trials.add(key)
            return None
        self._save(trials={key: trial})
        return trial

    def _save(self, **new: Any) -> None:
        """Merge new measurements into the file, which another command may have changed in the meantime."""
        known = _read(self._path)
        merged = {
            name: {**getattr(known, name), **value} if isinstance(value, dict) else value for name, value in new.items()
        }
        self._known = known.model_copy(update=merged)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._path, self._known.model_dump_json(indent=1))


def _read(path: Path) -> Calibration:
    """The measurements; a missing or damaged file, or one of another version, counts as empty."""
    try:
        return Calibration.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return Calibration()


def _step_key(job: JobSpec, device: str) -> str:
    task, built, schedule = job.task, build_task(job), job.task.schedule
    network = [task.network.name, task.network.options]
    images = [*built.spatial, len(task.classes), task.data.get("channels")]
    settings = [str(task.loss), task.optimizer.name, schedule.batch_size, schedule.precision, schedule.threads]
    return json.dumps([device_name(torch.device(device)), *network, images, settings])


def _cost_key(cell: Cell, device: str) -> str:
    """Everything that a cell's cost depends on: the step, the kind of run and the methods."""
    local = " with local models" if cell.plan.job.evaluation.local else ""
    return f"{_step_key(cell.plan.job, device)} {cell.plan.kind} {'+'.join(cell.plan.job.methods)}{local}"


def measure_step(job: JobSpec, device: str) -> Step:
    """Measure one training and one evaluation step of the job's network on noise, after a warm-up step."""
    use_threads(job.task.schedule.threads)
    built, place = build_task(job), torch.device(device)
    precision, batch = job.task.schedule.precision, job.task.schedule.batch_size
    seen = footprint(job, precision=settled(precision, place))
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

    n = max(FEW, min(batch, MAX_ACTIVATION_BYTES // seen.activations))
    step(n)
    train, evaluate = step(n)
    return Step(train=train / n, evaluate=evaluate / n, activations=seen.activations, network=seen.network)


def measure_start() -> float:
    """Seconds to start a process and import everything that running a cell needs."""
    start = time.perf_counter()
    code = "import fedshift_bench.cell_run, fedshift.federation.in_process, fedshift.federation.protocols"
    subprocess.run([sys.executable, "-c", code], check=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - start


def run_trial(job: JobSpec, data: Mapping[str, Path], *, device: str, is_pooled: bool) -> Trial:
    """Run a job of one round in this process and measure its time."""
    from fedshift.federation.in_process import run_in_process, run_pooled

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
    job: JobSpec, kind: CellKind, counts: Mapping[str, Samples], step: Step, trial: Trial | None
) -> tuple[float, float]:
    """Seconds of a job in its rounds and outside them, without the start of the process; computed if not tried."""
    task, schedule = job.task, job.task.schedule
    share = (job.federation.sites_per_round or len(task.sites)) / len(task.sites)
    # Numbers of images that pass through the network.
    trained = one_step = validated = tested = last_evaluation = 0.0
    for n in (counts[site] for site in task.sites):
        starts = epoch_starts(n.train, batch_size=schedule.batch_size, drop_last=schedule.drop_last)
        steps = schedule.local_steps or schedule.local_epochs * len(starts)
        batch = min(schedule.batch_size, n.train)
        if schedule.minutes is not None:
            steps = min(steps, max(1, round(60 * schedule.minutes / (batch * step.train))))
        models = 2 if job.evaluation.local else 1  # the second is trained and validated as often
        trained += models * steps * batch
        one_step += batch
        validated += n.val
        tested += (models - 1) * n.val
        tested += n.test / job.evaluation.every if job.evaluation.every is not None else 0
        last_evaluation += 2 * (n.val + n.test) + (models - 1) * n.test
    for n in (counts[site] for site in task.held_out):
        last_evaluation += 2 * (n.train + n.val + n.test)
    cross_site_tests = len(task.sites) * sum(counts[site].test for site in task.sites) if kind == "cross_site" else 0
    if trial is not None:
        per_round = trial.round + share * ((trained - one_step) * step.train + tested * step.evaluate)
        return schedule.rounds * per_round, trial.rest + cross_site_tests * step.evaluate
    # Seconds per round to write and check weights at every site, and to write the server's two models.
    transfer = (8 * len(task.sites) * share + 6) * step.network / 5e8 + 0.02 * len(task.sites) * share
    per_round = share * (trained * step.train + (validated + tested) * step.evaluate) + transfer
    return schedule.rounds * per_round, (last_evaluation + cross_site_tests) * step.evaluate
