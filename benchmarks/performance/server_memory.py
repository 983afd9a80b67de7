"""What the server's memory comes to with more sites: a model of 31 MB, sites that do not train.

    python -m benchmarks.performance.server_memory

``fedshift run -p N`` with N sites, each a client and a process of its own, which all answer at the same moment. Told is
the server's largest resident set over three rounds less what it had before the first, in models.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from benchmarks import frame
from benchmarks.performance.flare_overhead import environment, idle_job, write_idle
from data_prep.phantom import make_phantom
from fedshift.federation.tensors import read_weights
from fedshift.reporting.progress import read_progress
from fedshift.schema.job import JobSpec
from fedshift.tasks.kinds import build_task

ROUNDS = 3
FEATURES = 32
"""Of the U-Net: 31 MB."""


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[4, 16, 32])
    args = parser.parse_args()
    rows = []
    for count in args.sites:
        with tempfile.TemporaryDirectory() as scratch:
            rows.append({"sites": count, **measure(Path(scratch), count)})
        print(json.dumps(rows[-1]), flush=True)
    content = {"what": f"{ROUNDS} rounds of a U-Net of {FEATURES} features with sites that do not train", "runs": rows}
    frame.write_measured("server_memory", content)


def measure(folder: Path, count: int) -> dict[str, float]:
    """A run with so many sites."""
    job = job_of(count)
    write_idle(job, folder / "job")
    phantom = folder / "share" / "fedshift" / "phantom"
    make_phantom(phantom, cases=3, sites=["BIDMC"], matrices=(96,))
    for site in job.task.sites:
        copy_site(phantom / "prostate" / "BIDMC", site)
    model = sum(value.nbytes for value in read_weights(build_task(job).network()).values())
    workspace = folder / "run"
    command = [sys.executable, "-m", "fedshift.cli", "run", str(folder / "job"), "-w", str(workspace)]
    process = subprocess.Popen(
        [*command, "-p", str(count), "--ignore-memory"],
        env=environment(folder),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    idle, peak, began, server = 0, 0, 0.0, None
    while process.poll() is None:
        progress = read_progress(workspace / "server" / "simulate_job") if workspace.is_dir() else None
        if server is None and progress is not None:
            server = listener(process.pid)
        if server is not None and progress is not None and progress.round >= 1 and not idle:
            idle, began = resident(server, "VmRSS"), time.monotonic()
        if server is not None and idle:
            peak = max(peak, resident(server, "VmHWM"))
        ended = time.monotonic()
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"the run failed with exit code {process.returncode}")
    return {
        "model_mb": round(model / 1e6, 1),
        "server_before_mb": round(idle / 1e6),
        "server_peak_mb": round(peak / 1e6),
        "models_above": round((peak - idle) / model, 1),
        "seconds_a_round": round((ended - began) / ROUNDS, 1),
    }


def job_of(count: int) -> JobSpec:
    """FedAvg at so many sites."""
    raw = idle_job(ROUNDS).dump()
    raw["task"]["network"]["options"]["features"] = FEATURES
    raw["task"]["sites"] = [f"site_{number:02d}" for number in range(count)]
    raw["federation"]["min_sites"] = count
    return JobSpec.parse(raw, where="idle")


def copy_site(folder: Path, name: str) -> None:
    """The same scans under another name."""
    target = folder.with_name(name)
    shutil.copytree(folder, target)
    manifest = target / "manifest.json"
    content = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps({**content, "site": name}), encoding="utf-8")


def listener(pid: int) -> int | None:
    """The process of a run that others connect to. Workers listen for a moment too, in sessions of their own."""
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if os.getsid(process.pid) != process.pid and any(
                told.status == psutil.CONN_LISTEN for told in process.net_connections("tcp")
            ):
                return int(process.pid)
        except (psutil.Error, ProcessLookupError):
            continue  # it has just ended
    return None


def resident(pid: int, key: str) -> int:
    """Bytes, as Linux tells them; 0 once the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    told = [line.split()[1] for line in lines if line.startswith(f"{key}:")]
    return int(told[0]) * 1024 if told else 0


if __name__ == "__main__":
    main()
