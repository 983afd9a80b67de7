"""What FLARE costs with 100 and 200 sites, ten of which train in a round, and whether memory grows with the sites.

    OMP_NUM_THREADS=1 python -m benchmarks.performance.many_sites --cifar10
    OMP_NUM_THREADS=1 python -m benchmarks.performance.many_sites --emnist --cifar10 100 --rounds 3

A call adds to the figures of those before: the first measures emnist alone, the second cifar10, whose rounds take long.
On random images, as time does not depend on what they show: LeNet-5 with FEMNIST's 180 training images a site and the
ten epochs of its paper's schedule, and ResNet-18 with the few steps of the task cifar10; a few rounds of both.
``fedshift run`` shares the sites out between two hosts; in one process they train one after another. On a machine with
several cores FLARE's hosts work side by side, so the ratio may be below one: the seconds of all processors together,
which tell the work, are given too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]

from benchmarks import frame
from benchmarks.performance.flare_overhead import environment
from benchmarks.performance.many_rounds import memory
from fedshift.data.blocks import write_hashes
from fedshift.federation.resolve import resolve
from fedshift.flare.export import write_job
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import Manifest

IMAGES = {"emnist": {"train": 180, "val": 20, "test": 20}, "cifar10": {"train": 20, "val": 4, "test": 4}}
"""A site has."""
SCHEDULE = {"emnist": ["schedule.local_epochs=10", "schedule.batch_size=10"], "cifar10": []}
"""What differs from the task's own."""


def main() -> None:
    parser = frame.parser(__doc__, rounds=10, repeats=3)
    parser.add_argument("--emnist", type=int, nargs="*", default=[50, 200], help="numbers of sites")
    parser.add_argument("--cifar10", type=int, nargs="*", default=[100], help="numbers of sites")
    args = parser.parse_args()
    rows = {(row["task"], row["sites"]): row for row in earlier()}
    for task, counts in (("emnist", args.emnist), ("cifar10", args.cifar10)):
        for count in counts:
            with tempfile.TemporaryDirectory() as scratch:
                row = compare(Path(scratch), task, count, args.rounds, args.repeats)
            rows[task, count] = {**row, "rounds": args.rounds}
            print(json.dumps(row), flush=True)
    told = [rows[key] for key in sorted(rows, key=lambda key: (key[0] != "emnist", key[1]))]
    content = {"what": "ten sites a round", "images": IMAGES, "schedule": SCHEDULE, "runs": told}
    frame.write_measured("many_sites", content)


def earlier() -> list[dict[str, Any]]:
    """What earlier calls have measured; this one adds to it."""
    path = frame.PERFORMANCE / "many_sites.json"
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.is_file() else []
    return runs


def compare(folder: Path, task: str, count: int, rounds: int, repeats: int) -> dict[str, Any]:
    """FLARE and one process, in turn."""
    job = job_of(task, count, rounds)
    write_job(job, folder / "job")
    for site in job.task.sites:
        noise_site(folder / "share" / "fedshift" / job.task.dataset / site, job, site)
    told: dict[str, list[dict[str, float]]] = {"fedshift run": [], "one process": []}
    for _ in range(repeats):
        told["fedshift run"].append(run(folder))
        told["one process"].append(run(folder, "--in-process"))
    figures = {
        name: {key: frame.spread([run_record[key] for run_record in values]) for key in values[0]}
        for name, values in told.items()
    }
    ratios = {
        f"{key}_ratio": round(figures["fedshift run"][key]["median"] / figures["one process"][key]["median"], 2)
        for key in ("seconds", "processor_seconds")
    }
    return {"task": task, "sites": count, **ratios, **figures}


def job_of(task: str, count: int, rounds: int) -> JobSpec:
    """The task's job with so many sites."""
    sites = [f"site_{number:03d}" for number in range(count)]
    options = [*SCHEDULE[task], f"schedule.rounds={rounds}"]
    return resolve(task, "fedavg", sites=sites, options=options, name="many")


def noise_site(folder: Path, job: JobSpec, site: str) -> None:
    """A prepared site of random images."""
    task, rng = job.task, np.random.default_rng(sum(site.encode()))
    size, channels = int(task.data["size"]), int(task.data["channels"])
    arrays = folder / "arrays" / str(size)
    arrays.mkdir(parents=True)
    splits = [split for split, n in IMAGES[task.name].items() for _ in range(n)]
    labels = rng.integers(0, len(task.classes), len(splits))
    np.save(arrays / "images.npy", rng.integers(0, 256, (len(splits), channels, size, size), dtype=np.uint8))
    np.save(arrays / "labels.npy", labels.astype(np.uint8))
    hashes = write_hashes(arrays)
    pictures = [
        {"id": str(i), "sha256": f"{site}{i}", "label": task.classes[labels[i]], "split": split}
        for i, split in enumerate(splits)
    ]
    Manifest.parse(
        {
            "schema": 1,
            "dataset": task.dataset,
            "site": site,
            "kind": "phantom",
            "preparation": {"source": "random numbers"},
            "classes": list(task.classes),
            "pictures": pictures,
            "arrays": {str(size): hashes},
            "licence": "Apache-2.0",
            "citation": "none",
        },
        where="noise",
    ).write(folder)


def run(folder: Path, *options: str) -> dict[str, float]:
    """A run: seconds, seconds of all its processors, and its largest memory."""
    command = [sys.executable, "-m", "fedshift.cli", "run", str(folder / "job"), "-w", str(folder / f"run{options}")]
    began, peak = time.monotonic(), 0
    used: dict[int, float] = {}
    process = subprocess.Popen([*command, *options], env=environment(folder), stdout=subprocess.DEVNULL)
    while process.poll() is None:
        time.sleep(0.2)
        try:
            peak = max(peak, memory(process.pid))
            used.update(processor_seconds(process.pid))
        except psutil.NoSuchProcess:
            break
    if process.wait():
        raise SystemExit(f"the run failed with exit code {process.returncode}")
    return {
        "seconds": time.monotonic() - began,
        "processor_seconds": sum(used.values()),
        "memory_mb": peak / 1e6,
    }


def processor_seconds(pid: int) -> dict[int, float]:
    """Of a process and its children so far, by process: what is not waited for is in no sum of the system's."""
    told: dict[int, float] = {}
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # it has just ended
        told[process.pid] = times.user + times.system
    return told


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
