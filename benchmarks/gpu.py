"""A training step on a GPU: a site's, against a plain loop over the same network, with input and methods.

    python -m benchmarks.performance.gpu_step

Three tasks: FedFA's U-Net (32 features) on 16 slices of 96x96, the prostate's recipe in 2D, and the hippocampus' in 3D.
The plain loops have the task's network, loss and optimiser on a batch of noise that lies on the GPU: as torch comes
(its convolutions take TF32), in float32 throughout, and in bf16 with features contiguous and in channels last. A site's
step is that of round 1, with reading and augmenting batches, the methods' hooks, gradients, clipping, the optimiser,
and its share of what a round does before and after. Times are the clock's once the GPU has ended; memory is the
largest that torch had allocated on it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from benchmarks import frame
from benchmarks.performance.made_volumes import hippocampus_sites
from benchmarks.performance.training_step import Party, step_job
from data_prep.phantom import make_phantom
from fedshift.federation.footprint import noise
from fedshift.federation.resolve import resolve
from fedshift.federation.site import local_training
from fedshift.schema.job import JobSpec, Precision
from fedshift.tasks.device import choose_device, device_name
from fedshift.tasks.kinds import build_task
from fedshift.tasks.precision import autocast

AS_TORCH, FP32, BF16, LAST = "plain, TF32", "plain, fp32", "plain, bf16", "plain, bf16 and channels last"
OURS, OURS_FP32, FEDFA = "fedshift, bf16", "fedshift, fp32", "fedshift, bf16, FedFA"


def main() -> None:
    args = frame.parser(__doc__, steps=20, repeats=5).parse_args()
    device = choose_device("auto")
    torch.set_num_threads(1)
    content: dict[str, Any] = {"gpu": device_name(device), "steps": args.steps, "tasks": {}}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        make_phantom(root / "phantom", cases=6, matrices=(96, 128))
        prostate, hippocampus = root / "phantom" / "prostate", hippocampus_sites(root, cases=32)
        tasks: dict[str, tuple[Path, Callable[[str, str], JobSpec]]] = {
            "FedFA's U-Net": (prostate, lambda methods, kind: step_job(methods, kind, args.steps)),
            "prostate": (
                prostate,
                lambda methods, kind: recipe("prostate", ("BIDMC", "HK"), methods, kind, args.steps),
            ),
            "hippocampus": (
                hippocampus,
                lambda methods, kind: recipe("hippocampus", ("sim_a", "sim_b"), methods, kind, args.steps),
            ),
        }
        for name, (data, make) in tasks.items():
            content["tasks"][name] = measured(make, data, root / name, args.steps, args.repeats, device)
            frame.write_measured("gpu_step", content)  # so that a run cut short is not lost


def recipe(task: str, sites: tuple[str, ...], methods: str, precision: str, steps: int) -> JobSpec:
    """A task as it comes."""
    options = [f"schedule.precision={precision}", f"schedule.local_steps={steps}"]
    return resolve(task, methods, sites=sites, options=options)


def measured(
    make: Callable[[str, str], JobSpec], data: Path, folder: Path, steps: int, repeats: int, device: torch.device
) -> dict[str, Any]:
    """Seconds a step, ratios within each repeat, the share of reading and augmenting, memory."""
    jobs = {OURS: make("fedavg", "bf16"), OURS_FP32: make("fedavg", "fp32"), FEDFA: make("fedfa", "bf16")}
    parties = {name: Party(job, data, folder / name, now=lambda: clock(device)) for name, job in jobs.items()}
    measures: dict[str, Callable[[], float]] = {
        kind: plain(jobs[OURS], kind, steps, device) for kind in (AS_TORCH, FP32, BF16, LAST)
    }
    measures |= {name: party.seconds_a_step for name, party in parties.items()}
    memory = {name: megabytes(measure, device) for name, measure in measures.items()}  # and what comes first is slow
    found = frame.in_turn(measures, repeats)
    return {
        "seconds_a_step": found,
        "times_as_fast_as_plain_fp32": {name: frame.ratios(found[FP32], found[name]) for name in measures},
        "times_as_fast_as_plain_TF32": {name: frame.ratios(found[AS_TORCH], found[name]) for name in measures},
        "FedFA to FedAvg": frame.ratios(found[FEDFA], found[OURS]),
        "input_of_an_epoch": frame.in_turn({OURS: parties[OURS].input_of_an_epoch}, repeats)[OURS],
        "megabytes": memory,
    }


def plain(job: JobSpec, kind: str, steps: int, device: torch.device) -> Callable[[], float]:
    """Seconds a step of a loop that is written by hand."""
    task = build_task(job)
    net = task.network()
    x, y = (one.to(device) for one in noise(net, task, job.task.schedule.batch_size))
    last = torch.channels_last_3d if x.dim() == 5 else torch.channels_last
    layout = last if kind == LAST else torch.contiguous_format
    net = net.to(device, memory_format=layout).train()  # type: ignore[call-overload]
    optimizer = local_training.make_optimizer(net, job.task.optimizer)
    precision: Precision = "bf16" if kind in (BF16, LAST) else "fp32"
    x = x.contiguous(memory_format=layout)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, device):
            logits = net(x)
        task.loss(logits, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def measure() -> float:
        with as_torch_comes(tf32=kind == AS_TORCH):
            started = clock(device)
            for _ in range(steps):
                step()
            return (clock(device) - started) / steps

    return measure


def as_torch_comes(*, tf32: bool) -> AbstractContextManager[None]:
    """Settings of cuDNN without `fedshift.tasks.precision.prepare`."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=tf32)


def megabytes(measure: Callable[[], float], device: torch.device) -> int:
    """The largest memory that torch had allocated on the GPU in a measurement, in MB."""
    if device.type != "cuda":
        measure()
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    measure()
    return round((torch.cuda.max_memory_allocated(device) - before) / 1e6)


def clock(device: torch.device) -> float:
    """Seconds, once all work of the GPU has ended."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


if __name__ == "__main__":
    main()
