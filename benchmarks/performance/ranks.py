"""Two ranks of a site against one: seconds of an epoch of the hippocampus' recipe, each rank with one thread.

    OMP_NUM_THREADS=1 python -m benchmarks.performance.ranks

A site trains round 1 of the recipe, one epoch in its own precision, on volumes that are made up: alone, and with
another rank that takes half of each batch, on another core or, with ``--device cuda``, on another GPU. The processes
have been started, and what a round does before and after its steps is part of it. The ratio is taken within each
repeat.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import frame
from benchmarks.performance.made_volumes import hippocampus_sites
from fedshift.federation.resolve import resolve
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.tasks.device import choose_device, device_name

SITES = ("sim_a", "sim_b")
ALONE, TOGETHER = "one rank", "two ranks"


def main() -> None:
    parser = frame.parser(__doc__, repeats=5, cases=260)
    parser.add_argument("--device", default="cpu", help="the first of the two, as torch names it (default: cpu)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        data = hippocampus_sites(Path(scratch), cases=args.cases)
        measures = {
            name: epoch(data, Path(scratch) / name, device=args.device, devices=devices)
            for name, devices in ((ALONE, 1), (TOGETHER, 2))
        }
        for measure in measures.values():
            measure()  # what comes first is slow, and starts the other rank
        seconds = frame.in_turn(measures, args.repeats)
    ratio = frame.ratios(seconds[TOGETHER], seconds[ALONE])
    print(f"{TOGETHER} to {ALONE}: {ratio['median']:.3f}", flush=True)
    device = device_name(choose_device(args.device))
    content = {"device": device, "cases": args.cases, "seconds_of_an_epoch": seconds, "two_to_one": ratio}
    frame.write_measured("ranks", content)


def epoch(data: Path, folder: Path, *, device: str, devices: int) -> Callable[[], float]:
    """Seconds of round 1, which is one epoch, at the first site, on so many devices."""
    options = ["schedule.local_epochs=1", "schedule.threads=1"]
    job = resolve("hippocampus", "fedavg", sites=SITES, options=options)
    site_options = SiteOptions(folder / "sites", device=device, devices=devices)
    sites = [Site(job, name, data / name, site_options) for name in SITES]
    server = Coordinator(job, folder / "server")
    server.open(0)
    for site in sites:
        server.register(site.info())
        assert server.accept(site.statistics())
    server.close()
    first = server.open(1)

    def measure() -> float:
        started = time.perf_counter()
        sites[0].train(first)
        return time.perf_counter() - started

    return measure


if __name__ == "__main__":
    main()
