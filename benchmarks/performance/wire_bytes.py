"""What weights in fewer bytes cost in scores: the same jobs with ``federation.weights_as`` fp32, bf16 and int8.

    FEDSHIFT_DATA=ROOT python -m benchmarks.performance.wire_bytes --rounds 10

On patients' scans of the prostate task at 96 x 96, a U-Net of 16 features, one epoch a round. Told are the bytes of a
site's round and the mean Dice of the sites in points: on validation over the last rounds together, on test of the best
and of the last model. ``val_dice_spread`` is the standard deviation over these last rounds: how much a score of one
format moves by itself. Results are written after every job.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, get_args

from benchmarks.performance import record
from fedshift.compression import WeightsAs
from fedshift.data.locate import find_site
from fedshift.federation import run_in_process
from fedshift.job import JobSpec
from fedshift.reporting.results import FinalScores, Results
from fedshift.resolve import resolve

FORMATS: tuple[WeightsAs, ...] = get_args(WeightsAs)
METHODS = ("fedavg", "fedfa+fedrdn")
SITES = ("BIDMC", "HK", "RUNMC", "UCL")
OPTIONS = ("data.matrix=96", "network.options.features=16", "schedule.precision=bf16", "schedule.local_epochs=1")
LAST = 4
"""Rounds at the end whose validation scores are taken together."""


def main() -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    load = record.load()
    runs: list[dict[str, Any]] = []
    for seed in range(args.seeds):
        for methods in METHODS:
            for weights_as in FORMATS:
                options = [*OPTIONS, f"schedule.rounds={args.rounds}", f"federation.weights_as={weights_as}"]
                job = resolve("prostate", methods, sites=SITES, options=options, seed=seed)
                runs.append({"methods": methods, "seed": seed, "weights_as": weights_as, **measure(job)})
                print(runs[-1], flush=True)
                what = f"prostate, sites {', '.join(SITES)}, {' '.join(OPTIONS)}, {args.rounds} rounds"
                path = record.write("wire_bytes", {"what": what, "last_rounds": LAST, "runs": runs}, load=load)
    print(path)


def measure(job: JobSpec) -> dict[str, Any]:
    """Bytes and scores of a run."""
    data = {site: find_site(job.task.dataset, site, local=None, simulator=False) for site in job.task.sites}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results = run_in_process(job, data, Path(folder)).results
    assert results.final is not None
    curve = [round_dice(results, number) for number in range(1, len(results.rounds) + 1)]
    told = [site for made in results.rounds for site in made.sites.values() if site.steps]
    (up,), (down,) = {site.bytes_up for site in told}, {site.bytes_down for site in told}
    return {
        "bytes_up": up,
        "bytes_down": down,
        "val_dice": round(fmean(curve[-LAST:]), 2),
        "val_dice_spread": round(pstdev(curve[-LAST:]), 2),
        "val_dice_by_round": [round(value, 2) for value in curve],
        "test_dice_best": round(test_dice(results.final.best), 2),
        "test_dice_last": round(test_dice(results.final.last), 2),
        "best_round": results.final.best.round,
        "seconds": round(time.monotonic() - started, 1),
    }


def round_dice(results: Results, number: int) -> float:
    """Mean over sites of a round's validation Dice, in points."""
    return 100 * fmean(site.val["dice"] for site in results.rounds[number - 1].sites.values())


def test_dice(final: FinalScores) -> float:
    """Mean over sites of a final model's test Dice, in points."""
    return 100 * fmean(splits["test"]["dice"] for splits in final.sites.values())


if __name__ == "__main__":
    main()
