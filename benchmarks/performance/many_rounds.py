"""Whether a run grows: seconds a round, memory and files over 500 rounds.

    python -m benchmarks.performance.many_rounds

Six sites that do not train, as in `flare_overhead`, with ``fedshift run``. Memory is that of all processes of the run
(proportional set size), files are the server's and the sites', without TensorBoard's curves, which hold a point a
round as they must. Rounds are put together in ten parts; the first has the run's start in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]

from benchmarks import frame
from benchmarks.performance.flare_overhead import environment, idle_job, write_idle
from data_prep.phantom import make_phantom
from fedshift.reporting.events import FOLDER
from fedshift.reporting.progress import read_progress

PARTS = 10


@dataclass(frozen=True)
class Sample:
    """What a run had come to when a round began."""

    round: int
    moment: float
    memory: int
    files: int


def main() -> None:
    args = frame.parser(__doc__, rounds=500).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_idle(idle_job(args.rounds), folder / "job")
        make_phantom(folder / "share" / "fedshift" / "phantom", cases=3, matrices=(96,))
        samples = watch(folder, args.rounds)
    parts = [part for part in np.array_split(np.arange(len(samples)), PARTS) if len(part) > 1]
    rows = [
        {
            "up_to_round": samples[part[-1]].round,
            "seconds_a_round": round(
                (samples[part[-1]].moment - samples[part[0]].moment)
                / (samples[part[-1]].round - samples[part[0]].round),
                3,
            ),
            "memory_mb": round(max(samples[i].memory for i in part) / 1e6),
            "files_mb": round(max(samples[i].files for i in part) / 1e6, 2),
        }
        for part in parts
    ]
    content = {"what": "six sites that do not train, a U-Net of 4.4 MB", "rounds": args.rounds, "parts": rows}
    print(json.dumps(content, indent=1))
    frame.write_measured("many_rounds", content)


def watch(folder: Path, rounds: int) -> list[Sample]:
    """Run the job, and look once a second."""
    workspace = folder / "run"
    command = [sys.executable, "-m", "fedshift.cli", "run", str(folder / "job"), "-w", str(workspace)]
    process = subprocess.Popen(command, env=environment(folder), stdout=subprocess.DEVNULL)
    samples: list[Sample] = []
    while process.poll() is None:
        time.sleep(1)
        told = read_progress(workspace / "server" / "simulate_job") if workspace.is_dir() else None
        if told is not None and 1 <= told.round <= rounds and (not samples or told.round > samples[-1].round):
            samples.append(Sample(told.round, time.monotonic(), memory(process.pid), files(workspace)))
    if process.returncode:
        raise SystemExit(f"the run failed with exit code {process.returncode}")
    return samples


def memory(pid: int) -> int:
    """Bytes of a process and its children; what they share is counted once."""
    total = 0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue  # it has just ended
    return total


def files(folder: Path) -> int:
    """Bytes of what a run keeps."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += 0 if FOLDER in path.parts or path.is_dir() else path.stat().st_size
        except FileNotFoundError:
            continue  # it was replaced
    return total


if __name__ == "__main__":
    main()
