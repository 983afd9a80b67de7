"""What fewer bits change: the same runs in fp32, in bf16, and with weights as bf16 and int8 on the wire, on real scans.

    FEDSHIFT_DATA=PREPARED python -m benchmarks.performance.precision

FedAvg on prostate scans of four sites, one thread a run and as many runs side by side as there are cores: each seed in
all arms. Scores are means over sites of the test Dice of the best and of the last model, in percent, and of the
validation Dice over the last rounds, which moves less than one round's.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from benchmarks import frame
from fedshift.data.locate import find_sites
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.schema.job import JobSpec
from fedshift.tasks.precision import settled

SITES = ("BIDMC", "HK", "RUNMC", "UCL")
ARMS = {
    "fp32": ("schedule.precision=fp32",),
    "bf16": ("schedule.precision=bf16",),
    "bf16, weights as bf16": ("schedule.precision=bf16", "federation.weights_as=bf16"),
    "bf16, weights as int8": ("schedule.precision=bf16", "federation.weights_as=int8"),
}
AGAINST = {"bf16": "fp32", "bf16, weights as bf16": "bf16", "bf16, weights as int8": "bf16"}
"""What an arm is compared with: the one that differs from it in one setting."""
SCORES = ("test_dice_best", "test_dice_last", "val_dice_last_rounds")
LAST = 5
"""Rounds at the end whose validation scores are taken together."""


def main() -> None:
    parser = frame.parser(__doc__, rounds=30, seeds=4, matrix=64)
    args = parser.parse_args()
    if args.seeds < 2:
        parser.error("--seeds: a spread takes two")
    runs: list[dict[str, Any]] = []
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        cells = [(arm, seed) for seed in range(args.seeds) for arm in ARMS]
        waiting = [pool.submit(run, arm, seed, rounds=args.rounds, matrix=args.matrix) for arm, seed in cells]
        for future in as_completed(waiting):
            runs.append(future.result())
            print(json.dumps(runs[-1]), flush=True)
            whole = [seed for seed in range(args.seeds) if sum(entry["seed"] == seed for entry in runs) == len(ARMS)]
            if len(whole) < 2:
                continue
            kept = [entry for entry in runs if entry["seed"] in whole]
            kept.sort(key=lambda entry: (entry["seed"], [*ARMS].index(entry["arm"])))
            content = {
                "what": f"FedAvg, prostate, {', '.join(SITES)}, {args.matrix}x{args.matrix}, U-Net of 16 features, "
                f"{args.rounds} rounds of one epoch, one thread",
                "auto_is": settled("auto", torch.device("cpu")),
                "last_rounds": LAST,
                "runs": kept,
                "summary": {arm: summary(kept, arm) for arm in ARMS},
            }
            frame.write_measured("precision", content)
    print(json.dumps(content["summary"], indent=1))


def run(arm: str, seed: int, *, rounds: int, matrix: int) -> dict[str, Any]:
    """One run: scores in percent, and the processor's seconds for a round and its share of the last evaluation."""
    torch.set_num_threads(1)
    job = job_of(arm, seed, rounds=rounds, matrix=matrix)
    data = find_sites(job)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        results = run_in_process(job, data, Path(folder), device="cpu").results
    took = time.process_time() - began
    assert results.final is not None
    each = {site: 100 * results.final.best.sites[site]["test"]["dice"] for site in SITES}
    curve = [100 * fmean(site.val["dice"] for site in round_.sites.values() if site.val) for round_ in results.rounds]
    return {
        "arm": arm,
        "seed": seed,
        "kinds": sorted({told.kind for told in results.data.values()}),
        "test_dice_best": round(fmean(each.values()), 2),
        "test_dice_last": round(100 * fmean(results.final.last.sites[site]["test"]["dice"] for site in SITES), 2),
        "val_dice_last_rounds": round(fmean(curve[-LAST:]), 2),
        "by_site": {site: round(value, 2) for site, value in each.items()},
        "val_by_round": [round(value, 1) for value in curve],
        "best_round": results.final.best.round,
        "processor_seconds_a_round": round(took / rounds, 2),
    }


def job_of(arm: str, seed: int, *, rounds: int, matrix: int) -> JobSpec:
    """What an arm trains."""
    options = [f"data.matrix={matrix}", "network.options.features=16", "network.options.bn_momentum=0.1"]
    options += ["schedule.local_epochs=1", f"schedule.rounds={rounds}", *ARMS[arm]]
    return resolve("prostate", "fedavg", protocol="quick", sites=SITES, options=options, seed=seed)


def summary(runs: list[dict[str, Any]], arm: str) -> dict[str, Any]:
    """Means over seeds, their spread, and how far each seed is from its run in the arm compared with."""
    mine = [entry for entry in runs if entry["arm"] == arm]
    told: dict[str, Any] = {
        score: {
            "mean": round(fmean(entry[score] for entry in mine), 2),
            "sd": round(stdev(entry[score] for entry in mine), 2),
        }
        for score in SCORES
    }
    if arm in AGAINST:
        theirs = [entry for entry in runs if entry["arm"] == AGAINST[arm]]
        for score in SCORES:
            told[score]["less"] = AGAINST[arm]
            told[score]["difference"] = [round(a[score] - b[score], 2) for a, b in zip(mine, theirs, strict=True)]
    return told | {"processor_seconds_a_round": round(fmean(entry["processor_seconds_a_round"] for entry in mine), 2)}


if __name__ == "__main__":
    main()
