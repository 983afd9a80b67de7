"""What one GPU should make quick, measured in about ten minutes, and written to one file.

    python -m benchmarks.gpu
    python -m benchmarks.gpu --device cpu --steps 1 --repeats 1 --rounds 1 --cases 2 --out gpu.json

The second line goes the same way on a processor, whose figures mean nothing. What is measured, each part beside what it
is compared with, in turn:

- a step of a site (FedFA's U-Net on 16 slices of 96x96, the prostate's recipe in 2D, the hippocampus' in 3D) beside a
  plain loop over the same network on a batch of noise on the device; without CUDA graphs; and with FedFA;
- an epoch of the prostate's recipe with ``strong`` augmentation beside the same epoch on batches that are ready, and
  with volumes in the host's memory and in mapped files;
- the prostate's recipe at four sites (the phantom), from the start of the command to the report;
- a site that runs out of memory: the round's result with the batch in parts;
- whether two runs, and runs with and without CUDA graphs, have the same bits.

Parts that fail are recorded with their error, and the others go on. Times are the clock's once the device has ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import frame
from benchmarks.performance.made_volumes import hippocampus_sites
from benchmarks.performance.plain_step import plain_step
from benchmarks.performance.training_step import Party, step_job
from data_prep.phantom import make_phantom
from fedshift.data.samples import Samples
from fedshift.federation.footprint import noise
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.schema.job import JobSpec
from fedshift.schema.results import LAST
from fedshift.schema.task import Precision
from fedshift.tasks.captured import SWITCH
from fedshift.tasks.device import choose_device, device_name
from fedshift.tasks.kinds import build_task

SITES = ("BIDMC", "HK", "BMC", "RUNMC")
PLAIN_FP32, PLAIN, PLAIN_LAST = "plain, fp32", "plain, bf16", "plain, bf16 and channels last"
OURS, EAGER, FEDFA = "fedshift, bf16", "fedshift, bf16, without CUDA graphs", "fedshift, bf16, FedFA"


@dataclass(frozen=True)
class Bench:
    """Where and how much is measured."""

    root: Path
    device: torch.device
    steps: int
    repeats: int
    rounds: int
    hippocampus: Path

    @property
    def prostate(self) -> Path:
        return self.root / "phantom" / "prostate"

    def party(self, job: JobSpec, data: Path, name: str) -> Party:
        return Party(job, data, self.root / name, device=str(self.device), now=self.clock)

    def clock(self) -> float:
        """Seconds, once all work of the device has ended."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def main() -> None:
    parser = frame.parser(__doc__, steps=20, repeats=5, rounds=40, cases=8)
    parser.add_argument("--device", default="auto", help="auto, cuda:0 or cpu")
    parser.add_argument("--out", type=Path, default=frame.PERFORMANCE / "gpu.json", help="the file to write")
    args = parser.parse_args()
    device = choose_device(args.device)
    torch.set_num_threads(1)
    content: dict[str, Any] = {
        "command": frame.command("benchmarks.gpu"),
        **frame.made_with("torch", "monai", "nvflare"),
        "device": device_name(device),
        "steps": args.steps,
    }
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        hippocampus = hippocampus_sites(root, cases=4 * args.cases)
        bench = Bench(root, device, args.steps, args.repeats, args.rounds, hippocampus)
        make_phantom(root / "phantom", sites=SITES, cases=args.cases, matrices=(96, 128))
        for name, measure in PARTS.items():
            started = time.perf_counter()
            try:
                measured = measure(bench)
            except Exception as error:  # recorded, so that the time on a card is not lost for the other parts
                measured = {"failed": f"{type(error).__name__}: {error}"}
            content[name] = {"took_s": round(time.perf_counter() - started, 1), **measured}
            print(name, json.dumps(content[name])[:600], flush=True)
            frame.write(args.out, content)
    failed = [name for name in PARTS if "failed" in content[name]]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


# --- a step -------------------------------------------------------------------------------------------


def a_step(bench: Bench) -> dict[str, Any]:
    """Seconds a step, ratios within each repeat, and memory."""
    tasks: dict[str, tuple[Path, Callable[[str], JobSpec]]] = {
        "FedFA's U-Net": (bench.prostate, lambda methods: step_job(methods, "bf16", bench.steps)),
        "prostate": (bench.prostate, lambda methods: recipe("prostate", SITES[:2], methods, bench.steps)),
        "hippocampus": (
            bench.hippocampus,
            lambda methods: recipe("hippocampus", ("sim_a", "sim_b"), methods, bench.steps),
        ),
    }
    return {name: one_task(bench, name, data, make) for name, (data, make) in tasks.items()}


def recipe(task: str, sites: tuple[str, ...], methods: str, steps: int, *options: str) -> JobSpec:
    """A task as it comes, in bf16."""
    chosen = ["schedule.precision=bf16", "schedule.threads=1", f"schedule.local_steps={steps}", *options]
    return resolve(task, methods, sites=sites, options=chosen)


def one_task(bench: Bench, name: str, data: Path, make: Callable[[str], JobSpec]) -> dict[str, Any]:
    job = make("fedavg")
    parties = {OURS: bench.party(job, data, f"{name} ours"), FEDFA: bench.party(make("fedfa"), data, f"{name} fedfa")}
    with without_graphs():
        parties[EAGER] = bench.party(job, data, f"{name} eager")
    measures: dict[str, Callable[[], float]] = {
        kind: plain(bench, job, kind) for kind in (PLAIN_FP32, PLAIN, PLAIN_LAST)
    }
    measures |= {kind: party.seconds_a_step for kind, party in parties.items()}
    memory = {kind: megabytes(measure, bench.device) for kind, measure in measures.items()}  # the first pass is slow
    seconds = frame.in_turn(measures, bench.repeats)
    return {
        "seconds_a_step": seconds,
        "ours_to_plain_bf16": frame.ratios(seconds[OURS], seconds[PLAIN]),
        "ours_to_without_graphs": frame.ratios(seconds[OURS], seconds[EAGER]),
        "FedFA_to_ours": frame.ratios(seconds[FEDFA], seconds[OURS]),
        "captured_parts": {kind: captured_parts(party) for kind, party in parties.items()},
        "megabytes": memory,
    }


def plain(bench: Bench, job: JobSpec, kind: str) -> Callable[[], float]:
    """Seconds a step of a loop that is written by hand."""
    task = build_task(job)
    net = task.network()
    x, y = (tensor.to(bench.device) for tensor in noise(net, task, job.task.schedule.batch_size))
    last = torch.channels_last_3d if x.dim() == 5 else torch.channels_last
    layout = last if kind == PLAIN_LAST else torch.contiguous_format
    net = net.to(bench.device, memory_format=layout).train()  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    precision: Precision = "fp32" if kind == PLAIN_FP32 else "bf16"
    step = plain_step(task, net, optimizer, x.contiguous(memory_format=layout), y, precision=precision)

    def measure() -> float:
        with as_torch_comes():
            started = bench.clock()
            for _ in range(bench.steps):
                step()
            return (bench.clock() - started) / bench.steps

    return measure


def as_torch_comes() -> AbstractContextManager[None]:
    """Settings of cuDNN without `fedshift.tasks.precision.prepare`."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=False)


def captured_parts(party: Party) -> int:
    """How many parts of the network are CUDA graphs."""
    captured = party.site.job_network.captured
    return 0 if captured is None else len(captured.parts)


@contextmanager
def without_graphs() -> Iterator[None]:
    os.environ[SWITCH] = "off"
    try:
        yield
    finally:
        del os.environ[SWITCH]


def megabytes(measure: Callable[[], float], device: torch.device) -> int:
    """The largest memory that torch had allocated on the GPU in a measurement, in MB."""
    if device.type != "cuda":
        measure()
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    measure()
    return round((torch.cuda.max_memory_allocated(device) - before) / 1e6)


# --- an epoch -----------------------------------------------------------------------------------------


class Ready(Samples):
    """A site's samples whose batches are all the first one, on the device."""

    def __init__(self, samples: Samples, device: torch.device) -> None:
        self._samples, self._device = samples, device
        self._batch: tuple[Tensor, Tensor] | None = None

    @property
    def n_train(self) -> int:
        return self._samples.n_train

    def train_samples(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        return self._samples.train_samples(index)

    def train_batch(self, index: np.ndarray, *, seeds: Tensor) -> tuple[Tensor, Tensor]:
        if self._batch is None:
            x, y = self._samples.train_batch(index, seeds=seeds)
            self._batch = x.to(self._device), y.to(self._device)
        return self._batch


def an_epoch(bench: Bench) -> dict[str, Any]:
    """Seconds of a step of the prostate's recipe, by where its batches come from."""
    parties = {
        f"data.cache={place}": bench.party(
            recipe("prostate", SITES[:2], "fedavg", bench.steps, f"data.cache={place}"), bench.prostate, place
        )
        for place in ("device", "host", "disk")
    }
    ready = bench.party(recipe("prostate", SITES[:2], "fedavg", bench.steps), bench.prostate, "ready")
    ready.site._training = Ready(ready.site._training, bench.device)
    measures = {name: party.seconds_a_step for name, party in {**parties, "ready batches": ready}.items()}
    for measure in measures.values():
        measure()
    seconds = frame.in_turn(measures, bench.repeats)
    to_ready = {name: frame.ratios(seconds[name], seconds["ready batches"]) for name in parties}
    return {"seconds_a_step": seconds, "to_ready_batches": to_ready}


# --- a run --------------------------------------------------------------------------------------------


def a_run(bench: Bench) -> dict[str, Any]:
    """Seconds of ``fedshift run`` with its report, and what of it was not training."""
    job, folder = bench.root / "job", bench.root / "run"
    environment = os.environ | {"FEDSHIFT_DATA": str(bench.root / "phantom")}
    commands = (
        [
            *("job", "fedavg", "prostate", "--sites", ",".join(SITES), "--name", "job", "--out", str(bench.root)),
            *("--set", f"schedule.rounds={bench.rounds}"),
        ],
        ["run", str(job), "--workspace", str(folder), "--device", str(bench.device)],
        ["report", str(folder)],
    )
    seconds = {}
    for command in commands:
        started = time.perf_counter()
        words = [str(Path(sys.executable).with_name("fedshift")), *command]
        result = subprocess.run(words, cwd=bench.root, env=environment, capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"fedshift {command[0]}: {result.stderr[-800:]}")
        seconds[command[0]] = round(time.perf_counter() - started, 1)
    minutes = round(sum(seconds.values()) / 60, 2)
    return {"rounds": bench.rounds, "sites": len(SITES), "seconds": seconds, "minutes": minutes}


# --- bits ---------------------------------------------------------------------------------------------


def bits(bench: Bench) -> dict[str, Any]:
    """Whether final weights are equal bit for bit: of two runs, and with and without CUDA graphs."""
    same = {}
    for methods in ("fedavg", "fedfa"):
        job = recipe("prostate", SITES[:2], methods, 3, "schedule.rounds=2")
        first, again = weights(bench, job, f"{methods} first"), weights(bench, job, f"{methods} again")
        with without_graphs():
            eager = weights(bench, job, f"{methods} eager")
        same[methods] = {"two runs": equal(first, again), "with and without CUDA graphs": equal(first, eager)}
    return same


def weights(bench: Bench, job: JobSpec, name: str) -> dict[str, Tensor]:
    """The final weights of a run in one process."""
    data = {site: bench.prostate / site for site in job.task.sites}
    run_in_process(job, data, bench.root / name, device=str(bench.device))
    content: dict[str, Tensor] = read_model_file(bench.root / name / LAST)["weights"]
    return content


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


# --- out of memory ------------------------------------------------------------------------------------


def out_of_memory(bench: Bench) -> dict[str, Any]:
    """A round of the prostate's recipe with too little of the GPU's memory for a batch: in how many parts it ends."""
    if bench.device.type != "cuda":
        return {"not_measured": "a processor's memory is the whole machine's"}
    party = bench.party(recipe("prostate", SITES[:2], "fedavg", bench.steps), bench.prostate, "short of memory")
    needed = megabytes(party.seconds_a_step, bench.device)
    shorter = bench.party(recipe("prostate", SITES[:2], "fedavg", bench.steps), bench.prostate, "shorter of memory")
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(bench.device).total_memory
    available = torch.cuda.memory_reserved(bench.device) + 0.5e6 * needed
    torch.cuda.set_per_process_memory_fraction(available / total, bench.device)
    try:
        update = shorter.train()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, bench.device)
    return {"megabytes_of_a_round": needed, "megabytes_left": round(available / 1e6), "metrics": dict(update.metrics)}


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "step": a_step,
    "epoch": an_epoch,
    "run": a_run,
    "bits": bits,
    "out of memory": out_of_memory,
}

if __name__ == "__main__":
    main()
