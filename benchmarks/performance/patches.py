"""What the patches of NVFlare are worth: the same training with all of them, and without some of them at a time.

    python -m benchmarks.performance.patches demo --repeats 3

Workloads, all of them FedAvg:

- ``demo``: the demo's job (`make demo`: six phantom sites, slices of 96x96) with ``fedshift run``;
- ``hippocampus``: that task in 3D at four sites of made-up volumes, with ``fedshift run``;
- ``provisioned``: the demo's job at six provisioned sites, each a process of its own;
- ``bare``: the demo's job with NVFlare's own command, ``nvflare simulator -t 1``;
- ``memory``: sites that do not train and a model of 31 MB, each of 16 in a process of its own: the server's memory.

The environment variable FLARE_ARMOUR_WITHOUT leaves patches out by name. All variants run in turn, ``--repeats``
times, so that whatever else the machine does meets all of them; ``ratio`` is the median over the repeats of a variant
divided by the run with all patches in the same repeat. Processor seconds are of all processes of a run, with those
that have ended. Results may have patches that were dropped after they were measured.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil  # type: ignore[import-untyped]

from benchmarks import frame
from benchmarks.performance.flare_overhead import BARE, ROOT, RUN, environment, write_idle
from benchmarks.performance.made_volumes import hippocampus_sites
from benchmarks.performance.server_memory import copy_site, job_of, listener, resident
from data_prep.phantom import make_phantom
from fedshift.federation.resolve import resolve
from fedshift.flare.export import write_job
from fedshift.reporting.progress import read_progress
from fedshift.schema.job import JobSpec
from flare_armour.patch import SKIP

ALL = "all patches"
MEMORY = ("message_pieces", "memory_release", "message_text")
WORKERS = ("simulator_workers", "simulator_sleeps")
EVERY = (*MEMORY, *WORKERS)
LONGEST = 3600.0
"""Seconds after which a run is given up."""
LOCK = "FEDSHIFT_MEASURE_LOCK"
"""Environment variable: a file that is locked during each run, where several people measure on one machine."""


@dataclass(frozen=True)
class Workload:
    """How a job is run, and the patches that are left out in turn."""

    rounds: int
    without: tuple[tuple[str, ...], ...]
    command: tuple[str, ...] = RUN


WORKLOADS = {
    "demo": Workload(3, (("message_text",), MEMORY, WORKERS, EVERY)),
    "hippocampus": Workload(3, (("message_text",), EVERY)),
    "provisioned": Workload(3, (("message_text",), EVERY)),
    "bare": Workload(2, (("simulator_workers",), ("simulator_sleeps",)), command=BARE),
    "memory": Workload(2, tuple((name,) for name in MEMORY), command=(*RUN, "-p", "16")),
}


def main() -> None:
    """Measure one workload and write the figures."""
    parser = frame.parser(__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--patches", nargs="+", choices=EVERY, help="only these, one at a time")
    args = parser.parse_args()
    workload = WORKLOADS[args.workload]
    without = [(name,) for name in args.patches] if args.patches else workload.without
    variants = {ALL: (), **{" and ".join(names) if names != EVERY else "no patch": names for names in without}}
    runs: dict[str, list[dict[str, float] | None]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepare(args.workload, folder)
        run = provisioned if args.workload == "provisioned" else simulated
        for number in range(args.repeats):
            for name, without in variants.items():
                with alone():
                    runs[name].append(run(folder, workload, without))
                print(f"{number + 1}/{args.repeats} {name}: {json.dumps(runs[name][-1])}", flush=True)
            content = {"what": __doc__.split("\n\n", 1)[0], "rounds": workload.rounds, "variants": summary(runs)}
            frame.write_measured(f"patches_{args.workload}", content, module="patches")


@contextmanager
def alone() -> Iterator[None]:
    """No other run of this machine that takes the same lock goes on meanwhile."""
    with open(os.environ.get(LOCK, os.devnull), "w") as file:  # noqa: PTH123  os.devnull is no file to make
        if LOCK in os.environ:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prepare(name: str, folder: Path) -> None:
    """The job, and its sites' data."""
    phantom, rounds = folder / "share" / "fedshift" / "phantom", WORKLOADS[name].rounds
    if name == "hippocampus":
        job = resolve("hippocampus", "fedavg", options=[f"schedule.rounds={rounds}", "schedule.local_epochs=1"])
        shutil.copytree(hippocampus_sites(folder / "made", cases=40), folder / "share" / "fedshift" / job.task.dataset)
        write_job(job, folder / "job")
        return
    if name == "memory":
        raw = job_of(16).dump()
        raw["task"]["schedule"]["rounds"] = rounds
        job = JobSpec.parse(raw, where=name)
        make_phantom(phantom, cases=3, sites=["BIDMC"], matrices=(96,))
        for site in job.task.sites:
            copy_site(phantom / "prostate" / "BIDMC", site)
        write_idle(job, folder / "job")
        return
    job = resolve("prostate", "fedavg", protocol="quick", options=[f"schedule.rounds={rounds}"])
    make_phantom(phantom, cases=8, matrices=(96,))
    write_job(job, folder / "job")


def simulated(folder: Path, workload: Workload, without: Sequence[str]) -> dict[str, float] | None:
    """One run in FLARE's simulator; None if it fails."""
    workspace = folder / "run"
    shutil.rmtree(workspace, ignore_errors=True)
    ours = () if workload.command == BARE else ("--ignore-memory",)
    process = subprocess.Popen(
        [sys.executable, *workload.command, str(folder / "job"), "-w", str(workspace), *ours],
        env=environment(folder) | {SKIP: ",".join(without)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        run = follow(
            workspace / "server" / "simulate_job",
            goes_on=lambda: process.poll() is None,
            parties=lambda: (process.pid,),
            server=lambda: listener(process.pid),
        )
    finally:
        end(process)
    return None if process.returncode else run


def provisioned(folder: Path, workload: Workload, without: Sequence[str]) -> dict[str, float] | None:
    """One run of a federation with real kits; None if it fails."""
    sys.path.insert(0, str(ROOT / "tests"))
    from flare.deployed import SERVER, Deployed, DeployedRun

    from fedshift.flare.export import read_job_folder

    os.environ[SKIP] = ",".join(without)
    shutil.rmtree(folder / "federation", ignore_errors=True)
    job = read_job_folder(folder / "job")
    data = folder / "share" / "fedshift" / "phantom" / "prostate"
    with Deployed(folder / "federation", {site: data / site for site in job.task.sites}) as federation:
        for name in (SERVER, *federation.sites):
            federation.start(name, environment={SKIP: ",".join(without)})
        federation.connected(federation.sites)
        run = DeployedRun.submit(federation, job)
        server = federation.kits / SERVER / run.job_id
        return follow(
            server,
            goes_on=lambda: (progress := read_progress(server)) is None or progress.state == "running",
            parties=lambda: tuple(process.pid for process in federation.processes.values()),
            server=lambda: getattr(federation.job_process(SERVER, run.job_id), "pid", None),
        )


def follow(
    folder: Path,
    *,
    goes_on: Callable[[], bool],
    parties: Callable[[], Iterable[int]],
    server: Callable[[], int | None],
) -> dict[str, float] | None:
    """Look at a run until it ends; what a round takes, from the opening of the first seen to that of the last."""
    began = time.monotonic()
    moments: dict[int, tuple[float, float]] = {}
    pid, peak = None, 0
    while goes_on() and time.monotonic() < began + LONGEST:
        progress = read_progress(folder) if folder.is_dir() else None
        if progress is not None and progress.step == "training" and progress.round not in moments:
            moments[progress.round] = time.monotonic(), sum(cpu_seconds(party) for party in parties())
        if progress is not None and progress.round >= 1:
            pid = pid or server()
            peak = max(peak, resident(pid, "VmHWM") if pid else 0)
        time.sleep(0.02)
    if len(moments) < 2:
        return None
    (first, first_cpu), (last, last_cpu) = moments[min(moments)], moments[max(moments)]
    rounds = max(moments) - min(moments)  # on a busy machine a round may pass unseen
    figures = {
        "launch_seconds": first - began,
        "launch_cpu_seconds": first_cpu,
        "round_seconds": (last - first) / rounds,
        "round_cpu_seconds": (last_cpu - first_cpu) / rounds,
        "whole_run_seconds": time.monotonic() - began,
        "server_peak_mb": peak / 1e6,
    }
    return {name: round(value, 3) for name, value in figures.items()}


def cpu_seconds(pid: int) -> float:
    """Processor seconds of a process and all below it, with those that have ended."""
    total = 0.0
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return total
    for process in family:
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue  # it has just ended
    return total


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a run and all its processes, if it goes on."""
    if process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGKILL)
        for member in family:
            try:
                member.kill()
            except psutil.Error:
                continue
        process.wait()


def summary(runs_of: Mapping[str, Sequence[Mapping[str, float] | None]]) -> dict[str, object]:
    """Per variant and figure: its repeats, their median, and the median of the ratios to the run with all patches."""
    rows: dict[str, object] = {}
    for name, runs in runs_of.items():
        finished = [
            (run, base) for run, base in zip(runs, runs_of[ALL], strict=False) if run is not None and base is not None
        ]
        figures = {}
        for key in finished[0][0] if finished else ():
            ratios = [run[key] / base[key] for run, base in finished if base[key]]
            figures[key] = {
                "median": round(median(run[key] for run, _ in finished), 4),
                "ratio": round(median(ratios), 3) if ratios else None,
                "repeats": [run[key] for run, _ in finished],
            }
        rows[name] = {"failed": len(runs) - len(finished), **figures}
    return rows


if __name__ == "__main__":
    main()
