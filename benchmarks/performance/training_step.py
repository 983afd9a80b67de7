"""What a training step costs: against the papers' loop, against the processor's limit, and with methods and data.

    OMP_NUM_THREADS=1 python -m benchmarks.performance.training_step

The U-Net of FedFA (32 features), batches of 16 slices of 96x96, one thread. The papers' loop is float32 with channels
first, as their code runs it, on random images that lie ready, in a process of its own, because fedshift sets the
allocator of its process (`fedshift.tasks.precision`). fedshift's steps are those of a site in round 1: reading
and augmenting the batch, the methods' hooks, gradients, Adam. The limit is a product of two large matrices; a step's
floating-point operations are counted by PyTorch. Evaluation is a site's scoring of the received model on its
validation part, against a round of one epoch.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import frame
from data_prep.phantom import make_phantom
from fedshift.federation.resolve import resolve
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site import local_training
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.methods.base import Run
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, Update
from fedshift.tasks.kinds import build_task
from fedshift.tasks.losses import ce_dice_loss
from fedshift.tasks.networks.unet import UNet

BATCH, MATRIX = 16, 96
SITES = ("BIDMC", "HK")
SIDE = 2048
"""Of the matrices."""


def main() -> None:
    args = frame.parser(__doc__, steps=6, repeats=5).parse_args()
    torch.set_num_threads(1)
    alone = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    with tempfile.TemporaryDirectory() as scratch, alone as pool:
        root = Path(scratch)
        make_phantom(root / "data", cases=6, matrices=(MATRIX,))
        parties = {
            name: Party(job, root / "data" / "prostate", root / name)
            for name, job in {
                "fedshift fp32": step_job("fedavg", "fp32", args.steps),
                "fedshift bf16": step_job("fedavg", "bf16", args.steps),
                "fedshift bf16, FedFA": step_job("fedfa", "bf16", args.steps),
                "fedshift bf16, FedRDN": step_job("fedrdn", "bf16", args.steps),
                "fedshift bf16, FedFA+FedRDN": step_job("fedfa+fedrdn", "bf16", args.steps),
            }.items()
        }
        measures: dict[str, Callable[[], float]] = {
            "papers' loop": lambda: pool.submit(seconds_of_papers_step, args.steps).result()
        }
        measures |= {name: party.seconds_a_step for name, party in parties.items()}
        steps = frame.in_turn(measures, args.repeats)
        limits = frame.in_turn({name: lambda d=kind: product(d) for name, kind in KINDS.items()}, args.repeats)
        shares = frame.in_turn(
            {
                "evaluation": parties["fedshift bf16"].evaluation_of_an_epoch,
                "input pipeline": parties["fedshift bf16"].input_of_an_epoch,
            },
            args.repeats,
        )
    flops = operations(papers_step())
    medians = {name: values["median"] for name, values in steps.items()}
    content = {
        "what": f"a step of the U-Net with 32 features on {BATCH} slices of {MATRIX}x{MATRIX}, one thread",
        "steps": args.steps,
        "seconds_a_step": steps,
        "times_faster_than_papers_loop": {
            name: round(medians["papers' loop"] / value, 2) for name, value in medians.items()
        },
        "share_of_a_step": {
            name: round(medians[f"fedshift bf16, {name}"] / medians["fedshift bf16"] - 1, 4)
            for name in ("FedFA", "FedRDN", "FedFA+FedRDN")
        },
        "share_of_an_epoch": shares,
        "gigaflop_a_step": round(flops / 1e9, 1),
        "gigaflop_a_second_of_a_matrix_product": limits,
        "share_of_the_limit": {
            name: round(flops / 1e9 / medians[name] / limits[kind]["median"], 2)
            for name, kind in {"papers' loop": "fp32", "fedshift fp32": "fp32", "fedshift bf16": "bf16"}.items()
        },
    }
    print(json.dumps(content, indent=1))
    frame.write_measured("training_step", content)


def step_job(methods: str, precision: str, steps: int) -> JobSpec:
    """The prostate task at the papers' width."""
    options = [f"schedule.precision={precision}", f"schedule.local_steps={steps}", f"schedule.batch_size={BATCH}"]
    options += [f"data.matrix={MATRIX}", "network.options.features=32", "data.augmentation=rot90-flip"]
    return resolve("prostate", methods, protocol="quick", sites=SITES, options=options)


class Party:
    """A site in round 1 of a job."""

    def __init__(
        self,
        job: JobSpec,
        data: Path,
        folder: Path,
        *,
        device: str = "auto",
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """The statistics round is done. ``now``: the clock of `seconds_a_step`."""
        self._job, self._now = job, now
        options = SiteOptions(folder / "sites", device=device)
        sites = [Site(job, name, data / name, options) for name in job.task.sites]
        server = Coordinator(job, folder / "server")
        server.open(0)
        for site in sites:
            server.register(site.info())
            assert server.accept(site.statistics())
        server.close()
        self.site, self._first = sites[0], server.open(1)
        self._data = build_task(job).open(data / self.site.name, self.site.name)

    def seconds_a_step(self) -> float:
        """Of a round's training, with what a site does before and after it."""
        started = self._now()
        update = self.train()
        return (self._now() - started) / update.n_steps

    def train(self) -> Update:
        """A round's training."""
        return self.site.train(self._first)

    def evaluation_of_an_epoch(self) -> float:
        """Scoring the received model on the validation part, as a share of an epoch of training."""
        received = Broadcast(2, 1, self._first.weights, self._first.arrays)
        started = time.perf_counter()
        with self.site.loaded(received) as model:
            model.scores("val")
        return (time.perf_counter() - started) / (self.seconds_a_step() * self._steps_of_an_epoch())

    def input_of_an_epoch(self) -> float:
        """Reading, shuffling and augmenting batches, as a share of an epoch of training."""
        started = time.perf_counter()
        steps = sum(1 for _ in self._batches())
        return (time.perf_counter() - started) / (self.seconds_a_step() * steps)

    def _steps_of_an_epoch(self) -> int:
        return sum(1 for _ in self._batches())

    def _batches(self) -> Iterator[object]:
        task = self._job.task
        schedule = task.schedule.model_copy(update={"local_steps": None, "local_epochs": 1})
        run = Run(0, self.site.name, 1, 1, task.sites, self.site.network, ce_dice_loss, len(task.classes))
        return local_training.batches(self._data, run, schedule)


def seconds_of_papers_step(steps: int) -> float:
    """Of a step, in the process that this is called in."""
    torch.set_num_threads(1)
    return seconds(papers_step(), steps)


@functools.cache
def papers_step() -> Callable[[], None]:
    """One step as the papers' code takes it."""
    torch.manual_seed(0)
    net = UNet().train()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    x, y = torch.rand(BATCH, 3, MATRIX, MATRIX), (torch.rand(BATCH, MATRIX, MATRIX) > 0.9).long()

    def step() -> None:
        optimizer.zero_grad()
        ce_dice_loss(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def seconds(work: Callable[[], object], times: int) -> float:
    """Of one, on average."""
    started = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - started) / times


KINDS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def product(kind: torch.dtype) -> float:
    """Billions of floating-point operations a second."""
    a, b, c = (torch.ones(SIDE, SIDE, dtype=kind) for _ in range(3))
    return 2 * SIDE**3 / seconds(lambda: torch.mm(a, b, out=c), 4) / 1e9


def operations(work: Callable[[], None]) -> int:
    """Floating-point operations of the convolutions and products of a step."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


if __name__ == "__main__":
    main()
