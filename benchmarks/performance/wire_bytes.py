"""What weights in fewer bytes save, and what they cost in scores: ``federation.weights_as`` fp32, bf16 and int8.

    FEDSHIFT_DATA=ROOT python -m benchmarks.performance.wire_bytes --seeds 3

Bytes are those of a site's round with FedFA's U-Net on the prostate task. Scores are of real digits (MNIST, MNIST-M and
USPS, a site each, 1000 test images a site) with a network small enough for several seeds: every seed with every format,
so that formats differ in nothing else. Accuracy is the mean over sites, in points; on validation also over the last
rounds, which moves less than one round's.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from benchmarks import frame
from fedshift.data.locate import find_site
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.federation.server.coordinator import Coordinator, payload_bytes
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.schema.compression import WeightsAs
from fedshift.schema.job import JobSpec
from fedshift.schema.results import Results, SiteRound

FORMATS: tuple[WeightsAs, ...] = get_args(WeightsAs)
METHODS = ("fedavg", "fedfa+fedrdn")
DIGITS = ("network.name=mnist_cnn", "network.options.size=28", "data.size=28", "schedule.precision=fp32")
ADAM = ("optimizer.name=adam", "optimizer.lr=0.001", "optimizer.momentum=0")
FEATURES = (16, 32)
"""Of the U-Nets whose bytes are told."""
LAST = 5
"""Rounds at the end whose validation scores are taken together."""


def main() -> None:
    args = frame.parser(__doc__, rounds=20, steps=10, seeds=3).parse_args()
    content: dict[str, Any] = {
        "what": f"digits, sites mnist, mnistm, usps, {args.rounds} rounds of {args.steps} steps, "
        + " ".join((*DIGITS, *ADAM)),
        "bytes_a_round": {f"unet, {features} features": unet_bytes(features) for features in FEATURES},
        "last_rounds": LAST,
        "runs": [],
    }
    length = (f"schedule.rounds={args.rounds}", f"schedule.local_steps={args.steps}")
    for seed in range(args.seeds):
        for methods in METHODS:
            for weights_as in FORMATS:
                options = (*DIGITS, *ADAM, *length, f"federation.weights_as={weights_as}")
                job = resolve("digits", methods, sites=("mnist", "mnistm", "usps"), options=options, seed=seed)
                run = {"methods": methods, "seed": seed, "weights_as": weights_as, **scores(job)}
                print(run, flush=True)
                content["runs"].append(run)
        # After every seed, all formats of which are there.
        frame.write_measured("wire_bytes", {**content, "accuracy": summary(content["runs"])})


def unet_bytes(features: int) -> dict[str, dict[str, int]]:
    """By format, what a site sends and receives in a round."""
    told = {}
    for weights_as in FORMATS:
        options = [f"network.options.features={features}", "schedule.local_steps=1"]
        options += [f"federation.weights_as={weights_as}"]
        job = resolve("prostate", "fedavg", protocol="quick", sites=("HK",), options=options)
        with tempfile.TemporaryDirectory() as folder:
            server = Coordinator(job, Path(folder) / "server")
            data = find_site(job.task.dataset, "HK", local=None, simulator=False)
            broadcast = server.open(1)
            update = Site(job, "HK", data, SiteOptions(Path(folder) / "state")).train(broadcast)
        told[weights_as] = {"up": payload_bytes(update), "down": payload_bytes(broadcast)}
    return told


def scores(job: JobSpec) -> dict[str, Any]:
    """Bytes and accuracy of a run."""
    results, seconds = run(job)
    assert results.final is not None
    curve = [100 * fmean(site.val["accuracy"] for site in round_.sites.values()) for round_ in results.rounds]
    told: list[SiteRound] = [site for round_ in results.rounds for site in round_.sites.values()]
    (up,), (down,) = {site.bytes_up for site in told}, {site.bytes_down for site in told}
    test = {
        name: 100 * fmean(splits["test"]["accuracy"] for splits in final.sites.values())
        for name, final in (("best", results.final.best), ("last", results.final.last))
    }
    return {
        "bytes_up": up,
        "bytes_down": down,
        "test_best": round(test["best"], 3),
        "test_last": round(test["last"], 3),
        "val_last_rounds": round(fmean(curve[-LAST:]), 3),
        "val_by_round": [round(value, 2) for value in curve],
        "best_round": results.final.best.round,
        "seconds": round(seconds, 1),
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By methods and format the mean over seeds, and how far each seed is from its run with fp32."""
    told: dict[str, dict[str, Any]] = {}
    for methods in METHODS:
        rows = {name: [r for r in runs if (r["methods"], r["weights_as"]) == (methods, name)] for name in FORMATS}
        told[methods] = {
            name: {
                score: {
                    "mean": round(fmean(row[score] for row in rows[name]), 2),
                    "from_fp32": [round(a[score] - b[score], 2) for a, b in zip(rows[name], rows["fp32"], strict=True)],
                }
                for score in ("test_last", "test_best", "val_last_rounds")
            }
            for name in FORMATS
        }
    return told


def run(job: JobSpec) -> tuple[Results, float]:
    """A run in one process, and its seconds."""
    data = {site: find_site(job.task.dataset, site, local=None, simulator=False) for site in job.task.sites}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results = run_in_process(job, data, Path(folder)).results
    return results, time.monotonic() - started


if __name__ == "__main__":
    main()
