"""A training step with the memory of freed features returned to the system, as glibc does by itself, kept, and kept
with large tensors in huge pages, as fedshift has it.

    python -m benchmarks.performance.freed_memory

The networks of five tasks with the tasks' own batches, losses and optimisers, in float32 and in bf16, on noise that
lies ready, one thread. Each way has a process of its own, as it is a setting of the process
(`fedshift.tasks.precision`, ``fedshift/__init__.py``), and all run in turn. Times are the processor's, which other work
on the machine changes little.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks import frame
from benchmarks.performance.made_volumes import AS_MEASURED
from benchmarks.performance.server_memory import resident
from fedshift.federation.footprint import noise
from fedshift.federation.resolve import resolve
from fedshift.federation.site import local_training
from fedshift.schema.task import Precision
from fedshift.tasks.kinds import build_task
from fedshift.tasks.precision import autocast, keep_freed_memory, prepare

CPU = torch.device("cpu")
RETURNED, KEPT, HUGE = WAYS = ("returned", "kept", "kept in huge pages")
SWITCH = "THP_MEM_ALLOC_ENABLE"
PAPERS = ("network.options={hidden: 4096}",)
TASKS: dict[str, tuple[str, str | None, tuple[str, ...]]] = {  # the task, its protocol, and what else differs
    "prostate, U-Net, 16 slices of 96x96": ("prostate", "quick", ()),
    "prostate, BasicUNet, 16 slices of 128x128": ("prostate", None, ()),
    "hippocampus, BasicUNet, 2 patches of 40x56x40": ("hippocampus", None, AS_MEASURED),
    "digits, CNN, 64 pictures of 32x32": ("digits", None, ()),
    "Office-Caltech 10, the papers' AlexNet, 32 pictures of 256x256": ("office_caltech", None, PAPERS),
}
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")


def main() -> None:
    args = frame.parser(__doc__, steps=5, repeats=5).parse_args()
    content: dict[str, object] = {
        "what": "processor seconds of a training step, one thread",
        "steps": args.steps,
        "huge_pages": Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="utf-8").strip(),
        "tasks": {
            name: {precision: measured(name, precision, args.steps, args.repeats) for precision in PRECISIONS}
            for name in TASKS
        },
    }
    print(json.dumps(content, indent=1))
    frame.write_measured("freed_memory", content)


def measured(name: str, precision: Precision, steps: int, repeats: int) -> dict[str, Any]:
    """A task in all ways, and how many times as fast as with returned memory it is."""
    with ExitStack() as stack:
        pools = {way: stack.enter_context(process(way)) for way in WAYS}
        seconds = frame.in_turn({way: measure(pool, name, precision, steps) for way, pool in pools.items()}, repeats)
        peaks = {way: pool.submit(peak).result() for way, pool in pools.items()}
    return {
        "seconds_a_step": seconds,
        "times_as_fast": {way: frame.ratios(seconds[RETURNED], seconds[way]) for way in (KEPT, HUGE)},
        "peak_megabytes": peaks,
    }


def process(way: str) -> ProcessPoolExecutor:
    """A process that takes memory in one of the ways."""
    os.environ[SWITCH] = "1" if way == HUGE else "0"
    start = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, mp_context=start, initializer=set_up, initargs=(way != RETURNED,))
    pool.submit(peak).result()  # starts it, with this environment
    return pool


def set_up(keep: bool) -> None:
    """One thread, and whether freed memory is kept."""
    torch.set_num_threads(1)
    if keep:
        keep_freed_memory(CPU)


def measure(pool: Executor, name: str, precision: Precision, steps: int) -> Callable[[], float]:
    """Processor seconds a step, in the process of a pool."""
    return lambda: pool.submit(seconds_a_step, name, precision, steps).result()


def seconds_a_step(name: str, precision: Precision, steps: int) -> float:
    """The measure of `measure`, after a step that counts for nothing."""
    step = training_step(name, precision)
    step()
    started = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - started) / steps


@functools.cache
def training_step(name: str, precision: Precision) -> Callable[[], None]:
    """A step of a task."""
    task_name, protocol, others = TASKS[name]
    job = resolve(task_name, "fedavg", protocol=protocol, options=[f"schedule.precision={precision}", *others])
    task = build_task(job)
    net = in_layout(task.network(), precision).train()
    optimizer = local_training.make_optimizer(net, job.task.optimizer)
    x, y = noise(net, task, job.task.schedule.batch_size)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, CPU):
            logits = net(x)
        task.loss(logits, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def in_layout(net: torch.nn.Module, precision: Precision) -> torch.nn.Module:
    """As `fedshift.tasks.precision.prepare`, which also sets how this process keeps memory."""
    with mock.patch("fedshift.tasks.precision.keep_freed_memory"):
        return prepare(net, precision, CPU)


def peak() -> int:
    """Largest memory of this process so far, in megabytes. (What `getrusage` tells includes the parent's.)"""
    return round(resident(os.getpid(), "VmHWM") / 1e6)


if __name__ == "__main__":
    main()
