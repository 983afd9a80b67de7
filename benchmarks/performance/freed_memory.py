"""A training step with the memory of freed features kept, and returned to the system as glibc does by itself.

    python -m benchmarks.performance.freed_memory

The networks of five tasks with the tasks' own batches, losses and optimisers, in float32 on noise that lies ready, one
thread. Each way has a process of its own, as it is a setting of the process (`fedshift.tasks.allocator`), and both run
in turn. Times are the processor's, which other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

import torch

from benchmarks.performance import record
from benchmarks.performance.server_memory import resident
from fedshift.federation.footprint import noise
from fedshift.federation.resolve import resolve
from fedshift.federation.site import local_training
from fedshift.tasks.allocator import keep_freed_memory
from fedshift.tasks.kinds import build_task

KEPT, RETURNED = "kept", "returned"
TASKS = {
    "prostate, U-Net, 16 slices of 96x96": ("prostate", "quick"),
    "prostate, BasicUNet, 16 slices of 128x128": ("prostate", None),
    "hippocampus, BasicUNet, 2 patches of 40x56x40": ("hippocampus", None),
    "digits, CNN, 64 pictures of 32x32": ("digits", None),
    "Office-Caltech 10, AlexNet, 32 pictures of 256x256": ("office_caltech", None),
}


def main() -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    load = record.load()
    content: dict[str, object] = {
        "what": "processor seconds of a training step in float32, one thread",
        "steps": args.steps,
    }
    for name in TASKS:
        content[name] = measured(name, args.steps, args.repeats)
    print(json.dumps(content, indent=1))
    print(record.write("freed_memory", content, load=load))


def measured(name: str, steps: int, repeats: int) -> dict[str, Any]:
    """A task both ways, and how many times as fast it is where memory is kept."""
    start = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(1, mp_context=start, initializer=set_up, initargs=(True,)) as kept,
        ProcessPoolExecutor(1, mp_context=start, initializer=set_up, initargs=(False,)) as returned,
    ):
        seconds = record.in_turn({KEPT: measure(kept, name, steps), RETURNED: measure(returned, name, steps)}, repeats)
        peaks = {KEPT: kept.submit(peak).result(), RETURNED: returned.submit(peak).result()}
    pairs = zip(seconds[RETURNED]["repeats"], seconds[KEPT]["repeats"], strict=True)
    times = record.spread([before / after for before, after in pairs])
    return {"seconds_a_step": seconds, "times_as_fast": times, "peak_megabytes": peaks}


def set_up(keep: bool) -> None:
    """One thread, and whether freed memory is kept."""
    torch.set_num_threads(1)
    if keep:
        keep_freed_memory(torch.device("cpu"))


def measure(pool: Executor, name: str, steps: int) -> Callable[[], float]:
    """Processor seconds a step, in the process of a pool."""
    return lambda: pool.submit(seconds_a_step, name, steps).result()


def seconds_a_step(name: str, steps: int) -> float:
    """The measure of `measure`, after a step that counts for nothing."""
    step = training_step(name)
    step()
    started = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - started) / steps


@functools.cache
def training_step(name: str) -> Callable[[], None]:
    """A step of a task."""
    task_name, protocol = TASKS[name]
    job = resolve(task_name, "fedavg", protocol=protocol, options=["schedule.precision=fp32"])
    task = build_task(job)
    net = task.network().train()
    optimizer = local_training.make_optimizer(net, job.task.optimizer)
    x, y = noise(net, task, job.task.schedule.batch_size)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        task.loss(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def peak() -> int:
    """Largest memory of this process so far, in megabytes. (What `getrusage` tells includes the parent's.)"""
    return round(resident(os.getpid(), "VmHWM") / 1e6)


if __name__ == "__main__":
    main()
