"""How long a cell takes and how much memory, before it is run.

A network's step is measured once for each batch and image size, on this machine, and kept beside the cells. Methods
cost more than FedAvg's step, by how much is learned from cells that have ended: their time and memory by the estimate.
Before any has, expect half to twice the time.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import torch
from pydantic import ValidationError

from fedshift.data.counts import about_counts
from fedshift.data.samples import epoch_starts
from fedshift.federation.footprint import FEW, footprint, noise
from fedshift.federation.memory import PROCESS, SERVERS, of_training
from fedshift.reporting.comparison.cells import Cell
from fedshift.reporting.comparison.plan import Kind
from fedshift.reporting.comparison.spec import Samples
from fedshift.schema.files import write_text
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest
from fedshift.schema.strict import Strict
from fedshift.tasks.base import build_task
from fedshift.tasks.precision import arrange, autocast, prepare, settled, use_threads

FILE_NAME = "calibration.json"
ASSUMED = Samples(train=500, val=200, test=200)
"""Of a site whose data are not here."""
MOST_BYTES = 2**30
"""Activations of a batch that is measured; a larger one is reckoned from a part of it."""
START = 6.0
"""Seconds until a process has loaded everything and opened its data."""
KEPT = 30
"""The latest cells of a kind that are learned from."""


class Step(Strict):
    """Seconds and bytes of activations, of one image, in training and in evaluation; bytes of the network."""

    train: float
    evaluate: float
    activations: int
    network: int


class Learned(Strict):
    """How a cell turned out: its rounds' time by the estimate, the rest of its time, and its most memory."""

    ratio: float
    rest: float
    peak_bytes: int


class Calibration(Strict):
    """What has been measured on this machine."""

    steps: dict[str, Step] = {}
    learned: dict[str, list[Learned]] = {}


@dataclass(frozen=True)
class Estimate:
    """Of a cell. ``is_learned`` tells whether such cells have ended here, ``is_assumed`` that its data are not here."""

    seconds: float
    peak_bytes: int
    is_learned: bool = False
    is_assumed: bool = False


class Estimator:
    """Estimates cells, and learns from those that end."""

    def __init__(self, folder: Path, *, device: str, samples: Samples | None = None) -> None:
        """``folder`` is the store's, ``samples`` a spec's word on sites whose data are lacking."""
        self._path, self._device = folder / FILE_NAME, device
        self._samples = samples or ASSUMED
        self._known = _read(self._path)
        self._counts: dict[str, tuple[dict[str, Samples], bool]] = {}

    def __call__(self, cell: Cell) -> Estimate:
        """A cell from the beginning to the end."""
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
        """Note how a cell turned out; ``in_rounds`` are those of its seconds that training rounds took."""
        rounds, _, _, assumed = self._raw(cell)
        if assumed:
            return
        one = Learned(ratio=in_rounds / rounds, rest=max(seconds - in_rounds, 0.0), peak_bytes=peak_bytes)
        known, kind = _read(self._path), _kind(cell, self._device)
        found = [*known.learned.get(kind, []), one][-KEPT:]
        self._save(Calibration(steps=known.steps, learned={**known.learned, kind: found}))

    # --- inside -----------------------------------------------------------------------------------

    def _raw(self, cell: Cell) -> tuple[float, float, int, bool]:
        """Seconds in training rounds, and besides; bytes; whether data are lacking. Nothing is learned yet."""
        job = cell.plan.job
        step = self._step(job)
        counts, assumed = self._count(cell)
        each = [_seconds(job, cell.plan.kind, counts, step) for job in cell.plan.jobs.values()]
        rounds, rest = sum(one for one, _ in each), START + sum(one for _, one in each)
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

    def _step(self, job: JobSpec) -> Step:
        key = _network(job, self._device)
        if key not in self._known.steps:
            found = measure(job, self._device)
            known = _read(self._path)  # another command may have written to it
            self._save(Calibration(steps={**known.steps, key: found}, learned=known.learned))
        return self._known.steps[key]

    def _save(self, known: Calibration) -> None:
        self._known = known
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._path, known.model_dump_json(indent=1))


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


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _seconds(job: JobSpec, kind: Kind, counts: Mapping[str, Samples], step: Step) -> tuple[float, float]:
    """Of a job's rounds, and of its final evaluation."""
    task, schedule = job.task, job.task.schedule
    share = (job.federation.sites_per_round or len(task.sites)) / len(task.sites)
    trained = scored = last = 0.0
    for site in task.sites:
        n = counts[site]
        starts = epoch_starts(n.train, batch_size=schedule.batch_size, drop_last=schedule.drop_last)
        steps = schedule.local_steps or schedule.local_epochs * len(starts)
        trained += steps * min(schedule.batch_size, n.train)
        scored += n.val
        last += 2 * (n.val + n.test)
    for site in task.held_out:
        n = counts[site]
        last += 2 * (n.train + n.val + n.test)
    if kind == "cross_site":
        last += len(task.sites) * sum(counts[site].test for site in task.sites)
    # What is written and checked at every site in every round, and the two models of the server.
    moved = (8 * len(task.sites) * share + 6) * step.network / 5e8 + 0.02 * len(task.sites) * share
    each = share * (trained * step.train + scored * step.evaluate) + moved
    return schedule.rounds * each, last * step.evaluate
