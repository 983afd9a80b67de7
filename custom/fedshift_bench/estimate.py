"""Estimate a cell's time and memory before it runs.

Three things are measured on this machine and stored beside the cells: the start of a process (once), and a training
step and a trial (`fedshift.federation.run_time`, for each network and its data). If a trial would take too long, its
time is computed from the training step. The cost of methods is learned from finished cells; until then the estimate is
a wide range.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pydantic import ValidationError

from fedshift.data.splits import about_counts
from fedshift.federation.footprint import evaluation_of
from fedshift.federation.memory import PROCESS, SERVERS, training_bytes
from fedshift.federation.run_time import (
    MAX_TRIAL_SECONDS,
    Step,
    Trial,
    measure_step,
    one_round_of,
    run_trial,
    seconds_of,
)
from fedshift.schema.errors import FedshiftError
from fedshift.schema.files import write_text
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest
from fedshift.schema.strict import Strict
from fedshift.tasks.device import device_name
from fedshift.tasks.kinds import build_task
from fedshift_bench.cells import Cell
from fedshift_bench.spec import Samples

log = logging.getLogger("fedshift")

FILE_NAME = "calibration.json"
ASSUMED_SAMPLES = Samples(train=500, val=200, test=200)
"""Default number of samples of a site whose data are missing."""
MAX_OBSERVATIONS = 30
"""Number of finished cells of each kind that are kept, the latest ones."""
LEARNED_RANGE, UNLEARNED_RANGE = (0.75, 1.5), (0.75, 2.5)
"""Factors from an estimate to its range: if cells of the same kind have finished here, and otherwise."""


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
        self._counts: dict[str, tuple[dict[str, dict[str, int]], bool]] = {}
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
        times = [seconds_of(job, counts, step, trial) for job in cell.plan.jobs.values()]
        rounds, rest = sum(in_rounds for in_rounds, _ in times), self._start() + sum(outside for _, outside in times)
        if cell.plan.kind == "cross_site":  # each site's model is scored at all sites
            rest += len(job.task.sites) * sum(counts[site]["test"] for site in job.task.sites) * step.evaluate
        batch = job.task.schedule.batch_size * (len(job.task.groups) if cell.plan.is_pooled else 1)
        largest = min(batch, max(samples["train"] for samples in counts.values()) * len(counts))
        need = training_bytes(step.network, step.activations, images=largest, evaluation=evaluation_of(build_task(job)))
        peak = PROCESS + SERVERS * step.network + need
        return rounds, rest, peak, assumed

    def _sample_counts(self, cell: Cell) -> tuple[dict[str, dict[str, int]], bool]:
        """Number of samples by site, and whether some are assumed."""
        task = cell.plan.job.task
        everyone = tuple(dict.fromkeys(site for job in cell.plan.jobs.values() for site in job.task.everyone))
        key = json.dumps([task.dataset, task.data, everyone, [str(path) for path in cell.data.values()]])
        if key not in self._counts:
            most = min(self._samples.train, task.data.get("images") or self._samples.train)
            counts = {site: {**self._samples.model_dump(), "train": most} for site in everyone}
            for site, folder in cell.data.items():
                counts[site] = about_counts(read_manifest(folder), task.data)
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

    def _trial(self, cell: Cell, counts: Mapping[str, Mapping[str, int]], step: Step) -> Trial | None:
        """The trial of a cell's network and data; None if data are missing, it would take too long, or it failed."""
        job = cell.plan.job
        key = f"{_step_key(job, self._device)} {json.dumps([job.task.dataset, job.task.data, *job.task.everyone])}"
        if key in self._known.trials:
            return self._known.trials[key]
        trial_job = one_round_of(job)
        if cell.work is None or key in self._failed_trials:
            return None
        if sum(seconds_of(trial_job, counts, step, None)) > MAX_TRIAL_SECONDS:
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


def measure_start() -> float:
    """Seconds to start a process and import everything that running a cell needs."""
    start = time.perf_counter()
    code = "import fedshift_bench.cell_run, fedshift.federation.in_process, fedshift.federation.protocols"
    subprocess.run([sys.executable, "-c", code], check=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - start
