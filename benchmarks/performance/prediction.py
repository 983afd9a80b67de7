"""Prediction of volumes in 3D: `fedshift predict` against the exported bundle.

    python -m benchmarks.performance.prediction

The hippocampus task with MONAI's ``BasicUNet`` and weights that were never trained, its patches and overlap, on made-up
volumes. Both sides are processes of their own, started as one starts them: ``fedshift predict MODEL FILES`` and
``python -m monai.bundle run`` on the folder of files. Each prints a line for every volume that it has written: the time
to the first is the start with the first volume, and the volumes a minute are those between the first and the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import frame
from benchmarks.performance.made_volumes import AS_MEASURED, untrained_model, write_case
from benchmarks.performance.patches import cpu_seconds
from benchmarks.performance.server_memory import resident
from fedshift import cli
from fedshift.federation.resolve import resolve

OURS, BUNDLE = "fedshift predict", "monai.bundle run"
SHAPE = (64, 80, 64)
"""Voxels along x, y, z; the patch is 40x56x40."""
MARK = ".nii.gz: "
"""In the line that both print for a volume."""


@dataclass(frozen=True)
class Ran:
    """A process: seconds to its first volume, seconds a volume after that, peak memory in bytes."""

    first: float
    volume: float
    peak: int


def main() -> None:
    args = frame.parser(__doc__, volumes=7, repeats=5, threads=2).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        content: dict[str, Any] = {
            "what": f"{args.volumes} volumes of {'x'.join(map(str, SHAPE))} voxels",
            "threads": args.threads,
            "prediction": times(Path(scratch) / "times", args),
        }
    print(json.dumps(content, indent=1))
    frame.write_measured("prediction", content)


def times(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Volumes a minute and seconds to the first volume of both, in turn."""
    rng = np.random.default_rng(0)
    scans = [write_case(folder, f"case{number}", SHAPE, rng) for number in range(args.volumes)]
    model = untrained_model(folder / "model.pt", resolve("hippocampus", "fedavg", options=AS_MEASURED))
    assert cli.main(["export", str(model), "--bundle", str(folder / "bundle"), "--device", "cpu"]) == 0
    ran: dict[str, list[Ran]] = {OURS: [], BUNDLE: []}
    commands: Mapping[str, Callable[[Path], Ran]] = {
        OURS: lambda out: run(predict(model, scans, out), args.threads),
        BUNDLE: lambda out: run(bundled(scans[0].parent, out), args.threads, cwd=folder / "bundle"),
    }
    for number in range(args.repeats):
        for name, command in commands.items():
            ran[name].append(command(folder / f"{name} {number}"))
            print(f"{number + 1}/{args.repeats} {name}: {ran[name][-1]}", flush=True)
    ratios = [theirs.volume / ours.volume for ours, theirs in zip(ran[OURS], ran[BUNDLE], strict=True)]
    return {
        "volumes_a_minute": {name: frame.spread([60 / entry.volume for entry in runs]) for name, runs in ran.items()},
        "seconds_to_the_first": {name: frame.spread([entry.first for entry in runs]) for name, runs in ran.items()},
        "megabytes": {name: frame.spread([entry.peak / 1e6 for entry in runs]) for name, runs in ran.items()},
        "times_as_fast_as_the_bundle": frame.spread(ratios),
        "masks_that_differ": differing(folder / f"{OURS} 0", folder / f"{BUNDLE} 0"),
    }


def predict(model: Path, scans: Sequence[Path], out: Path) -> list[str]:
    """The command of ours."""
    words = ["predict", str(model), *map(str, scans), "--out", str(out), "--device", "cpu"]
    return [sys.executable, "-m", "fedshift.cli", *words]


def bundled(scans: Path, out: Path) -> list[str]:
    """The command of the bundle, in its folder."""
    words = ["--config_file", "configs/inference.json", "--dataset_dir", str(scans), "--output_dir", str(out)]
    return [sys.executable, "-m", "monai.bundle", "run", *words]


def run(command: Sequence[str], threads: int, *, cwd: Path | None = None) -> Ran:
    """Start a process and note when it prints a volume's line."""
    quiet = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}
    moments: list[float] = []
    peaks: list[int] = []
    started = time.perf_counter()
    with subprocess.Popen(
        command, cwd=cwd, env={**os.environ, **quiet}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        watch = threading.Thread(target=lambda: peaks.extend(watched(process)))
        watch.start()
        lines = []
        for line in process.stdout:
            lines.append(line)
            if MARK in line:
                moments.append(cpu_seconds(process.pid) if threads == 1 else time.perf_counter() - started)
        watch.join()
    if process.returncode or not moments:
        raise RuntimeError(f"{command[2]} failed:\n{''.join(lines)}")
    return Ran(moments[0], (moments[-1] - moments[0]) / max(len(moments) - 1, 1), max(peaks))


def watched(process: subprocess.Popen[str]) -> Iterator[int]:
    """The largest memory of a process so far, until it ends. (What `os.wait4` tells includes the parent's.)"""
    while process.poll() is None:
        yield resident(process.pid, "VmHWM")
        time.sleep(0.02)


def differing(ours: Path, theirs: Path) -> int:
    """Masks that are not the same on both sides."""
    import nibabel

    masks = sorted(ours.glob("*_mask.nii.gz"))
    assert masks
    pairs = [
        (np.asarray(nibabel.load(mask).dataobj), np.asarray(nibabel.load(theirs / mask.name).dataobj)) for mask in masks
    ]
    return sum(not np.array_equal(a, b) for a, b in pairs)


if __name__ == "__main__":
    main()
