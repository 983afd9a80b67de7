"""Models that are trained without one of the prostate's sites, for benchmarks at that site."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fedshift.schema.protocol_results import LeaveOneOut
from fedshift.schema.results import BEST, FILE_NAME, read_results

SITES = ("BIDMC", "HK", "RUNMC", "UCL")


def trained_without(site: str, *words: str, seed: int, settings: Sequence[str], work: Path) -> tuple[str, Path]:
    """The command of a job, and the model file that it leaves; what has ended below ``work`` is not trained again.

    ``words``: the methods, and the task with its options but for ``settings``.
    """
    name = f"without_{site}_seed{seed}"
    job = [
        *("fedshift", "job", *words, "--name", name, "--seed", str(seed)),
        *("--sites", ",".join(each for each in SITES if each != site)),
        *("--set", *settings),
    ]
    folder = work / "runs" / name
    run = ["fedshift", "run", str(work / "jobs" / name), "--in-process", "--workspace", str(folder)]
    if folder.exists():
        run.append("--resume")
    ended = (folder / FILE_NAME).is_file() and read_results(folder).final is not None
    for command in () if ended else ([*job, "--out", str(work / "jobs"), "--force"], run):
        print("$", shlex.join(command), flush=True)
        subprocess.run(command, check=True)
    return shlex.join(job), folder / BEST


def pooled_without(site: str, task: str, *, seed: int, settings: Sequence[str], work: Path) -> tuple[str, Path]:
    """The same of a model of all other sites' images in one place; each site's is trained at once."""
    folder = work / f"pooled_seed{seed}"
    command = [
        "fedshift",
        "leave-one-out",
        "all",
        task,
        "--sites",
        ",".join(SITES),
        "--seed",
        str(seed),
        "--set",
        *settings,
    ]
    if not (folder / LeaveOneOut.FILE_NAME).is_file():
        run = [*command, "--workspace", str(folder)]
        print("$", shlex.join(run), flush=True)
        subprocess.run(run, check=True)
    return shlex.join(command), folder / site / BEST
