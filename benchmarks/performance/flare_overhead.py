"""What a round costs under FLARE when no site trains: six sites, a model of 4 MB.

    python -m benchmarks.performance.flare_overhead --flower FLOWER/bin/python

Compared are ``fedshift run``, which is FLARE's simulator with the sites shared out among as many workers as there are
cores, and ``fedshift run -p 6``; FLARE's bare command, which has one site at work at a time, and with a job in which
one client hosts all sites; NVFlare's own `FedAvgRecipe` with its client API, and Flower's simulation (in an
environment of its own: ``pip install 'flwr[simulation]'``), all with clients that send back the weights they got; the
coordinator alone, in one process, with the same checks and files; and a loop that only averages arrays. A round is the
time between the ends, or the beginnings, of two rounds, averaged over all but the first. The bare command has fewer.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]

from benchmarks import frame
from data_prep.phantom import make_phantom
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.federation.tensors import read_weights
from fedshift.flare.export import read_job_folder, write_job
from fedshift.reporting.progress import read_progress
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Update
from fedshift.tasks.kinds import build_task

ROOT = Path(__file__).resolve().parents[2]
FEATURES = 12
"""Of the U-Net: 4.4 MB."""
BARE_ROUNDS = 4
"""Of the bare command, where a round takes seconds."""
RUN = ("-m", "fedshift.cli", "run")
BARE = ("-m", "nvflare.private.fed.app.simulator.simulator", "-t", "1")


def main() -> None:
    args = frame.beside_flower(__doc__, rounds=20)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        job = idle_job(args.rounds)
        write_idle(job, folder / "job")
        write_idle(idle_job(BARE_ROUNDS), folder / "bare")
        write_idle(idle_job(args.rounds, hosts=1), folder / "one_host")
        make_phantom(folder / "share" / "fedshift" / "phantom", cases=3, matrices=(96,))
        launches: dict[str, list[float]] = {}
        memory: dict[str, list[float]] = {}

        def run(name: str, *command: str, job_folder: str = "job", rounds: int = args.rounds) -> float:
            moments, began, largest = simulated(folder, folder / job_folder, rounds, command)
            launches.setdefault(name, []).append(moments[0] - began)
            if largest:  # one site at a time may be between two workers
                memory.setdefault(name, []).append(largest)
            return a_round(moments)

        measures: dict[str, Callable[[], float]] = {
            "fedshift run": lambda: run("fedshift run", *RUN),
            "fedshift run -p 6": lambda: run("fedshift run -p 6", *RUN, "-p", "6"),
            "nvflare simulator": lambda: run("nvflare simulator", *BARE, job_folder="bare", rounds=BARE_ROUNDS),
            "nvflare simulator, one host": lambda: run("nvflare simulator, one host", *BARE, job_folder="one_host"),
            "NVFlare FedAvgRecipe": lambda: a_round(recipe(job, folder)),
        }
        if args.flower:
            arrays = folder / "weights.npz"
            np.savez(arrays, **read_weights(build_task(job).network()))  # type: ignore[arg-type]
            measures["Flower simulation"] = lambda: a_round(flower(args.flower, arrays, job))
        measures["coordinator in one process"] = lambda: coordinator(job, folder)
        measures["loop over arrays"] = lambda: loop(job)
        rounds = frame.in_turn(measures, args.repeats)
    content = {
        "what": f"a round of six sites that do not train, a U-Net of {FEATURES} features (4.4 MB, 136 arrays)",
        "rounds": args.rounds,
        "rounds_of_nvflare_simulator": BARE_ROUNDS,
        "seconds_a_round": rounds,
        "seconds_from_launch_to_first_training_task": {name: frame.spread(told) for name, told in launches.items()},
        "megabytes_of_the_largest_worker": {name: frame.spread(told) for name, told in memory.items()},
    }
    print(json.dumps(content, indent=1))
    frame.write_measured("flare_overhead", content)


def idle_job(rounds: int, *, hosts: int | None = None) -> JobSpec:
    """FedAvg of the prostate task with a small network."""
    raw = read_job_folder(ROOT / "jobs" / "fedavg_prostate").dump()
    raw["name"] = "idle"
    raw["task"]["network"] = {"name": "unet", "options": {"features": FEATURES}}
    raw["task"]["data"]["matrix"] = 96
    raw["task"]["schedule"] |= {"rounds": rounds, "local_steps": 1}
    raw["federation"]["hosts"] = hosts
    return JobSpec.parse(raw, where="idle")


def write_idle(job: JobSpec, target: Path) -> None:
    """The job with an executor that does not train."""
    write_job(job, target)
    code = Path(__file__).with_name("idle_executor.py").read_text(encoding="utf-8")
    (target / "app" / "custom" / "idle_executor.py").write_text(code, encoding="utf-8")
    path = target / "app" / "config" / "config_fed_client.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["executors"][0]["executor"] = {"path": "idle_executor.IdleExecutor", "args": {}}
    path.write_text(json.dumps(config), encoding="utf-8")


def environment(folder: Path) -> dict[str, str]:
    """For processes that use this checkout and the phantom in ``folder``."""
    kept = {key: value for key, value in os.environ.items() if key != "FEDSHIFT_DATA"}
    paths = os.pathsep.join([str(ROOT / "custom"), str(ROOT)])
    return kept | {"XDG_DATA_HOME": str(folder / "share"), "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}


def simulated(folder: Path, job: Path, rounds: int, command: Sequence[str]) -> tuple[list[float], float, float]:
    """When the rounds of a run in FLARE's simulator began, when it was launched, and `worker_memory`."""
    workspace = folder / "run"
    words = [sys.executable, *command, str(job), "-w", str(workspace)]
    shutil.rmtree(workspace, ignore_errors=True)
    began = time.monotonic()
    process = subprocess.Popen(words, env=environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    moments: dict[int, float] = {}
    largest = 0.0
    while process.poll() is None:
        progress = read_progress(workspace / "server" / "simulate_job") if workspace.is_dir() else None
        if progress is not None and 1 <= progress.round <= rounds and progress.round not in moments:
            moments[progress.round] = time.monotonic()
            if progress.round == rounds:  # its end is not measured
                largest = worker_memory(process.pid)
        time.sleep(0.005)
    _, complaint = process.communicate()
    if process.returncode:
        raise SystemExit(f"the run failed: {complaint.decode(errors='replace')[-500:]}")
    return [moments[number] for number in range(1, rounds + 1)], began, largest


def worker_memory(pid: int) -> float:
    """MB of the largest of a simulator's workers; what processes share is shared out among them (Linux)."""
    largest = 0.0
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if os.getsid(process.pid) == process.pid:  # so does FLARE start workers
                largest = max(largest, process.memory_full_info().pss / 1e6)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue  # it has just ended
    return largest


def recipe(job: JobSpec, folder: Path) -> list[float]:
    """When rounds of NVFlare's own recipe began: it prints it, of the first before there are any clients."""
    script = Path(__file__).with_name("idle_nvflare.py")
    words = [str(folder / "nvflare"), str(job.task.schedule.rounds), str(len(job.task.sites)), str(FEATURES)]
    moments: list[float] = []
    process = subprocess.Popen(
        [sys.executable, str(script), *words],
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdout is not None
    for line in process.stdout:
        if re.search(r"Round \d+ started", line):
            moments.append(time.monotonic())
    process.wait()
    return moments[1:]


def flower(python: Path, arrays: Path, job: JobSpec) -> list[float]:
    """When rounds of Flower's simulation ended."""
    script = Path(__file__).with_name("idle_flower.py")
    words = [str(arrays), str(job.task.schedule.rounds), str(len(job.task.sites))]
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    result = subprocess.run(
        [str(python), str(script), *words],
        env=kept | {"OMP_NUM_THREADS": "1", "RAY_DISABLE_DASHBOARD": "1"},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    told = next(line for line in result.stdout.splitlines() if line.startswith("ended:"))
    moments: list[float] = json.loads(told.removeprefix("ended:"))
    return moments


def a_round(moments: list[float]) -> float:
    """Seconds from one moment to the next, on average."""
    return (moments[-1] - moments[0]) / (len(moments) - 1)


def coordinator(job: JobSpec, folder: Path) -> float:
    """The same rounds without FLARE: guard, store on disk, average, select, write models and results."""
    data = {site: folder / "share" / "fedshift" / "phantom" / "prostate" / site for site in job.task.sites}
    sites = [Site(job, name, data[name], SiteOptions(folder / "state")) for name in job.task.sites]
    infos = [site.info() for site in sites]
    server = Coordinator(job, folder / "alone")
    server.start_anew()
    server.open(0)
    for site, info in zip(sites, infos, strict=True):
        server.register(info)
        server.accept(site.statistics())
    server.close()
    started = time.monotonic()
    for round_ in range(1, server.rounds + 1):
        broadcast = server.open(round_)
        for info in infos:
            metrics = {"train_loss": 0.0, "seconds": 0.0}
            server.accept(Update(info.site, round_, info.n_train, 1, weights=dict(broadcast.weights), metrics=metrics))
        server.close()
    return (time.monotonic() - started) / server.rounds


def loop(job: JobSpec) -> float:
    """Copies of the arrays, and their mean."""
    weights = read_weights(build_task(job).network())
    n = len(job.task.sites)
    started = time.monotonic()
    for _ in range(job.task.schedule.rounds):
        updates = [{key: value.copy() for key, value in weights.items()} for _ in range(n)]
        weights = {key: np.mean([update[key] for update in updates], axis=0) for key in weights}
    return (time.monotonic() - started) / job.task.schedule.rounds


if __name__ == "__main__":
    main()
