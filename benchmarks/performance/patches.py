"""What each patch of NVFlare is worth: the same run with all of them, and without one of them at a time.

    python -m benchmarks.performance.patches idle --repeats 5

Workloads, all of them FedAvg at six phantom sites unless they say otherwise:

- ``idle``: rounds in which sites send back the model (4.4 MB) that they received, with ``fedshift run``;
- ``training``: rounds with one local epoch, with ``fedshift run``;
- ``idle_6``: the same with ``-p 6``, a process for each site, as sites have it that are deployed;
- ``bare``: idle rounds with NVFlare's own command, ``nvflare simulator -t 1``;
- ``memory_6`` and ``memory_16``: idle rounds of a 31 MB model at so many sites, each in a process of its own;
- ``long``: many idle rounds, to see what grows.

The environment variable FEDSHIFT_WITHOUT_PATCHES leaves patches out by name. All variants run in turn, ``--repeats``
times, so that whatever else the machine does meets all of them; ``ratio`` is the median over the repeats of a variant
divided by the run with all patches in the same repeat. Processor seconds are of all processes of a run, with those
that have ended; memory is their proportional set size (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil  # type: ignore[import-untyped]

from benchmarks.performance import record
from benchmarks.performance.flare_overhead import BARE, RUN, environment, idle_job, write_idle
from benchmarks.performance.many_rounds import memory
from benchmarks.performance.server_memory import copy_site, job_of, listener, resident
from data_prep.phantom import make_phantom
from fedshift.flare.export import write_job
from fedshift.reporting.progress import read_progress
from fedshift.schema.job import JobSpec
from flare_armour.patches.patch import SKIP

ALL = "all patches"
NONE = "no patch"
LONGEST = 3600.0
"""Seconds after which a run is given up."""


@dataclass(frozen=True)
class Workload:
    """A job, how it is run, and the patches that are left out in turn."""

    rounds: int
    patches: tuple[str, ...]
    trains: bool = False
    sites: int | None = None
    command: tuple[str, ...] = RUN
    server: bool = False
    """Whether the server's process is looked at on its own."""


MESSAGES = ("message_text", "numpy_arrays", "message_pieces", "unpack_in_turn", "spooled_answers", "send_window")
SERVER = ("broadcast_copy", "memory_release")
PROCESSES = ("long_poll", "simulator_workers", "simulator_sleeps")
WORKLOADS = {
    "idle": Workload(15, (*MESSAGES, *SERVER, *PROCESSES)),
    "idle_6": Workload(
        15,
        ("message_text", "numpy_arrays", "message_pieces", "long_poll", "simulator_workers"),
        command=(*RUN, "-p", "6"),
    ),
    "training": Workload(3, ("message_text", "numpy_arrays", "long_poll", "simulator_workers"), trains=True),
    "bare": Workload(2, ("simulator_workers", "simulator_sleeps"), command=BARE),
    "memory_6": Workload(3, (*MESSAGES[2:], *SERVER), sites=6, server=True),
    "memory_16": Workload(2, (*MESSAGES[2:], *SERVER), sites=16, server=True),
    "long": Workload(500, ("memory_release",)),
}
EVERY_PATCH = tuple(dict.fromkeys(name for workload in WORKLOADS.values() for name in workload.patches))


def main() -> None:
    """Measure one workload and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=(*WORKLOADS, "table"), help="what to run, or print the results' table")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--patches", nargs="+", choices=EVERY_PATCH, help="only these")
    args = parser.parse_args()
    if args.workload == "table":
        print("\n".join(table()))
        return
    workload, load = WORKLOADS[args.workload], record.load()
    names = args.patches or workload.patches
    variants: dict[str, tuple[str, ...]] = {ALL: (), **{name: (name,) for name in names}, NONE: EVERY_PATCH}
    seen: dict[str, list[dict[str, float] | None]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepare(workload, folder)
        for number in range(args.repeats):
            for name, without in variants.items():
                seen[name].append(measure(workload, folder, without))
                print(f"{number + 1}/{args.repeats} {name}: {json.dumps(seen[name][-1])}", flush=True)
            content = {"what": __doc__.split("\n\n", 1)[0], "rounds": workload.rounds, "variants": summary(seen)}
            path = record.write(f"patches_{args.workload}", content, load=load, module="patches")
    print(path)


COLUMNS = (
    ("idle round, s", "idle", "round_seconds"),
    ("idle round, CPU s", "idle", "round_cpu_seconds"),
    ("launch, CPU s", "idle", "launch_cpu_seconds"),
    ("memory, all processes", "idle", "memory_mb"),
    ("whole idle run, s", "idle", "whole_run_seconds"),
    ("idle round, `-p 6`, s", "idle_6", "round_seconds"),
    ("training round, CPU s", "training", "round_cpu_seconds"),
    ("bare command's round, s", "bare", "round_seconds"),
    ("server, 6 sites", "memory_6", "server_peak_mb"),
    ("server, 16 sites", "memory_16", "server_peak_mb"),
    ("memory, 500 rounds", "long", "memory_mb"),
)
"""The table of docs/performance.md: heading, workload, figure."""


def table() -> list[str]:
    """The lines of the table, made from the committed files."""
    files = {name: json.loads((record.RESULTS / f"patches_{name}.json").read_text("utf-8")) for name in WORKLOADS}
    names = list(dict.fromkeys(name for file in files.values() for name in file["variants"]))
    lines = ["| without | " + " | ".join(heading for heading, _, _ in COLUMNS) + " |", "|---|" + "---:|" * len(COLUMNS)]
    for name in sorted(names, key=[*EVERY_PATCH, *names].index):
        if name == ALL:
            continue
        cells = []
        for _, workload, figure in COLUMNS:
            ratio = files[workload]["variants"].get(name, {}).get(figure, {}).get("ratio")
            cells.append("" if ratio is None else f"{ratio:.2f}")
        lines.append(f"| {'all of them' if name == NONE else name} | {' | '.join(cells)} |")
    return lines


def prepare(workload: Workload, folder: Path) -> None:
    """The job, and its sites' data."""
    phantom = folder / "share" / "fedshift" / "phantom"
    if workload.sites is None:
        make_phantom(phantom, cases=3, matrices=(96,))
        job = idle_job(workload.rounds)
    else:
        raw = job_of(workload.sites).dump()
        raw["task"]["schedule"]["rounds"] = workload.rounds
        job = JobSpec.parse(raw, where="idle")
        make_phantom(phantom, cases=3, sites=["BIDMC"], matrices=(96,))
        for site in job.task.sites:
            copy_site(phantom / "prostate" / "BIDMC", site)
    if workload.trains:
        raw = job.dump()
        raw["task"]["schedule"] |= {"local_steps": None, "local_epochs": 1}
        write_job(JobSpec.parse(raw, where="training"), folder / "job")
    else:
        write_idle(job, folder / "job")


def measure(workload: Workload, folder: Path, without: Sequence[str]) -> dict[str, float] | None:
    """One run; None if it fails."""
    workspace = folder / "run"
    shutil.rmtree(workspace, ignore_errors=True)
    words = [sys.executable, *workload.command, str(folder / "job"), "-w", str(workspace)]
    if workload.sites is not None:
        words += ["-p", str(workload.sites), "--ignore-memory"]
    process = subprocess.Popen(
        words,
        env=environment(folder) | {SKIP: ",".join(without)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    began = time.monotonic()
    moments: dict[int, tuple[float, float, int]] = {}
    trained: float | None = None
    server, idle, peak, largest, looked = None, 0, 0, 0, 0.0
    while process.poll() is None:
        now = time.monotonic()
        if now - began > LONGEST:
            end(process)
            return None
        seen = read_progress(workspace / "server" / "simulate_job") if workspace.is_dir() else None
        if seen is not None and seen.step == "training" and seen.round not in moments:
            moments[seen.round] = (now, cpu_seconds(process.pid), memory(process.pid))
        if seen is not None and (seen.step == "evaluation" or seen.state == "finished"):
            trained = trained or now
        if seen is not None and seen.round >= 1 and now - looked > 0.5:
            looked, largest = now, max(largest, memory(process.pid))
        if workload.server and seen is not None:
            server = server or listener(process.pid)
            if server is not None and seen.round >= 1:
                idle = idle or resident(server, "VmRSS")
                peak = max(peak, resident(server, "VmHWM"))
        time.sleep(0.02)
    ended = time.monotonic()
    if process.returncode or trained is None or len(moments) < 2:
        return None
    since, until = min(moments), max(moments)  # on a busy machine a round may pass unseen
    rounds = until - since
    (first, first_cpu, _), (end_, end_cpu, _) = moments[since], moments[until]
    result = {
        "launch_seconds": first - began,
        "launch_cpu_seconds": first_cpu,
        "round_seconds": (end_ - first) / rounds,
        "round_cpu_seconds": (end_cpu - first_cpu) / rounds,
        "end_seconds": ended - trained,
        "whole_run_seconds": ended - began,
        "memory_mb": largest / 1e6,
    }
    if workload.server:
        result |= {"server_peak_mb": peak / 1e6}
    if rounds >= 100:
        near = lambda number: min(moments, key=lambda seen: abs(seen - number))  # noqa: E731
        a, b = near(rounds // 3), until
        result |= {
            "growth_kb_a_round": (moments[b][2] - moments[a][2]) / 1e3 / (b - a),
            "late_over_early_cpu": ((moments[b][1] - moments[near(2 * rounds // 3)][1]) / (b - near(2 * rounds // 3)))
            / ((moments[a][1] - moments[near(1)][1]) / (a - near(1))),
        }
    return {name: round(value, 4) for name, value in result.items()}


def cpu_seconds(pid: int) -> float:
    """Processor seconds of a process and all below it, with those that have ended."""
    total = 0.0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue  # it has just ended
    return total


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a run and all its processes."""
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    for member in family:
        try:
            member.kill()
        except psutil.Error:
            continue
    process.wait()


def summary(seen: Mapping[str, Sequence[Mapping[str, float] | None]]) -> dict[str, object]:
    """Per variant and figure: its repeats, their median, and the median of the ratios to the run with all patches."""
    rows: dict[str, object] = {}
    for name, runs in seen.items():
        done = [(run, base) for run, base in zip(runs, seen[ALL], strict=False) if run is not None and base is not None]
        figures = {}
        for key in done[0][0] if done else ():
            ratios = [run[key] / base[key] for run, base in done if base[key]]
            figures[key] = {
                "median": round(median(run[key] for run, _ in done), 4),
                "ratio": round(median(ratios), 3) if ratios else None,
                "repeats": [run[key] for run, _ in done],
            }
        rows[name] = {"failed": len(runs) - len(done), **figures}
    return rows


if __name__ == "__main__":
    main()
