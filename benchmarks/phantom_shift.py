"""Does the phantom's feature shift bite? Models of one site, of all sites pooled, and plain thresholds.

    python benchmarks/phantom_shift.py            # about a quarter of an hour on one core

Every model is the network of the prostate task's protocol quick with its optimiser, loss and precision, and a
momentum of 0.1 in batch norm. It is trained for the same number of steps, either on one site's training cases or on
those of all sites together, and tested on each site's validation and test cases (none of which trained or selected
anything).
The thresholds take an intensity window (low, high) for prostate: the best one of a site's training cases, tried
on all sites, and, as a bound for any of them, the best one of the tested cases themselves.

Writes ``benchmarks/results/phantom_shift.json``, of which the table in ``docs/phantom.md`` is made.
"""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import frame
import numpy as np
import torch

from data_prep.phantom import make_phantom
from fedshift.data.samples import Union
from fedshift.federation.resolve import resolve
from fedshift.federation.site import local_training
from fedshift.methods import method_set
from fedshift.methods.base import Run
from fedshift.methods.chain import ClientChain
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import Split
from fedshift.tasks.evaluation.overlap import dice
from fedshift.tasks.kinds import build_task
from fedshift.tasks.precision import prepare, use_threads
from fedshift.tasks.segmentation.slices import Slices, Task

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "phantom_shift.json"
LEVELS = 256
HELD_OUT: tuple[Split, ...] = ("val", "test")

Row = dict[str, float]


def train_and_test(job: JobSpec, data: dict[str, Slices], train_on: Sequence[str], *, steps: int) -> Row:
    """Mean foreground Dice per case of each site's held-out cases, of a model trained at ``train_on``."""
    task = build_task(job)
    net = prepare(task.network(), job.task.schedule.precision, torch.device("cpu"))
    run = Run(
        seed=job.seed,
        site="+".join(train_on),
        round=1,
        rounds=1,
        sites=job.task.sites,
        net=net,
        objective=task.loss,
        n_classes=len(job.task.classes),
        dense=task.dense,
    )
    run.optimizer = local_training.make_optimizer(net, job.task.optimizer)
    chain = ClientChain(method_set.load(job.methods), run, {})
    once = job.task.schedule.model_copy(update={"local_steps": steps})
    local_training.train(task, Union([data[site] for site in train_on]), chain, run, once)
    row = {}
    for site, slices in data.items():
        total = cases = 0.0
        for split in HELD_OUT:
            predictions = local_training.predict(task, slices, chain, net, split, once)
            number = len(slices.manifest.by_split(split))
            total += number * task.scores(predictions, slices, split)["dice"]
            cases += number
        row[site] = total / cases
    return row


def window_scores(slices: Slices, splits: Sequence[Split], *, scale: float) -> np.ndarray:
    """[low, high] mean foreground Dice per case of "prostate where low <= intensity <= high" (uint8 levels)."""
    scores = []
    for split in splits:
        members = slices.members(split)
        for case in np.unique(slices.case_of[members]):
            index = members[slices.case_of[members] == case]
            middle = slices.images(index)[:, slices.images(index).shape[1] // 2]
            grey = np.rint(middle.numpy() / scale * (LEVELS - 1)).astype(int)
            inside = slices.labels(index).numpy() > 0
            # Counts below each level; a window's count is a difference of two of these.
            both = [np.bincount(part.ravel(), minlength=LEVELS) for part in (grey, grey[inside])]
            everything, gland = (np.concatenate([[0], np.cumsum(count)]) for count in both)
            windows = [sums[None, 1:] - sums[:-1, None] for sums in (everything, gland)]
            scores.append(np.where(windows[0] >= 0, dice(windows[1], windows[0], np.array(gland[-1])), 0))
    return np.triu(np.mean(scores, axis=0))


def others(row: Row, site: str) -> float:
    """Mean over all sites but one."""
    return float(np.mean([value for name, value in row.items() if name != site]))


def measure(root: Path, *, seed: int, steps: int, options: Sequence[str]) -> dict[str, object]:
    """The whole result as plain data."""
    options = ["network.options.bn_momentum=0.1", *options]
    job = resolve("prostate", "fedavg", protocol="quick", seed=seed, options=options)
    use_threads(job.task.schedule.threads)
    task = build_task(job)
    assert isinstance(task, Task)
    scale = float(job.task.data["scale"])
    data = {site: task.open(root / job.task.dataset / site, site) for site in job.task.sites}
    assert all(slices.manifest.kind == "phantom" for slices in data.values())

    held_out = {site: window_scores(slices, HELD_OUT, scale=scale) for site, slices in data.items()}
    threshold: dict[str, Row] = {}
    for site, slices in data.items():
        best = np.unravel_index(np.argmax(window_scores(slices, ("train",), scale=scale)), (LEVELS, LEVELS))
        threshold[site] = {name: float(table[best]) for name, table in held_out.items()}
    bound = {site: float(table.max()) for site, table in held_out.items()}

    single: dict[str, Row] = {}
    started = time.monotonic()
    for site in data:
        single[site] = train_and_test(job, data, [site], steps=steps)
        print(f"{site:6} others {others(single[site], site):.3f}  {time.monotonic() - started:.0f} s", flush=True)
    pooled = train_and_test(job, data, list(data), steps=steps)
    print(f"pooled {np.mean(list(pooled.values())):.3f}  {time.monotonic() - started:.0f} s", flush=True)
    return {
        "kind": "phantom",
        "metric": "foreground Dice per case, mean over a site's validation and test cases",
        "seed": seed,
        "steps": steps,
        "task": job.task.model_dump(mode="json"),
        "cases": {
            site: {split: len(slices.manifest.by_split(split)) for split in ("train", *HELD_OUT)}
            for site, slices in data.items()
        },
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "single": single,
        "pooled": pooled,
        "threshold": threshold,
        "threshold_bound": bound,
    }


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("--data", type=Path, help="a phantom made earlier (default: make it with --seed)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300, help="optimiser steps of each model")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for 'fedshift job'")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = args.data or make_phantom(Path(scratch), seed=args.seed)
        result = measure(root, seed=args.seed, steps=args.steps, options=args.set)
    RESULT.parent.mkdir(exist_ok=True)
    frame.write(RESULT, result)


if __name__ == "__main__":
    main()
