"""What of a method's perturbation the network lets through: a trial on made-up images, of a second or a few.

A method that perturbs images or features does nothing if what follows removes it: FedRDN's pairs of mean and deviation
are nearly the same at all sites whose volumes are normalised one by one, and FedFA's means go with instance norm. No
option is wrong then, so only outputs tell. Each of the job's training sites, at most `SITES`, gets images of its own
gain, offset and gamma, prepared as the task prepares scans; the methods' halves do a statistics round with them; then
the untrained network answers batches of one site in training mode, with and without each of a method's
`perturbations`::

    effect = ‖z_with − z_without‖ / ‖z_without − mean of z_without over images and places‖

over all logits of `DRAWS` batches. Below `LEAST` a job and a comparison warn. A trained network can let more through,
or less: ``benchmarks/perturbations.py`` compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.data.samples import Samples
from fedshift.federation.encryption.vector import SummedUpdate
from fedshift.federation.refusals import server_context
from fedshift.federation.tensors import read_weights
from fedshift.methods.base import Batch, Client, Run, TrainingSamples
from fedshift.methods.chain import ClientChain
from fedshift.methods.method_set import Method, MethodSet, load
from fedshift.runtime.grids import normalised
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import MethodArrays
from fedshift.schema.seeding import generator
from fedshift.tasks import trial
from fedshift.tasks.base import Task
from fedshift.tasks.kinds import build_task
from fedshift.tasks.stages import StagedNetwork

LEAST = 0.025
"""An effect below this is warned of. In such trials what instance norm takes away leaves up to 1.5 %, by borders and
by ε, and what it lets through is above 4 % (``benchmarks/results/perturbations.json``)."""
SITES, CASES, DRAWS = 4, 4, 2
"""Sites, cases of each, and batches."""
IMAGES = {2: 4, 3: 2}
"""In a batch, by an image's dimensions."""
VOXELS = {2: 96**2, 3: 32**3}
"""Largest image of the trial by its dimensions; a network takes smaller ones where it can."""
UNITS = (1, 8, 16, 32)
"""Multiples of these are tried for the sides of smaller images."""
BRIGHTEST = 1000.0
"""Of raw scans, as a scanner might give them."""


@dataclass(frozen=True)
class Effect:
    """How much of one perturbation of a method comes through, as a part of the outputs' variation."""

    method: str
    what: str
    size: float

    def __str__(self) -> str:
        """One sentence."""
        return (
            f"method {self.method}: its {self.what} change the network's outputs by {100 * self.size:.2g} % of their "
            f"variation in a trial (untrained network, made-up images), less than {100 * LEAST:g} %: the task's "
            "normalisation and the network's norms take them away, so expect nothing of them"
        )


def effects(
    job: JobSpec, samples: Sequence[TrainingSamples] | None = None, net: nn.Module | None = None
) -> list[Effect]:
    """The effect of every perturbation of the job's methods.

    Args:
        job: the resolved job.
        samples: of its training sites, in its order; made-up ones by default.
        net: a network; by default that of the job with its initial weights.
    """
    parts = {(m.name, what): half for m in load(job.methods) for what, half in m.client().perturbations().items()}
    if not parts:
        return []
    task = build_task(job)
    with torch.random.fork_rng(devices=[]):
        net = task.network() if net is None else net
        methods = MethodSet(job, net)
        data = made_up(job, task, net) if samples is None else samples
        states: list[dict[str, dict[str, Tensor]]] = [{} for _ in data]
        tried = [m for m in methods if m.name in {name for name, _ in parts}]  # others may want more images than these
        arrays = _statistics(job, methods, tried, data, states)
        measured, without = [], dict[str, Tensor]()
        for (name, what), half in parts.items():
            if name not in without:
                others = [m for m in tried if m.name != name]
                without[name] = _outputs(job, task, methods, others, data[0], states[0], arrays)
            alone = [_Part(m.name, half) if m.name == name else m for m in tried]
            before, after = without[name], _outputs(job, task, methods, alone, data[0], states[0], arrays)
            variation = before - before.mean([0, *range(2, before.dim())], keepdim=True)
            measured.append(Effect(name, what, float((after - before).norm() / variation.norm().clamp_min(1e-12))))
    return measured


def without_effect(job: JobSpec) -> list[Effect]:
    """Those whose effect is below `LEAST`."""
    return [effect for effect in effects(job) if effect.size < LEAST]


# --- the trial ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """A method with one of its perturbations alone."""

    name: str
    half: Client[Any]

    def client(self) -> Client[Any]:
        return self.half


def _run(job: JobSpec, task: Task, net: nn.Module, site: str, round_: int) -> Run:
    return Run(
        seed=job.seed,
        site=site,
        round=round_,
        rounds=job.task.schedule.rounds,
        sites=job.task.sites,
        net=net,
        objective=task.loss,
        n_classes=len(job.task.classes),
        regions=job.task.made_regions,
        dense=task.dense,
        findings=task.findings,
        steps=DRAWS,
        received=read_weights(net),
        optimizer=torch.optim.SGD(net.parameters(), lr=job.task.optimizer.lr),
    )


def _statistics(
    job: JobSpec,
    methods: MethodSet,
    tried: Sequence[Method],
    data: Sequence[TrainingSamples],
    states: list[dict[str, dict[str, Tensor]]],
) -> MethodArrays:
    """The round before the first: what the server then sends."""
    answers, task = [], build_task(job)
    for site, samples, state in zip(job.task.sites, data, states, strict=False):
        arrays = ClientChain(tried, _run(job, task, methods.net, site, 0), state).statistics(samples)
        answers.append(SummedUpdate(site, samples.n_train, n_steps=0, arrays=arrays))
    sent: MethodArrays = {}
    for method in tried:
        half, context = method.server(), server_context(methods.job, methods.trainable, 0)
        half.start(methods.net, context)
        half.receive(answers, context)
        sent[method.name] = dict(half.broadcast(server_context(methods.job, methods.trainable, 1)))
    return {name: named for name, named in sent.items() if named}


def _outputs(
    job: JobSpec,
    task: Task,
    methods: MethodSet,
    chosen: Iterable[Method | _Part],
    data: TrainingSamples,
    state: dict[str, dict[str, Tensor]],
    arrays: MethodArrays,
) -> Tensor:
    """Logits (n, K, …) of the same batches of one site, with these methods."""
    net = methods.net
    run = _run(job, task, net, job.task.sites[0], 1)
    chain = ClientChain(cast("list[Method]", list(chosen)), run, {name: dict(kept) for name, kept in state.items()})
    was = net.training
    kept = {key: value.clone() for key, value in net.state_dict().items()}
    net.train()
    handles = chain.attach(net)
    try:
        chain.receive(arrays)
        chain.begin(data)
        outputs = []
        for number, (x, y) in enumerate(_batches(data)):
            batch = chain.batch(Batch(x, y))  # some methods take gradients for it
            torch.manual_seed(number)  # dropout is the same with and without
            with torch.no_grad():
                output = net(batch.x)
            outputs.append(output if isinstance(output, Tensor) else output[0])
    finally:
        for handle in handles:
            handle.remove()
        net.train(was)
        net.load_state_dict(kept)
    return torch.cat(outputs).float()


def _batches(data: TrainingSamples) -> Iterable[tuple[Tensor, Tensor]]:
    images, targets = zip(*data.chunks(), strict=True)
    x, y = torch.cat(images), torch.cat(targets)
    rng = torch.Generator().manual_seed(0)
    for _ in range(DRAWS):
        chosen = torch.randperm(len(x), generator=rng)[: IMAGES[x.dim() - 2]]
        yield x[chosen].clone(), y[chosen].clone()


# --- made-up images -------------------------------------------------------------------------------------


class MadeUp(Samples):
    """A site's images (n, C, *spatial), targets, and images as evaluation has them."""

    def __init__(self, x: Tensor, y: Tensor, alone: Tensor) -> None:
        """``alone``: what `images_alone` gives."""
        self._x, self._y, self._alone = x, y, alone

    @property
    def n_train(self) -> int:
        """All."""
        return len(self._x)

    def train_samples(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        """By their place."""
        return self._x[index], self._y[index]

    @property
    def n_images(self) -> int:
        """All."""
        return len(self._alone)

    def image_samples(self, index: np.ndarray) -> Tensor:
        """By their place."""
        return self._alone[index]


def made_up(job: JobSpec, task: Task, net: nn.Module) -> list[MadeUp]:
    """The job's sites, at most `SITES`: smooth shapes, of another gain, offset and gamma at each."""
    spatial = task.spatial
    while task.dense and prod(spatial) > VOXELS[len(spatial)]:
        sizes = (tuple(unit * ceil(side / 2 / unit) for side in spatial) for unit in UNITS)
        smaller = next((size for size in sizes if prod(size) < prod(spatial) and trial.fits(net, size)), None)
        if smaller is None:
            break
        spatial = smaller
    channels = cast(StagedNetwork, net).in_channels
    return [_site(job, task, number, channels, spatial) for number in range(min(len(job.task.sites), SITES))]


def _site(job: JobSpec, task: Task, number: int, channels: int, spatial: tuple[int, ...]) -> MadeUp:
    rng = generator(job.seed, f"site {number}", 0, "made-up images")
    gain, offset, gamma = (float(low + (high - low) * torch.rand((), generator=rng)) for low, high in SHIFTS)
    images, targets, alone = [], [], []
    for _ in range(CASES):
        whole = tuple(2 * side for side in spatial) if task.dense else spatial
        raw = _smooth((channels, *whole), rng)
        inside = raw[0] > torch.quantile(raw[0].flatten(), 0.85)
        raw = offset + gain * (raw + 0.3 * inside) ** gamma
        x = torch.from_numpy(_prepared(raw.numpy(), task))
        if not task.dense:
            images.append(x)
            n_classes = len(job.task.classes)
            drawn = torch.randint(n_classes, (), generator=rng)
            targets.append(nn.functional.one_hot(drawn, n_classes).float() if task.findings else drawn)
            alone.append(x)
            continue
        y = inside.long() * int(torch.randint(1, len(job.task.classes), (), generator=rng))
        alone += [x[(slice(None), *place)] for place in _corners(spatial)]
        middle = tuple(slice(side // 2, side // 2 + side) for side in spatial)
        for place in (middle, *_corners(spatial)[:1]):
            images.append(x[(slice(None), *place)])
            targets.append(y[place])
    return MadeUp(torch.stack(images), torch.stack(targets), torch.stack(alone))


SHIFTS = ((0.5, 1.4), (-0.05, 0.2), (0.7, 1.4))
"""Ranges of a site's gain, offset and gamma, of images from 0 to 1: as those of the phantom's sites."""


def _smooth(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Smooth noise from 0 to 1, with a little that is not smooth."""
    dims = len(shape) - 1
    mode = "bilinear" if dims == 2 else "trilinear"
    coarse = torch.rand((1, shape[0], *[max(side // 12, 3) for side in shape[1:]]), generator=rng)
    fine = nn.functional.interpolate(coarse, shape[1:], mode=mode, align_corners=False)[0]
    return (fine + 0.05 * torch.randn(shape, generator=rng)).clamp(0, 1)


def _prepared(raw: np.ndarray, task: Task) -> np.ndarray:
    """As the task prepares a scan or picture of these intensities, (C, *spatial)."""
    how = task.preparation()
    if "normalise" not in how:
        low, high = task.intensities
        image: np.ndarray = (low + (high - low) * np.clip(raw, 0, 1)).astype(np.float32)
        return image
    fixed = how["fixed"]
    if fixed is not None:
        numbers = fixed["low"], fixed["high"], fixed["mean"], fixed["std"]
        scale = (fixed["low"], fixed["high"] - fixed["low"])
    else:
        numbers, scale = None, (0.0, 1.0 if how["normalise"] == "none" else BRIGHTEST)
    scaled = scale[0] + scale[1] * raw
    return np.stack([normalised(x, how["normalise"], nonzero=how["nonzero"], fixed=numbers) for x in scaled])


def _corners(spatial: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """The windows of an image of twice the sides."""
    places: list[tuple[slice, ...]] = [()]
    for side in spatial:
        places = [(*place, half) for place in places for half in (slice(0, side), slice(side, 2 * side))]
    return places
