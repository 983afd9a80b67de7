"""The same training with fedshift, NVFlare's own recipe, Flower, and a plain loop in one process.

    python -m benchmarks.performance.training_peers --flower FLOWER/bin/python

FedAvg at six phantom sites: the same network, images, batches in the same order, optimiser, rounds, validation of the
received model in every round, and one thread a site; `plain_party` is the peers' client. ``--flower`` names a Python
with Flower's simulation and what fedshift needs. A round is the time between two rounds, averaged over all but the
first. The last weights of all must agree within rounding, or there are no figures.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks import frame
from benchmarks.performance.flare_overhead import RUN, a_round, environment, simulated
from benchmarks.performance.plain_party import Party, Weights, average
from data_prep.phantom import make_phantom
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.flare.export import write_job
from fedshift.schema.job import JobSpec
from fedshift.schema.results import LAST

HERE = Path(__file__).parent
PLAIN = "plain loop, one process"
NEAR = 1e-3
"""By how much a weight may differ: sums are rounded in another order, and training carries that on."""


def main() -> None:
    args = frame.beside_flower(__doc__, rounds=5)
    torch.set_num_threads(1)
    whole: dict[str, list[float]] = {}
    last: dict[str, Weights] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        job = training_job(args.rounds)
        write_job(job, folder / "job")
        make_phantom(folder / "share" / "fedshift" / "phantom", cases=4, matrices=(96,))

        apart: dict[str, float] = {}

        def measured(name: str, run: Callable[[], tuple[list[float], Weights]]) -> Callable[[], float]:
            def once() -> float:
                began = time.monotonic()
                moments, last[name] = run()
                whole.setdefault(name, []).append(time.monotonic() - began)
                apart[name] = farthest(last[name], last[PLAIN])
                if apart[name] > NEAR:
                    raise SystemExit(f"a weight of {name} differs by {apart[name]}, so its times say nothing")
                return a_round(moments)

            return once

        runs: dict[str, Callable[[], tuple[list[float], Weights]]] = {
            PLAIN: lambda: plain(job, folder),
            "fedshift run": lambda: ours(job, folder),
            "NVFlare FedAvgRecipe": lambda: recipe(job, folder),
        }
        if args.flower:
            runs["Flower simulation"] = lambda: flower(args.flower, folder)
        rounds = frame.in_turn({name: measured(name, run) for name, run in runs.items()}, args.repeats)
    content = {
        "what": "FedAvg, six phantom sites of 4 cases, 96x96, U-Net of 16 features, fp32, SGD, one epoch a round",
        "rounds": args.rounds,
        "seconds_a_round": rounds,
        "seconds_in_all": {name: frame.spread(told) for name, told in whole.items()},
        "largest_difference_of_a_weight_from_the_plain_loop": apart,
    }
    print(json.dumps(content, indent=1))
    frame.write_measured("training_peers", content)


def training_job(rounds: int) -> JobSpec:
    """What all of them train."""
    options = [f"schedule.rounds={rounds}", "schedule.local_epochs=1", "schedule.precision=fp32"]
    options += ["data.matrix=96", "network.options.features=16", "network.options.bn_momentum=0.1"]
    options += ["optimizer.weight_decay=0", "optimizer.keep=false"]
    # Not Adam, which makes whole steps of what rounding has left of a gradient.
    options += ["optimizer.name=sgd", "optimizer.lr=0.01", "optimizer.momentum=0.9"]
    return resolve("prostate", "fedavg", protocol="quick", options=options, name="training")


def data_of(folder: Path) -> Path:
    """Where the phantom's sites are."""
    return folder / "share" / "fedshift" / "phantom" / "prostate"


def plain(job: JobSpec, folder: Path) -> tuple[list[float], Weights]:
    """One site after another."""
    parties = [Party(folder / "job", data_of(folder), site) for site in job.task.sites]
    weights, moments = parties[0].initial, []
    for round_ in range(1, job.task.schedule.rounds + 1):
        moments.append(time.monotonic())
        weights = average([party.train(weights, round_) for party in parties])
    return moments, weights


def ours(job: JobSpec, folder: Path) -> tuple[list[float], Weights]:
    """``fedshift run``."""
    moments, *_ = simulated(folder, folder / "job", job.task.schedule.rounds, RUN)
    loaded = read_model_file(folder / "run" / "server" / "simulate_job" / LAST)
    return moments, {key: value.numpy() for key, value in loaded["weights"].items()}


def recipe(job: JobSpec, folder: Path) -> tuple[list[float], Weights]:
    """NVFlare's: it prints when a round begins."""
    workspace = folder / "nvflare"
    shutil.rmtree(workspace, ignore_errors=True)
    command = [sys.executable, str(HERE / "training_nvflare.py"), str(workspace), str(folder / "job")]
    moments: list[float] = []
    process = subprocess.Popen(
        [*command, str(data_of(folder))],
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "Round " in line and " started" in line:
            moments.append(time.monotonic())
    if process.wait() or not moments:
        raise SystemExit("NVFlare's recipe failed:\n" + "".join(lines[-20:]))
    (file,) = workspace.rglob("FL_global_model.pt")
    loaded = torch.load(file, map_location="cpu", weights_only=True)
    return moments, {key: value.numpy() for key, value in loaded.get("model", loaded).items()}


def flower(python: Path, folder: Path) -> tuple[list[float], Weights]:
    """Flower's simulation."""
    out = folder / "flower.npz"
    command = [str(python), str(HERE / "training_flower.py"), str(folder / "job"), str(data_of(folder)), str(out)]
    extra = {"OMP_NUM_THREADS": "1", "RAY_DISABLE_DASHBOARD": "1", "HOME": os.environ.get("HOME", "")}
    result = subprocess.run(
        command, env=environment(folder) | extra, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    told = [line for line in result.stdout.splitlines() if line.startswith("ended:")]
    if result.returncode or not told:
        raise SystemExit("Flower failed:\n" + result.stderr[-3000:])
    with np.load(out) as file:
        return json.loads(told[0].removeprefix("ended:")), {key: file[key] for key in file.files}


def farthest(weights: Weights, others: Weights) -> float:
    """The largest difference of a weight; counters, which nobody averages alike, are left out."""
    keys = [key for key, value in others.items() if value.dtype == np.float32]
    return float(max(np.abs(weights[key] - others[key]).max() for key in keys))


if __name__ == "__main__":
    main()
