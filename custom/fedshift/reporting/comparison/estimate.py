"""Time and memory of a cell, estimated before it is run.

Three things are measured on this machine and kept beside the cells: once the start of a process, for each network a
training step, and for each network and its data a trial of one round with one step a site, which has everything else
that a cell does (data opening, statistics, validation, the last evaluation, files). A large trial is computed from the
step instead. How much methods add is learned from cells that have ended; until then the estimate is a wide range.
"""

from __future__ import annotations

import json
import logging
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pydantic import ValidationError

from fedshift.data.counts import about_counts
from fedshift.data.samples import epoch_starts
from fedshift.federation.footprint import FEW, footprint, noise
from fedshift.federation.memory import PROCESS, SERVERS, of_training
from fedshift.reporting.comparison.cells import Cell
from fedshift.reporting.comparison.plan import Kind
from fedshift.reporting.comparison.spec import Samples
from fedshift.schema.errors import FedshiftError
from fedshift.schema.files import write_text
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest
from fedshift.schema.strict import Strict
from fedshift.tasks.kinds import build_task
from fedshift.tasks.precision import arrange, autocast, prepare, settled, use_threads

log = logging.getLogger("fedshift")

FILE_NAME = "calibration.json"
ASSUMED = Samples(train=500, val=200, test=200)
"""Of a site whose data are not here."""
MOST_BYTES = 2**30
"""Activations of a batch that is measured; a larger one is reckoned from a part of it."""
LONGEST_TRIAL = 20.0
"""Seconds that a trial may take, by the steps' time; a longer one is not made."""
KEPT = 30
"""The latest cells of a kind that are learned from."""
KNOWN_RANGE, UNKNOWN_RANGE = (0.75, 1.5), (0.75, 2.5)
"""Factors for the range of an estimate: of cells of a kind that have ended here, and of others."""


class Step(Strict):
    """Seconds and bytes of activations, of one image, in training and in evaluation; bytes of the network."""

    train: float
    evaluate: float
    activations: int
    network: int


class Trial(Strict):
    """A run of one round with one training step a site: seconds of the round, and of everything else but the start."""

    round: float
    rest: float


class Learned(Strict):
    """What a cell took: its rounds' time divided by the estimate, the rest of its time, and its peak memory."""

    ratio: float
    rest: float
    peak_bytes: int


class Calibration(Strict):
    """What has been measured on this machine; ``start`` is the seconds of a process's start."""

    start: float | None = None
    steps: dict[str, Step] = {}
    trials: dict[str, Trial] = {}
    learned: dict[str, list[Learned]] = {}


@dataclass(frozen=True)
class Estimate:
    """Of a cell. With ``is_learned`` such cells have ended here; with ``is_assumed`` its data are not here."""

    seconds: float
    peak_bytes: int
    is_learned: bool = False
    is_assumed: bool = False

    @property
    def range(self) -> tuple[float, float]:
        """Seconds that it takes at least and at most, as a rule."""
        low, high = KNOWN_RANGE if self.is_learned else UNKNOWN_RANGE
        return low * self.seconds, high * self.seconds


class Estimator:
    """Estimates cells, and learns from those that end."""

    def __init__(self, folder: Path, *, device: str, samples: Samples | None = None) -> None:
        """``folder`` is the store's; ``samples`` are the spec's assumption about sites whose data are not here."""
        self._path, self._device = folder / FILE_NAME, device
        self._samples = samples or ASSUMED
        self._known = _read(self._path)
        self._counts: dict[str, tuple[dict[str, Samples], bool]] = {}
        self._without_trial: set[str] = set()

    def __call__(self, cell: Cell) -> Estimate:
        """A cell from its beginning to its end."""
        rounds, rest, peak, assumed = self._raw(cell)
        kind, network = _kind(cell, self._device), _network(cell.plan.job, self._device)
        learned = self._known.learned.get(kind, [])
        near = learned or [one for key, many in self._known.learned.items() if key.startswith(network) for one in many]
        if near:
            rounds, rest = rounds * median(one.ratio for one in near), median(one.rest for one in near)
        if learned:
            peak = max(one.peak_bytes for one in learned)
        return Estimate(rounds + rest, peak, bool(learned), assumed)

    def learn(self, cell: Cell, *, seconds: float, in_rounds: float, peak_bytes: int) -> None:
        """Note what a cell took; ``in_rounds`` is the part of its seconds that training rounds took."""
        rounds, _, _, assumed = self._raw(cell)
        if assumed:
            return
        one = Learned(ratio=in_rounds / rounds, rest=max(seconds - in_rounds, 0.0), peak_bytes=peak_bytes)
        kind = _kind(cell, self._device)
        self._save(learned={kind: [*_read(self._path).learned.get(kind, []), one][-KEPT:]})

    # --- inside -----------------------------------------------------------------------------------

    def _raw(self, cell: Cell) -> tuple[float, float, int, bool]:
        """Seconds in training rounds and outside them; bytes; whether data are not here. Without what was learned."""
        job = cell.plan.job
        step = self._step(job)
        counts, assumed = self._count(cell)
        trial = self._trial(cell, counts, step)
        each = [_seconds(job, cell.plan.kind, counts, step, trial) for job in cell.plan.jobs.values()]
        rounds, rest = sum(one for one, _ in each), self._start() + sum(one for _, one in each)
        built = build_task(job)
        batch = job.task.schedule.batch_size * (len(job.task.sites) if cell.plan.is_pooled else 1)
        largest = min(batch, max(one.train for one in counts.values()) * len(counts))
        side = built.sizes["rows"] * built.sizes["columns"] * 4
        peak = PROCESS + SERVERS * step.network + of_training(step.network, step.activations, images=largest, side=side)
        return rounds, rest, peak, assumed

    def _count(self, cell: Cell) -> tuple[dict[str, Samples], bool]:
        task = cell.plan.job.task
        everyone = tuple(dict.fromkeys(site for job in cell.plan.jobs.values() for site in job.task.everyone))
        key = json.dumps([task.dataset, task.data, everyone, [str(path) for path in cell.data.values()]])
        if key not in self._counts:
            counts = {
                site: Samples(**about_counts(read_manifest(cell.data[site]), task.data))
                if site in cell.data
                else self._assumed(task.data.get("images"))
                for site in everyone
            }
            self._counts[key] = counts, len(cell.data) < len(everyone)
        return self._counts[key]

    def _assumed(self, images: int | None) -> Samples:
        """Of a site without data: never more than the job takes of any."""
        return self._samples.model_copy(update={"train": min(self._samples.train, images or self._samples.train)})

    def _start(self) -> float:
        if self._known.start is None:
            self._save(start=measure_start())
        assert self._known.start is not None
        return self._known.start

    def _step(self, job: JobSpec) -> Step:
        key = _network(job, self._device)
        if key not in self._known.steps:
            self._save(steps={key: measure(job, self._device)})
        return self._known.steps[key]

    def _trial(self, cell: Cell, counts: Mapping[str, Samples], step: Step) -> Trial | None:
        """The trial of a cell's network and data; None if data are not here, it would be long, or it failed."""
        job = cell.plan.job
        key = f"{_network(job, self._device)} {json.dumps([job.task.dataset, job.task.data, *job.task.everyone])}"
        if key in self._known.trials:
            return self._known.trials[key]
        first = _first_round(job)
        if cell.work is None or key in self._without_trial:
            return None
        if sum(_seconds(first, "federation", counts, step, None)) > LONGEST_TRIAL:
            return None
        try:
            self._save(trials={key: try_out(first, cell.data, device=self._device, is_pooled=cell.plan.is_pooled)})
        except FedshiftError as error:  # such as a learning rate that diverges; the run itself reports it
            log.debug("no trial of %s: %s", cell.name, error)
            self._without_trial.add(key)
            return None
        return self._known.trials[key]

    def _save(self, **new: Any) -> None:
        """Add to what is known; another command may have written to the file in the meantime."""
        known = _read(self._path)
        merged = {
            name: {**getattr(known, name), **value} if isinstance(value, dict) else value for name, value in new.items()
        }
        self._known = known.model_copy(update=merged)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._path, self._known.model_dump_json(indent=1))


def _read(path: Path) -> Calibration:
    """What is known; a damaged file, or one from another version, is measured anew."""
    try:
        return Calibration.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return Calibration()


def _network(job: JobSpec, device: str) -> str:
    """What a step depends on."""
    task, built = job.task, build_task(job)
    schedule = task.schedule
    return json.dumps(
        [
            _processor() if device == "cpu" else device,
            task.network.name,
            task.network.options,
            [built.sizes["rows"], built.sizes["columns"], len(task.classes), task.data.get("channels")],
            [task.loss, task.optimizer.name, schedule.batch_size, schedule.precision, schedule.threads],
        ]
    )


def _kind(cell: Cell, device: str) -> str:
    """What a cell's cost depends on besides: its methods, and how it is run."""
    return f"{_network(cell.plan.job, device)} {cell.plan.kind} {'+'.join(cell.plan.job.methods)}"


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def measure(job: JobSpec, device: str) -> Step:
    """One step of the job's network on noise, after one that does not count."""
    use_threads(job.task.schedule.threads)
    built, place = build_task(job), torch.device(device)
    precision, batch = job.task.schedule.precision, job.task.schedule.batch_size
    seen = footprint(job, precision=settled(precision, place))
    net = prepare(built.network(), precision, place)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)

    def step(n: int) -> tuple[float, float]:
        x, y = noise(net, built, n)
        x, y = arrange(x, precision, place), y.to(place)
        net.train()
        began = _now(place)
        with autocast(precision, place):
            loss = built.loss(net(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        trained = _now(place)
        net.eval()
        with torch.inference_mode(), autocast(precision, place):
            net(x)
        return trained - began, _now(place) - trained

    n = max(FEW, min(batch, MOST_BYTES // seen.activations))
    step(n)
    train, evaluate = step(n)
    return Step(train=train / n, evaluate=evaluate / n, activations=seen.activations, network=seen.network)


def measure_start() -> float:
    """Seconds until a process that runs a cell has imported what it needs."""
    began = time.perf_counter()
    code = "import fedshift.reporting.comparison.work, fedshift.federation.in_process, fedshift.federation.protocols"
    subprocess.run([sys.executable, "-c", code], check=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - began


def try_out(job: JobSpec, data: Mapping[str, Path], *, device: str, is_pooled: bool) -> Trial:
    """Run a job of one round in this process and see how long that takes.

    Raises:
        FedshiftError: the run failed.
    """
    from fedshift.federation.in_process import run_in_process, run_pooled

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = run_pooled if is_pooled else run_in_process
        results = run(job, data, Path(folder), device=device).results
        seconds = time.perf_counter() - began
    in_round = sum(record.seconds for record in results.rounds)
    return Trial(round=in_round, rest=max(seconds - in_round, 0.0))


def _first_round(job: JobSpec) -> JobSpec:
    """The job with one round of one step a site."""
    schedule = job.task.schedule.model_copy(update={"rounds": 1, "local_steps": 1})
    return job.model_copy(update={"task": job.task.model_copy(update={"schedule": schedule})})


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _seconds(
    job: JobSpec, kind: Kind, counts: Mapping[str, Samples], step: Step, trial: Trial | None
) -> tuple[float, float]:
    """Of a job's rounds, and of the rest but the start of a process; without a trial from the steps alone."""
    task, schedule = job.task, job.task.schedule
    share = (job.federation.sites_per_round or len(task.sites)) / len(task.sites)
    trained = one_step = scored = last = 0.0
    for site in task.sites:
        n = counts[site]
        starts = epoch_starts(n.train, batch_size=schedule.batch_size, drop_last=schedule.drop_last)
        steps = schedule.local_steps or schedule.local_epochs * len(starts)
        batch = min(schedule.batch_size, n.train)
        trained += steps * batch
        one_step += batch
        scored += n.val
        last += 2 * (n.val + n.test)
    for site in task.held_out:
        n = counts[site]
        last += 2 * (n.train + n.val + n.test)
    crossed = len(task.sites) * sum(counts[site].test for site in task.sites) if kind == "cross_site" else 0
    if trial is not None:
        each = trial.round + share * (trained - one_step) * step.train
        return schedule.rounds * each, trial.rest + crossed * step.evaluate
    # What is written and checked at every site in every round, and the two models of the server.
    moved = (8 * len(task.sites) * share + 6) * step.network / 5e8 + 0.02 * len(task.sites) * share
    each = share * (trained * step.train + scored * step.evaluate) + moved
    return schedule.rounds * each, (last + crossed) * step.evaluate
