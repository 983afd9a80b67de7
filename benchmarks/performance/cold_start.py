"""Seconds of a command from a cold start: ``--help``, ``methods``, and ``predict`` of one small scan.

    python -m benchmarks.performance.cold_start --against CHECKOUT

Every call is a process of its own, here and in another checkout of this repository, in turn. Two models that were never
trained: the prostate's U-Net of the protocol ``quick``, and the hippocampus task's network, which is MONAI's. Beside
them, what importing torch and MONAI alone takes. Modules are compiled before anything is measured.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import frame
from benchmarks.performance.made_volumes import untrained_model, write_case
from fedshift.federation.resolve import resolve

HERE = Path(__file__).resolve().parents[2]
THIS, OTHER = "this build", "the other build"
SHAPE = (40, 56, 40)


def main() -> None:
    options = frame.parser(__doc__, repeats=5)
    options.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout of this repository")
    args = options.parse_args()
    checkouts = {THIS: HERE} | ({OTHER: args.against.resolve()} if args.against else {})
    with tempfile.TemporaryDirectory() as scratch:
        calls = commands(Path(scratch))
        for checkout in checkouts.values():
            for words in calls.values():
                seconds(words, checkout)
        measured = {name: {build: ([], []) for build in checkouts} for name in calls}
        for number in range(args.repeats):
            for name, words in calls.items():
                for build, checkout in checkouts.items():
                    processor, wall = seconds(words, checkout)
                    measured[name][build][0].append(processor)
                    measured[name][build][1].append(wall)
                    print(
                        f"{number + 1}/{args.repeats} {name}, {build}: {processor:.2f} s, wall {wall:.2f} s", flush=True
                    )
    content = {
        "what": f"seconds of a process; the scan has {'x'.join(map(str, SHAPE))} voxels, one thread",
        "commits": {build: commit(checkout) for build, checkout in checkouts.items()},
        "processor_seconds": spreads(measured, 0),
        "wall_seconds": spreads(measured, 1),
    }
    if args.against:
        by_build = content["processor_seconds"]
        content["ratio"] = {name: frame.ratios(builds[THIS], builds[OTHER]) for name, builds in by_build.items()}
    frame.write_measured("cold_start", content)


def commands(folder: Path) -> dict[str, list[str]]:
    """What is called, as words after ``python``, by a name."""
    scan = write_case(folder, "case", SHAPE, np.random.default_rng(0))
    slices = untrained_model(folder / "slices.pt", resolve("prostate", "fedavg", protocol="quick"))
    patches = untrained_model(folder / "patches.pt", resolve("hippocampus", "fedavg"))
    fedshift = ["-m", "fedshift.cli"]
    where = ["--out", str(folder / "out"), "--device", "cpu", "--force"]
    return {
        "fedshift --help": [*fedshift, "--help"],
        "fedshift methods": [*fedshift, "methods"],
        "fedshift predict, U-Net of slices": [*fedshift, "predict", str(slices), str(scan), *where],
        "fedshift predict, MONAI's network": [*fedshift, "predict", str(patches), str(scan), *where],
        "import torch": ["-c", "import torch"],
        "import torch, monai": ["-c", "import torch, monai"],
    }


def seconds(words: Sequence[str], checkout: Path) -> tuple[float, float]:
    """Processor and wall seconds of a Python process with a checkout's packages."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ |= frame.code_of(checkout) | {"OMP_NUM_THREADS": "1"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as elsewhere:
        subprocess.run([sys.executable, *words], cwd=elsewhere, env=environ, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def spreads(
    measured: Mapping[str, Mapping[str, tuple[list[float], list[float]]]], index: int
) -> dict[str, dict[str, dict[str, object]]]:
    """Of each command and build, the processor seconds (0) or those of the wall (1)."""
    return {
        name: {build: frame.spread(values[index]) for build, values in builds.items()}
        for name, builds in measured.items()
    }


def commit(checkout: Path) -> str:
    """Of a checkout, with a mark if files differ from it."""
    words = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    return subprocess.run(words, cwd=checkout, stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout.strip()


if __name__ == "__main__":
    main()
