"""What a round costs with ``fedshift run``, and in FLARE's bare simulator with 6, 2 and 1 sites at work at a time.

    python benchmarks/flare_round_cost.py --out benchmarks/results/flare_round_cost.json

Runs a committed job, cut to a few rounds on three phantom patients a site, one epoch a
round. Training is in the figures: the same rounds in one process, one site after another, are the yardstick.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import fmean

import frame
import psutil
import torch

from data_prep.phantom import make_phantom
from fedshift.federation.in_process import run_in_process
from fedshift.flare.export import read_job_folder, write_job
from fedshift.schema.job import JobSpec
from fedshift.schema.results import Results, read_results

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("--job", type=Path, default=ROOT / "jobs" / "fedfa_fedrdn_prostate")
    parser.add_argument("--threads", type=int, nargs="+", default=[6, 2, 1])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        share = folder / "share"
        make_phantom(share / "fedshift" / "phantom", cases=3, matrices=(96,))
        job = cut(args.job, rounds=args.rounds)
        write_job(job, folder / "job")
        data = {site: share / "fedshift" / "phantom" / "prostate" / site for site in job.task.sites}
        started = time.monotonic()
        run_in_process(job, data, folder / "one")
        figures = {"one process": summary(read_results(folder / "one"), time.monotonic() - started, peak=None)}
        commands = {"fedshift run": [sys.executable, "-m", "fedshift.cli", "run"]}
        stock = [sys.executable, "-m", "nvflare.private.fed.app.simulator.simulator", "-t"]
        commands |= {f"nvflare simulator -t {threads}": [*stock, str(threads)] for threads in args.threads}
        for number, (name, command) in enumerate(commands.items()):
            figures[name] = simulator(folder, share, command, folder / f"run_{number}")
            print(json.dumps({name: figures[name]}), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "what": f"{args.job.name}, {args.rounds} rounds of one epoch, 6 sites of 3 phantom cases, matrix 96",
        "command": "python benchmarks/flare_round_cost.py --out benchmarks/results/flare_round_cost.json",
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "load_at_start": load,
            "load_at_end": os.getloadavg()[0],
        },
        "runs": figures,
    }
    frame.write(args.out, content)


def cut(folder: Path, *, rounds: int) -> JobSpec:
    """The job with fewer rounds and epochs."""
    raw = read_job_folder(folder).dump()
    raw["task"]["schedule"] |= {"rounds": rounds, "local_epochs": 1}
    return JobSpec.parse(raw, where=str(folder))


def simulator(folder: Path, share: Path, command: list[str], workspace: Path) -> dict[str, object]:
    """One run of FLARE's simulator, with the memory of all its processes watched."""
    environment = {k: v for k, v in os.environ.items() if k != "FEDSHIFT_DATA"}
    environment |= {"XDG_DATA_HOME": str(share), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "custom"), str(ROOT)])
    started = time.monotonic()
    process = subprocess.Popen(
        [*command, str(folder / "job"), "-w", str(workspace)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    peak = [0]
    watch = threading.Thread(target=_watch, args=(process, peak))
    watch.start()
    if process.wait():
        raise SystemExit(f"the simulator ended with exit code {process.returncode}")
    watch.join()
    results = read_results(workspace / "server" / "simulate_job")
    return summary(results, time.monotonic() - started, peak=peak[0])


def _watch(process: subprocess.Popen[bytes], peak: list[int]) -> None:
    """Largest sum of proportional set sizes, which counts shared memory once."""
    while process.poll() is None:
        total = 0
        try:
            parent = psutil.Process(process.pid)
            for member in (parent, *parent.children(recursive=True)):
                total += member.memory_full_info().pss
        except psutil.Error:
            continue
        peak[0] = max(peak[0], total)
        time.sleep(0.5)


def summary(results: Results, seconds: float, *, peak: int | None) -> dict[str, object]:
    """The first round also holds imports and warming up, so it is kept apart."""
    rounds = [record.seconds for record in results.rounds]
    training = [sum(site.seconds for site in record.sites.values()) for record in results.rounds]
    return {
        "seconds_first_round": rounds[0],
        "seconds_later_rounds": round(fmean(rounds[1:]), 2),
        "of_which_sites_at_work": round(fmean(training[1:]), 2),
        "seconds_in_all": round(seconds, 1),
        "peak_memory_mb": None if peak is None else round(peak / 2**20),
    }


if __name__ == "__main__":
    main()
