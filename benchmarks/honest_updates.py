"""How far the updates of honest sites are from what is usual, on real images and on the phantom.

    python benchmarks/honest_updates.py --data ROOT            # an hour or so on one core; can be interrupted
    python benchmarks/honest_updates.py --table-only

ROOT holds data sets as ``fedshift data prepare`` writes them; those that are not there are left out. Each run is in one
process, with `federation.clip_norm_ratio` and `federation.clip_sample_ratio` off. Of every accepted update it takes the
norm of the change of the parameters and of the running statistics, divided by what is usual: the largest median over
sites of this and earlier rounds, times the site's steps over the median steps if it made more (as
`fedshift.federation.server.clipping.usual_limits` counts). The defaults of the two options must lie above the largest
ratios. Writes ``benchmarks/results/honest_updates.json`` and ``.md``; runs that are in the first are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from data_prep.phantom import make_phantom
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.schema.job import FederationSpec, JobSpec
from fedshift.schema.messages import Broadcast, Update
from fedshift.tasks.kinds import build_task

RESULT = Path(__file__).resolve().parent / "results" / "honest_updates.json"
METHODS = ("fedavg", "fedprox", "fedbn", "fedfa+fedrdn", "afl")
OFF = ("federation.clip_norm_ratio=null", "federation.clip_sample_ratio=null")
RUNS: dict[str, tuple[str, ...]] = {
    "prostate": ("data.matrix=96", "network.options.features=8", "schedule.rounds=6"),
    "office_caltech": ("schedule.rounds=6",),
    "digits": ("schedule.rounds=6",),
    "pacs": ("schedule.rounds=6",),
    "cifar10": ("schedule.rounds=6",),
    "emnist": ("schedule.rounds=6",),
}
"""Task: the options of its runs."""


def main() -> None:
    """Measure, or only write the table again from the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="root of the prepared data")
    parser.add_argument("--tasks", nargs="+", choices=RUNS, default=[*RUNS])
    parser.add_argument("--methods", nargs="+", default=[*METHODS])
    parser.add_argument("--sites-at-most", type=int, default=12, help="of a data set with many sites only so many")
    parser.add_argument("--table-only", action="store_true", help="write the table from the JSON again")
    args = parser.parse_args()
    if not args.table_only:
        torch.set_num_threads(1)
        content = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {"runs": {}}
        content |= {
            "what": "largest ratio of an honest site's change (norm) to the usual one, and of its sample count to the "
            "median, over all rounds and sites",
            "command": " ".join(["python benchmarks/honest_updates.py --data ROOT"]),
            "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
            "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        }
        with tempfile.TemporaryDirectory() as scratch:
            make_phantom(Path(scratch) / "phantom", seed=0, cases=6, matrices=(96,))
            for task in args.tasks:
                for name, root in (("real", args.data), ("phantom", Path(scratch) / "phantom")):
                    for methods in args.methods:
                        key = f"{task} {name} {methods}"
                        if key in content["runs"]:
                            continue
                        found = run(task, methods, root, Path(scratch) / key.replace(" ", "_"), args.sites_at_most)
                        if found is not None:
                            content["runs"][key] = found
                            print(key, found, flush=True)
                            RESULT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    content = json.loads(RESULT.read_text(encoding="utf-8"))
    RESULT.with_suffix(".md").write_text(table(content), encoding="utf-8")


def run(task: str, methods: str, root: Path | None, folder: Path, most: int) -> dict[str, float] | None:
    """The largest ratios of one run; None if ``root`` does not have the data."""
    folder_of = None if root is None else root / resolve(task, methods).task.dataset
    if folder_of is None or not folder_of.is_dir():
        return None
    sites = sorted(path.parent.name for path in folder_of.glob("*/manifest.json"))[:most]
    job = resolve(task, methods, sites=sites, options=(*RUNS[task], *OFF))
    started = time.monotonic()
    largest = Largest(job)
    run_in_process(job, {site: folder_of / site for site in sites}, folder, device="cpu", on_update=largest.add)
    return {
        "sites": len(sites),
        "rounds": job.task.schedule.rounds,
        **largest.ratios(),
        "seconds": round(time.monotonic() - started),
    }


class Largest:
    """Collects the norms of all updates."""

    def __init__(self, job: JobSpec) -> None:
        net = build_task(job).network()
        self._parameters = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
        self._rounds: dict[int, list[tuple[float, float, int, int]]] = defaultdict(list)

    def add(self, broadcast: Broadcast, update: Update) -> None:
        """Note one update: norms of parameters and buffers, steps, samples."""
        received = broadcast.unpacked().weights
        sent = update.restored(received).weights
        floating = {key: sent[key] - received[key] for key in sent if np.issubdtype(sent[key].dtype, np.floating)}
        sizes = [
            float(
                np.sqrt(
                    sum(
                        np.square(v, dtype=np.float64).sum()
                        for k, v in floating.items()
                        if (k in self._parameters) == own
                    )
                )
            )
            for own in (True, False)
        ]
        self._rounds[update.round].append((*sizes, update.n_steps, update.n_samples))

    def ratios(self) -> dict[str, float]:
        """The largest of each kind."""
        usual, worst = [0.0, 0.0], [0.0, 0.0, 0.0]
        for round_ in sorted(self._rounds):
            found = self._rounds[round_]
            steps = max(1.0, statistics.median(entry[2] for entry in found))
            for kind in (0, 1):
                usual[kind] = max(usual[kind], statistics.median(entry[kind] for entry in found))
                for entry in found:
                    if usual[kind] > 0:
                        allowed = usual[kind] * max(1.0, entry[2] / steps)
                        worst[kind] = max(worst[kind], entry[kind] / allowed)
            median = statistics.median(entry[3] for entry in found)
            worst[2] = max(worst[2], *(entry[3] / median for entry in found))
        return dict(
            zip(("parameters", "running statistics", "samples"), (round(ratio, 2) for ratio in worst), strict=True)
        )


def table(content: Mapping[str, object]) -> str:
    """The result as a Markdown table."""
    runs = content["runs"]
    assert isinstance(runs, dict)
    defaults = {name: FederationSpec.model_fields[name].default for name in ("clip_norm_ratio", "clip_sample_ratio")}
    lines = [
        f"`{content['command']}`: {content['what']}.",
        "",
        "| task, data, methods | sites | rounds | parameters | running statistics | samples |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    kinds = ("parameters", "running statistics", "samples")
    for key, found in runs.items():
        cells = " | ".join(f"{found[kind]:.2f}" for kind in kinds)
        lines.append(f"| {key.replace(' ', ', ')} | {found['sites']} | {found['rounds']} | {cells} |")
    most = [max(found[kind] for found in runs.values()) for kind in kinds]
    lines += [
        f"| **largest** | | | {' | '.join(f'**{value:.2f}**' for value in most)} |",
        "",
        f"The defaults are `federation.clip_norm_ratio` {defaults['clip_norm_ratio']:g} and "
        f"`federation.clip_sample_ratio` {defaults['clip_sample_ratio']:g}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
