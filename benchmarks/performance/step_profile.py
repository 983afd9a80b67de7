"""What limits a training step on a processor: the time of each kind of kernel, and what ``torch.compile`` changes.

    OMP_NUM_THREADS=1 python -m benchmarks.performance.step_profile

A step is forward, loss, backward and optimiser in bf16 on one thread: of the demo (FedFA's U-Net at half its width on
16 slices of 96x96), and of the recipes of the prostate and the hippocampus. Kernels are timed by PyTorch's profiler,
after steps in which memory was got from the system. ``torch.compile`` is that of PyTorch with a C++ compiler, in turn
with the network without; the time that compiling takes is not in the steps.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks import frame
from benchmarks.performance.plain_step import plain_step
from fedshift.federation.footprint import noise
from fedshift.federation.resolve import resolve
from fedshift.federation.site import local_training
from fedshift.schema.job import JobSpec
from fedshift.tasks.kinds import build_task
from fedshift.tasks.precision import prepare

CPU = torch.device("cpu")
WARM_UP = 8
KINDS = {
    "convolutions": ("conv",),
    "norms": ("norm",),
    "activations and pooling": ("relu", "threshold", "pool"),
    "joining and adding features": ("cat", "add", "slice"),
    "casts and copies": ("copy", "to_copy", "clone", "fill", "zero"),
    "optimiser": ("optimizer", "addcdiv", "addcmul", "lerp", "sqrt", "foreach", "adam"),
}
"""Parts of the names of PyTorch's operations; all others are the loss and what is small."""


def main() -> None:
    args = frame.parser(__doc__, steps=6, repeats=5).parse_args()
    torch.set_num_threads(1)
    jobs = {
        "demo": resolve("prostate", "fedavg", protocol="quick", sites=("BIDMC", "HK")),
        "prostate": resolve("prostate", "fedavg", sites=("BIDMC", "HK")),
        "hippocampus": resolve("hippocampus", "fedavg", sites=("sim_a", "sim_b")),
    }
    frame.write_measured("step_profile", {name: measured(job, args.steps, args.repeats) for name, job in jobs.items()})


def measured(job: JobSpec, steps: int, repeats: int) -> dict[str, Any]:
    """Shares of a step's kernels, and seconds with and without ``torch.compile``."""
    torch.compiler.reset()
    plain, compiled = step_of(job), step_of(job, partial(torch.compile, dynamic=False))
    for _ in range(WARM_UP):
        plain()
        compiled()
    seconds = frame.in_turn({"plain": timed(plain, steps), "compiled": timed(compiled, steps)}, repeats)
    return {
        "seconds_a_step": seconds,
        "compiled_to_plain": frame.ratios(seconds["compiled"], seconds["plain"]),
        "share_of_kernels": shares(plain, steps),
    }


def step_of(job: JobSpec, change: Callable[[nn.Module], Any] = lambda net: net) -> Callable[[], None]:
    """A training step on noise."""
    task = build_task(job)
    net = prepare(task.network(), "bf16", CPU).train()
    forward, optimizer = change(net), local_training.make_optimizer(net, job.task.optimizer)
    x, y = noise(net, task, job.task.schedule.batch_size)
    return plain_step(task, forward, optimizer, x, y)


def timed(step: Callable[[], None], steps: int) -> Callable[[], float]:
    """Processor seconds of a step."""

    def measure() -> float:
        started = time.process_time()
        for _ in range(steps):
            step()
        return (time.process_time() - started) / steps

    return measure


def shares(step: Callable[[], None], steps: int) -> dict[str, float]:
    """Each kind's part of the time in kernels."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(steps):
            step()
    total: Counter[str] = Counter()
    for event in profiled.key_averages():
        total[kind_of(event.key)] += event.self_cpu_time_total
    return {kind: round(value / total.total(), 3) for kind, value in total.most_common()}


def kind_of(operation: str) -> str:
    name = operation.lower()
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "loss and the rest")


if __name__ == "__main__":
    main()
