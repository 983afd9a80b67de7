"""A training step in 3D: a site's, with and without FedFA, against a plain loop over the same network in float32.

    python -m benchmarks.performance.step_3d

The hippocampus task with MONAI's ``BasicUNet``: 2 patches of 40x56x40, DiceCE, AdamW. A site's step is that of round 1:
cutting and augmenting patches, the methods' hooks, gradients, clipping, AdamW, and its share of what a round does
before and after. The plain loops have the same network, loss and optimiser on a batch of noise that lies ready:
in float32 as one writes it first, and in bf16, also with channels last, which is what torch gives without fedshift.
They are in a process of their own, because fedshift sets the allocator of its process (`fedshift.tasks.precision`).

With one thread the times are the processor's, which other work on the machine changes little; with more they are the
clock's. The time of FedFA's layers alone is that of their forward and backward passes on features of each stage's shape
in the type that the step has, when they change every batch, times the probability that they do.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks import frame
from benchmarks.performance.augmentation import now
from benchmarks.performance.made_volumes import AS_MEASURED, hippocampus_sites
from benchmarks.performance.training_step import Party
from fedshift.federation.resolve import resolve
from fedshift.federation.site import local_training
from fedshift.methods.fedfa import Config, FeatureAugmentation
from fedshift.schema.job import JobSpec
from fedshift.schema.task import Precision
from fedshift.tasks.kinds import build_task
from fedshift.tasks.precision import autocast, prepare, settled
from fedshift.tasks.stages import StagedNetwork

CPU = torch.device("cpu")
SITES = ("sim_a", "sim_b")
PLAIN, BF16, LAST = "plain loop, fp32", "plain loop, bf16", "plain loop, bf16 and channels last"
OURS, FEDFA = "fedshift", "fedshift, FedFA"
CASES = 32
"""Of four sites: four volumes for training at each."""


def main() -> None:
    parser = frame.parser(__doc__, steps=3, repeats=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    content: dict[str, Any] = {
        "what": "a step of the hippocampus task in 3D: BasicUNet on 2 patches of 40x56x40",
        "precision": settled("auto", CPU),
        "steps": args.steps,
    }
    alone = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    with tempfile.TemporaryDirectory() as scratch, alone as pool:
        root = Path(scratch)
        data = hippocampus_sites(root, cases=CASES)
        for threads in args.threads:
            torch.set_num_threads(threads)
            content[f"{threads} thread{'s' * (threads > 1)}"] = measured(pool, data, root / str(threads), threads, args)
    print(json.dumps(content, indent=1))
    frame.write_measured("step_3d", content)


def measured(pool: Executor, data: Path, folder: Path, threads: int, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds a step, and ratios within each repeat."""
    jobs = {
        name: step_job(methods, "auto", args.steps, threads) for name, methods in ((OURS, "fedavg"), (FEDFA, "fedfa"))
    }
    jobs[f"{OURS} fp32"] = step_job("fedavg", "fp32", args.steps, threads)
    parties = {name: Party(job, data, folder / name, now=now) for name, job in jobs.items()}
    measures: dict[str, Callable[[], float]] = {
        **{kind: plain(pool, kind, args.steps) for kind in (PLAIN, BF16, LAST)},
        **{name: party.seconds_a_step for name, party in parties.items()},
        "FFA layers": ffa_layers(jobs[FEDFA], args.steps),
    }
    for measure in measures.values():
        measure()  # the first pass of a shape prepares convolutions
    seconds = frame.in_turn(measures, args.repeats)

    def ratios(a: str, b: str) -> dict[str, Any]:
        return frame.ratios(seconds[a], seconds[b])

    return {
        "seconds_a_step": seconds,
        "times_as_fast_as_the_plain_loop": {name: ratios(PLAIN, name) for name in (BF16, LAST, *parties)},
        "FedFA to FedAvg": ratios(FEDFA, OURS),
        "share_of_FFA_layers": ratios("FFA layers", OURS),
    }


def step_job(methods: str, precision: str, steps: int, threads: int) -> JobSpec:
    """The hippocampus task with MONAI's ``BasicUNet``."""
    options = [f"schedule.precision={precision}", f"schedule.local_steps={steps}", f"schedule.threads={threads}"]
    return resolve("hippocampus", methods, sites=SITES, options=[*AS_MEASURED, *options])


def plain(pool: Executor, kind: str, steps: int) -> Callable[[], float]:
    """Seconds a step of a loop that is written by hand, in a process of its own without fedshift's settings."""
    return lambda: pool.submit(plain_seconds, kind, steps, torch.get_num_threads()).result()


def plain_seconds(kind: str, steps: int, threads: int) -> float:
    """The measure of `plain`, in that process."""
    torch.set_num_threads(threads)
    return seconds(plain_step(kind), steps)


@functools.cache
def plain_step(kind: str) -> Callable[[], None]:
    """A step of the hand-written loop."""
    job = step_job("fedavg", "auto", 1, 1)
    task, layout = build_task(job), torch.channels_last_3d if kind == LAST else torch.contiguous_format
    net = task.network().to(memory_format=layout).train()  # type: ignore[call-overload]
    optimizer = local_training.make_optimizer(net, job.task.optimizer)
    x, y = batch(job, net)
    precision: Precision = "fp32" if kind == PLAIN else "bf16"

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, CPU):
            logits = net(x.contiguous(memory_format=layout))
        task.loss(logits, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def batch(job: JobSpec, net: nn.Module) -> tuple[Tensor, Tensor]:
    """Noise, and labels that mean nothing."""
    rng = torch.Generator().manual_seed(0)
    size, spatial = job.task.schedule.batch_size, build_task(job).spatial
    x = torch.randn(size, cast(StagedNetwork, net).in_channels, *spatial, generator=rng)
    return x, torch.randint(len(job.task.classes), (size, *spatial), generator=rng)


def ffa_layers(job: JobSpec, steps: int) -> Callable[[], float]:
    """Seconds a step of FedFA's layers, forward and backward."""
    config = Config.model_validate(job.methods["fedfa"])
    context = SimpleNamespace(rng=lambda purpose: torch.Generator().manual_seed(0), run=SimpleNamespace(replay=False))
    always = config.model_copy(update={"p": 1.0})
    net = prepare(build_task(job).network(), "auto", CPU).train()
    stages = cast(StagedNetwork, net).stages
    features_of: dict[int, Tensor] = {}
    handles = [stage.hook(kept(features_of, number)) for number, stage in enumerate(stages)]
    with autocast("auto", CPU):
        net(batch(job, net)[0])
    for handle in handles:
        handle.remove()
    layers = [FeatureAugmentation(n, stage.channels, net, always, cast(Any, context)) for n, stage in enumerate(stages)]

    def step() -> None:
        for number, layer in enumerate(layers):
            features = features_of[number].requires_grad_()
            layer(features).backward(torch.ones_like(features))  # type: ignore[no-untyped-call]
            features.grad = None

    return lambda: config.p * seconds(step, steps)


def kept(features_of: dict[int, Tensor], number: int) -> Callable[[Tensor], Tensor]:
    """A hook of a stage that keeps its features."""

    def keep(features: Tensor) -> Tensor:
        features_of[number] = features.detach().clone()
        return features

    return keep


def seconds(step: Callable[[], None], steps: int) -> float:
    """Of one, on average."""
    started = now()
    for _ in range(steps):
        step()
    return (now() - started) / steps


if __name__ == "__main__":
    main()
