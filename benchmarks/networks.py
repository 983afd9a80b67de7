"""The six prostate sites, provisioned, each in a network namespace of its own behind a slow line: seconds a round.

Needs root and Linux (``ip netns``); every namespace is removed at the end. The phantom must have been made
(``fedshift data phantom``). From the repository::

    sudo python benchmarks/networks.py --out benchmarks/results/networks.json

One federation after another runs the same job: over loopback, and behind each line. The weights at the end are compared
with those of one process.

A line is a relay of this program between the site's namespace and the server. Bytes arrive after the delay and its
jitter, no faster than the rate; for every 1448 bytes that the loss strikes, all that follows waits for a retransmission
timeout (200 ms and the way there and back), which is what TCP makes of a lost packet at worst. It stands in for ``tc
netem``, which not every kernel has.
"""

from __future__ import annotations

import platform
import queue
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import frame
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "custom"), str(ROOT)]

from flare.deployed import Deployed, DeployedRun  # noqa: E402

from fedshift.data.locate import phantom_home  # noqa: E402
from fedshift.federation.in_process import run_in_process  # noqa: E402
from fedshift.federation.model_files import read_model_file  # noqa: E402
from fedshift.federation.resolve import resolve  # noqa: E402
from fedshift.schema.results import LAST  # noqa: E402

BRIDGE, SUBNET = "fedshift0", "10.77.0"
SEGMENT, TIMEOUT = 1448, 0.2
"""Bytes of a TCP segment; seconds of Linux's shortest retransmission timeout."""
OPTIONS = ("schedule.local_steps=4", "network.options.features=16", "federation.grace=300")


@dataclass(frozen=True)
class Network:
    """What lies between a site and the server: milliseconds one way, their jitter, lost packets in percent, Mbit/s."""

    name: str
    delay_ms: float
    jitter_ms: float
    loss_percent: float
    rate_mbit: float


NETWORKS = (
    Network("hospital line", 15, 3, 0.1, 100),
    Network("bad line", 60, 20, 0.3, 20),
)


class Relay:
    """A site's line to the server: an address on the bridge that leads there."""

    silence: float | None = None

    def __init__(self, network: Network, seed: int) -> None:
        self._network, self._random = network, random.Random(seed)
        self._listener = socket.create_server((f"{SUBNET}.1", 0))
        self._server = 0

    def lead_to(self, port: int) -> tuple[str, int]:
        """Lead to a port of this machine; returns where to connect for that."""
        self._server = port
        threading.Thread(target=self._accept, daemon=True).start()
        return self._listener.getsockname()[:2]

    def close(self) -> None:
        """No more connections."""
        self._listener.close()

    def _accept(self) -> None:
        while self._listener.fileno() >= 0:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("localhost", self._server))
            except OSError:
                continue
            for source, target in ((near, far), (far, near)):
                waiting: queue.Queue[tuple[float, bytes]] = queue.Queue()
                threading.Thread(target=self._receive, args=(source, waiting), daemon=True).start()
                threading.Thread(target=self._deliver, args=(target, waiting), daemon=True).start()

    def _receive(self, source: socket.socket, waiting: queue.Queue[tuple[float, bytes]]) -> None:
        free = 0.0  # when the line has passed on what was sent before
        line = self._network
        data = b"-"
        while data:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            free = max(free, time.monotonic()) + len(data) * 8e-6 / line.rate_mbit
            lost = sum(self._random.random() < line.loss_percent / 100 for _ in range(-(-len(data) // SEGMENT)))
            free += lost * (TIMEOUT + 2e-3 * line.delay_ms)
            waiting.put((free + 1e-3 * self._random.gauss(line.delay_ms, line.jitter_ms / 2), data))

    @staticmethod
    def _deliver(target: socket.socket, waiting: queue.Queue[tuple[float, bytes]]) -> None:
        while True:
            when, data = waiting.get()
            time.sleep(max(when - time.monotonic(), 0.0))
            try:
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(data)
            except OSError:
                return


def main() -> int:
    parser = frame.parser(__doc__, rounds=6)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    job = resolve("prostate", "fedfa+fedrdn", protocol="quick", options=(*OPTIONS, f"schedule.rounds={args.rounds}"))
    data = {site: phantom_home() / "prostate" / site for site in job.task.sites}
    with tempfile.TemporaryDirectory() as scratch:
        started = time.monotonic()
        run_in_process(job, data, Path(scratch) / "one")
        expected = read_model_file(Path(scratch) / "one" / LAST)["weights"]
        rows = [{"network": "one process", "seconds": round(time.monotonic() - started, 1)}]
        print(rows[-1], flush=True)
        for network in (None, *NETWORKS):
            folder = Path(scratch) / (network.name if network else "loopback").replace(" ", "_")
            with networks(job.task.sites, network) as within:
                lines = {site: Relay(network, number) for number, site in enumerate(within)} if network else {}
                with Deployed(folder, data, within=within, lines=lines) as federation:
                    rows.append(measure(federation, job, network, expected))
                for line in lines.values():
                    line.close()
            print(rows[-1], flush=True)
    content: dict[str, Any] = {
        "command": f"python benchmarks/networks.py --rounds {args.rounds}",
        "job": {"task": "prostate", "methods": "fedfa+fedrdn", "options": OPTIONS, "data": "phantom"},
        "machine": {"processor": platform.processor() or platform.machine(), "torch": torch.__version__},
        "runs": rows,
    }
    frame.write(args.out, content)
    return 0


def measure(
    federation: Deployed, job: Any, network: Network | None, expected: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """One run of the job."""
    federation.start_all()
    run = DeployedRun.submit(federation, job).end(timeout=3600)
    rounds = [record.seconds for record in run.results.rounds]
    weights = read_model_file(run.folder / LAST)["weights"]
    sent = [told for record in run.results.rounds for told in record.sites.values()]
    return {
        "network": asdict(network) if network else "loopback",
        "sites": len(federation.sites),
        "absent": sum(len(record.absent) for record in run.results.rounds),
        "megabytes_up_a_site_and_round": round(median(told.bytes_up for told in sent) / 1e6, 2),
        "seconds_a_round": {"median": median(rounds), "least": min(rounds), "most": max(rounds)},
        "same_weights_as_one_process": all(torch.equal(weights[key], value) for key, value in expected.items()),
    }


@contextmanager
def networks(sites: tuple[str, ...], network: Network | None) -> Iterator[dict[str, tuple[str, ...]]]:
    """A namespace for each site, all on one bridge; gives the command that starts a process in each."""
    if network is None:
        yield {}
        return
    names = {site: f"fedshift-{number}" for number, site in enumerate(sites)}
    try:
        call(f"ip link add {BRIDGE} type bridge")
        call(f"ip addr add {SUBNET}.1/24 dev {BRIDGE}")
        call(f"ip link set {BRIDGE} up")
        for number, name in enumerate(names.values()):
            call(f"ip netns add {name}")
            call(f"ip link add fs{number} type veth peer name eth0 netns {name}")
            call(f"ip link set fs{number} master {BRIDGE} up")
            call(f"ip -n {name} addr add {SUBNET}.{number + 2}/24 dev eth0")
            call(f"ip -n {name} link set lo up")
            call(f"ip -n {name} link set eth0 up")
        yield {site: ("ip", "netns", "exec", name) for site, name in names.items()}
    finally:
        for name in names.values():
            call(f"ip netns del {name}", check=False)
        call(f"ip link del {BRIDGE}", check=False)


def call(command: str, *, check: bool = True) -> None:
    """Run a command."""
    subprocess.run(command.split(), check=check)


if __name__ == "__main__":
    sys.exit(main())
