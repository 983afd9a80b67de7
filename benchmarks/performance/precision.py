"""What bf16 changes: the same runs in fp32 and in bf16, on real prostate scans.

    FEDSHIFT_DATA=PREPARED python -m benchmarks.performance.precision

FedAvg at four sites in one process, one thread: each seed in both precisions, in turn. Scores are means over sites of
the test Dice of the best and of the last model, in percent.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.performance import record
from fedshift.federation import run_in_process
from fedshift.flare.local_data import find_sites
from fedshift.resolve import resolve
from fedshift.training.precision import settled

SITES = ("BIDMC", "HK", "RUNMC", "UCL")
FORMATS = ("fp32", "bf16")


def main() -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    load = record.load()
    runs: list[dict[str, Any]] = []
    for seed in range(args.seeds):
        for precision in FORMATS:
            runs.append(run(precision, seed, args.rounds))
            print(json.dumps(runs[-1]), flush=True)
        content = {
            "what": f"FedAvg, prostate, {', '.join(SITES)}, 96x96, U-Net of 16 features, one epoch a round, one thread",
            "rounds": args.rounds,
            "auto_is": settled("auto", torch.device("cpu")),
            "runs": runs,
            "mean": {precision: mean([one for one in runs if one["precision"] == precision]) for precision in FORMATS},
        }
        print(record.write("precision", content, load=load))


def run(precision: str, seed: int, rounds: int) -> dict[str, Any]:
    """One run: scores in percent, and the processor's seconds for a round and its share of the last evaluation."""
    options = [
        "data.matrix=96",
        "network.options.features=16",
        "schedule.local_epochs=1",
        f"schedule.rounds={rounds}",
        f"schedule.precision={precision}",
    ]
    job = resolve("prostate", "fedavg", sites=SITES, options=options, seed=seed)
    data = find_sites(job)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        results = run_in_process(job, data, Path(folder), device="cpu").results
    took = time.process_time() - began
    assert results.final is not None
    each = {site: 100 * results.final.best.sites[site]["test"]["dice"] for site in SITES}
    return {
        "precision": precision,
        "seed": seed,
        "kinds": sorted({told.kind for told in results.data.values()}),
        "test_dice_best": round(fmean(each.values()), 2),
        "test_dice_last": round(100 * fmean(results.final.last.sites[site]["test"]["dice"] for site in SITES), 2),
        "by_site": {site: round(value, 2) for site, value in each.items()},
        "best_round": results.final.best.round,
        "processor_seconds_a_round": round(took / rounds, 2),
    }


def mean(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Over seeds."""
    return {
        key: round(fmean(one[key] for one in runs), 2)
        for key in ("test_dice_best", "test_dice_last", "processor_seconds_a_round")
    }


if __name__ == "__main__":
    main()
