"""What each method costs beside FedAvg: time of a local step, and bytes of a round.

    python benchmarks/method_cost.py --out benchmarks/results/method_cost.json

Every method trains a round at one site of three in turns with FedAvg, on the phantom with the network of the
prostate task's protocol quick (methods that need an embedding: random images, FRAug's network for digits), and the
ratio of the fastest turns is given. The time is all that the site does in a round but scoring, divided by its steps:
passes over the data before or after training count. Centralised references take part with steps that see all sites.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import frame
import numpy as np
import torch

from data_prep.phantom import make_phantom
from fedshift.data.blocks import write_hashes
from fedshift.federation.in_process import PooledSite
from fedshift.federation.resolve import resolve
from fedshift.federation.server.coordinator import Coordinator, payload_bytes
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.methods import method_set
from fedshift.reporting.transmitted_data import DIGITS_JOB
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import Manifest
from fedshift.schema.messages import Broadcast

SITES = ("BIDMC", "HK", "UCL")
SGD = ["optimizer.name=sgd"]
Data = Mapping[str, Path]


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("--steps", type=int, default=8, help="optimiser steps a round")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=method_set.available())
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16", help="of the prostate task")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    rows: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        make_phantom(root / "data", cases=4, matrices=(96,))
        data = {site: root / "data" / "prostate" / site for site in SITES}
        images = {site: noise_site(root / "data", site) for site in DIGITS_JOB["task"]["sites"]}  # type: ignore[index]
        for name in args.methods:
            job, plain = jobs(name, steps=args.steps, precision=args.precision)
            used = data if job.task.kind == "segmentation" else images
            rows[name] = compare(job, plain, used, root / name, turns=args.turns) | {"task": job.task.name}
            print(name, json.dumps(rows[name]), flush=True)
    content = {
        "what": f"a round of {args.steps} steps at one of three (digits: four) sites, fastest of {args.turns} turns",
        "command": f"python benchmarks/method_cost.py {' '.join(sys.argv[1:])}",
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "load_at_start": load,
            "load_at_end": os.getloadavg()[0],
        },
        "methods": rows,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    frame.write(args.out, content)


def jobs(name: str, *, steps: int, precision: str) -> tuple[JobSpec, JobSpec]:
    """The method's job, and FedAvg's with the same optimiser on the same task."""
    for options in ([], SGD):
        options = [*options, f"schedule.local_steps={steps}", f"schedule.precision={precision}", "schedule.rounds=3"]
        try:
            return (
                resolve("prostate", name, protocol="quick", sites=SITES, options=options),
                resolve("prostate", "fedavg", protocol="quick", sites=SITES, options=options),
            )
        except ConfigError:
            continue
    return digits_job(name, steps=steps), digits_job("fedavg", steps=steps)


def digits_job(name: str, *, steps: int) -> JobSpec:
    """The method on FRAug's network for digits."""
    named = {m.name: m.config.model_dump(mode="json") for m in method_set.load({name: {}})}
    job = JobSpec.parse({**DIGITS_JOB, "methods": named}, where="digits")
    schedule = job.task.schedule.model_copy(update={"local_steps": steps, "rounds": 3})
    return job.model_copy(update={"task": job.task.model_copy(update={"schedule": schedule})})


class Party:
    """One site in round 2 of a job, when methods have something to work with."""

    def __init__(self, job: JobSpec, data: Data, folder: Path) -> None:
        coordinator = Coordinator(job, folder / "server")
        pooled = method_set.pooled_reference(job.methods) is not None
        sites = [Site(job, name, data[name], SiteOptions(folder / "sites")) for name in job.task.sites]
        coordinator.open(0)
        for site in sites:
            coordinator.register(site.info())
            assert coordinator.accept(site.statistics())
        coordinator.close()
        first = coordinator.open(1)
        if pooled:
            self.site: Site = PooledSite(job, data, SiteOptions(folder / "sites"))
            self.site.train(first)
            self.broadcast = Broadcast(2, 0, first.weights, first.arrays)
        else:
            self.site = sites[0]
            for site in sites:
                assert coordinator.accept(site.train(first))
            coordinator.close()
            self.broadcast = coordinator.open(2)
        self._pooled = pooled
        self.bytes_down = payload_bytes(self.broadcast)
        self.bytes_up = 0
        once = self.site.statistics() if not pooled else None
        self.bytes_once = payload_bytes(once) if once else 0

    def seconds_a_step(self) -> float:
        """Of a round without its scoring."""
        started = time.perf_counter()
        if not self._pooled:
            with self.site.loaded(self.broadcast) as model:
                model.scores("val")
        scored = time.perf_counter() - started
        update = self.site.train(self.broadcast)
        self.bytes_up = payload_bytes(update)
        return (time.perf_counter() - started - 2 * scored) / update.n_steps


def compare(job: JobSpec, plain: JobSpec, data: Data, folder: Path, *, turns: int) -> dict[str, object]:
    """The method beside FedAvg, in turns."""
    both = Party(plain, data, folder / "plain"), Party(job, data, folder / "method")
    times = np.array([[party.seconds_a_step() for party in both] for _ in range(turns)]).min(0)
    pooled = method_set.pooled_reference(job.methods) is not None
    return {
        "seconds_a_step": round(float(times[1]), 4),
        "fedavg_seconds_a_step": round(float(times[0]), 4),
        "time_ratio": round(float(times[1] / times[0]), 2),
        "bytes_up": 0 if pooled else both[1].bytes_up,
        "bytes_down": 0 if pooled else both[1].bytes_down,
        "bytes_once": both[1].bytes_once,
        "up_ratio": 0.0 if pooled else round(both[1].bytes_up / both[0].bytes_up, 3),
        "down_ratio": 0.0 if pooled else round(both[1].bytes_down / both[0].bytes_down, 3),
    }


def noise_site(root: Path, site: str, *, n: int = 320, size: int = 32) -> Path:
    """A prepared site of random images: time does not depend on what they show."""
    rng = np.random.default_rng(sum(site.encode()))
    folder = root / "digits" / site
    arrays = folder / "arrays" / str(size)
    arrays.mkdir(parents=True)
    np.save(arrays / "images.npy", rng.integers(0, 256, (n, 3, size, size), dtype=np.uint8))
    labels = rng.integers(0, 10, n)
    np.save(arrays / "labels.npy", labels.astype(np.uint8))
    hashes = write_hashes(arrays)
    pictures = [
        {"id": str(i), "sha256": f"{site}{i}", "label": str(labels[i]), "split": "val" if i % 10 == 0 else "train"}
        for i in range(n)
    ]
    Manifest.parse(
        {
            "schema": 1,
            "dataset": "digits",
            "site": site,
            "kind": "phantom",
            "preparation": {"source": "random numbers"},
            "classes": [str(digit) for digit in range(10)],
            "pictures": pictures,
            "arrays": {str(size): hashes},
            "licence": "Apache-2.0",
            "citation": "none",
        },
        where="noise",
    ).write(folder)
    return folder


if __name__ == "__main__":
    main()
