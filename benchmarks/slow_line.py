"""A large model over a slow line that stalls and is cut: seconds and bytes of a round, memory at both ends.

    python benchmarks/slow_line.py --megabytes 1000 --out benchmarks/results/slow_line.json

A provisioned federation of two sites that do not train, each behind a line of its own (`Line` of tests/flare). On its
way down and on its way up the model meets a stall of `STALL` seconds, after which the connection goes on, and a cut of
`CUT` seconds, after which it is gone. Told are the job processes' largest proportional set sizes (PSS) over the round
less what they had as it opened, and the bytes that passed the lines. ``--weights-as`` gives the arms.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import frame

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "custom"), str(ROOT)]

from conftest import make_image_site, small_image_job  # noqa: E402
from flare.deployed import SERVER, Deployed, Line, wait_for  # noqa: E402

from benchmarks.performance.flare_overhead import write_idle  # noqa: E402
from fedshift.federation.tensors import read_weights  # noqa: E402
from fedshift.flare.kit import open_kit  # noqa: E402
from fedshift.flare.kit_files import lay, local_files  # noqa: E402
from fedshift.schema.job import JobSpec  # noqa: E402
from fedshift.tasks.kinds import build_task  # noqa: E402

SITES = ("A", "B")
STALL, CUT = 10.0, 20.0
"""Seconds."""
SETTLED = 3.0
"""Seconds after a round has opened, in which no site has a model yet."""
BYTES_OF_WIDTH = 5750
"""Of the network ``digits_cnn`` at 16 x 16, for the square of its width."""


class Federation(Deployed):
    """Its kits take a job with code, for the executor that does not train."""

    def lay_out(self, name: str, data: Mapping[str, Path] | None = None) -> None:
        """As usual, with FLARE's own silence."""
        kit = open_kit(self.kits / name)
        lay(local_files(kit, data=data, allow_code=True), kit.local, force=True)


def main() -> int:
    parser = frame.parser(__doc__, megabytes=1000)
    parser.add_argument("--rate", type=float, default=20, help="Mbit/s of each line, each way")
    parser.add_argument("--weights-as", nargs="+", default=["fp32"], choices=["fp32", "bf16", "int8"])
    parser.add_argument("--whole", action="store_true", help="neither stalls nor cuts")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    runs = []
    for weights_as in args.weights_as:
        with tempfile.TemporaryDirectory() as scratch:
            runs.append(measure(Path(scratch), args.megabytes, args.rate, weights_as, faults=not args.whole))
        print(json.dumps(runs[-1]), flush=True)
    content = {
        "command": " ".join(("python", "benchmarks/slow_line.py", *sys.argv[1:])),
        "what": f"one round of {len(SITES)} sites that do not train; stalls of {STALL:g} s, cuts of {CUT:g} s",
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "load_before": round(os.getloadavg()[0], 2),
            **{package: version(package) for package in ("torch", "nvflare")},
        },
        "runs": runs,
    }
    frame.write(args.out, content)
    return 0


def measure(folder: Path, megabytes: int, rate: float, weights_as: str, *, faults: bool) -> dict[str, Any]:
    """One round."""
    job = job_of(megabytes, weights_as)
    model = sum(value.nbytes for value in read_weights(build_task(job).network()).values())
    sent = model * {"fp32": 1.0, "bf16": 0.5, "int8": 0.25}[weights_as]
    write_idle(job, folder / "job")
    data = {site: make_image_site(folder / "data", site) for site in SITES}
    lines = {site: Line(rate_mbit=rate) for site in SITES}
    for line in lines.values():
        line.__enter__()
    with Federation(folder / "federation", data, lines=lines) as federation:
        federation.start_all()
        job_id = federation.submit(folder / "job")
        watched = Watched(federation, job_id)
        passed = {name: (line.up.passed, line.down.passed) for name, line in lines.items()}
        opened, before = watched.round_opens()
        if faults:
            for line in lines.values():
                threading.Thread(target=trouble, args=(line, sent), daemon=True).start()
        ended, peak = watched.round_closes()
        told = federation.results(job_id)
        megabytes_up = {name: round((lines[name].up.passed - passed[name][0]) / 1e6, 1) for name in SITES}
        megabytes_down = {name: round((lines[name].down.passed - passed[name][1]) / 1e6, 1) for name in SITES}
        federation.session.abort_job(job_id)
        if os.environ.get("KEEP_LOGS"):
            for name in (SERVER, *SITES):
                Path(os.environ["KEEP_LOGS"], f"{name}.{weights_as}.log").write_text(federation.log(name))
    for line in lines.values():
        line.__exit__()
    assert told is not None
    return {
        "weights_as": weights_as,
        "model_mb": round(model / 1e6, 1),
        "rate_mbit": rate,
        "faults": faults,
        "seconds": round(ended - opened, 1),
        "seconds_of_the_line": round(2 * sent * 8e-6 / rate, 1),
        "answered": sorted(told.rounds[0].sites),
        "megabytes_up": megabytes_up,
        "megabytes_down": megabytes_down,
        "before_mb": {name: round(value / 1e6) for name, value in before.items()},
        "peak_mb": {name: round(value / 1e6) for name, value in peak.items()},
        "models_above": {name: round((peak[name] - before[name]) / model, 2) for name in peak},
    }


def job_of(megabytes: int, weights_as: str) -> JobSpec:
    """FedAvg of a network of about so many MB with random weights on tiny images."""
    width = round((megabytes * 1e6 / BYTES_OF_WIDTH) ** 0.5)
    schedule = ("schedule.rounds=1", "schedule.local_steps=1")
    options = (f"network.options.width={width}", f"federation.weights_as={weights_as}", *schedule)
    more = ("federation.round_timeout=14400", "federation.grace=600", "federation.min_sites=2")
    return small_image_job("fedavg", *options, *more, sites=SITES)


def trouble(line: Line, size: float) -> None:
    """Stall and cut a line while the model goes down it, and again on its way up."""
    for direction in (line.down, line.up):
        start = direction.passed
        wait_until(lambda d=direction, s=start: d.passed - s > 0.3 * size)
        line.cut()
        time.sleep(STALL)
        line.go_on()
        wait_until(lambda d=direction, s=start: d.passed - s > 0.7 * size)
        line.cut()
        time.sleep(CUT)
        line.mend()


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again."""
    while not condition():
        time.sleep(0.05)


class Watched:
    """The memory of a job's processes, from moment to moment."""

    def __init__(self, federation: Federation, job_id: str) -> None:
        self._federation, self._job_id = federation, job_id
        self._peak: dict[str, int] = {}

    def round_opens(self) -> tuple[float, dict[str, int]]:
        """When the first round opened, and the least memory in the `SETTLED` seconds after that."""
        while self._round() < 1:
            time.sleep(0.02)
        opened, least = time.monotonic(), dict[str, int]()
        while time.monotonic() < opened + SETTLED:
            for name, size in self._sizes().items():
                least[name] = min(least.get(name, size), size)
            time.sleep(0.02)
        return opened, least

    def round_closes(self) -> tuple[float, dict[str, int]]:
        """When it closed, and the largest memory."""
        wait_for(self._closed, 6 * 3600, "the round to close")
        return time.monotonic(), dict(self._peak)

    def _closed(self) -> bool:
        for name, size in self._sizes().items():
            self._peak[name] = max(self._peak.get(name, 0), size)
        progress = self._federation.progress(self._job_id)
        return progress is not None and (progress.step == "evaluation" or progress.state != "running")

    def _round(self) -> int:
        progress = self._federation.progress(self._job_id)
        return -1 if progress is None else progress.round

    def _sizes(self) -> dict[str, int]:
        processes = {name: self._federation.job_process(name, self._job_id) for name in (SERVER, *SITES)}
        return {name: pss(process.pid) for name, process in processes.items() if process is not None}


def pss(pid: int) -> int:
    """Proportional set size in bytes; 0 once the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    sys.exit(main())
