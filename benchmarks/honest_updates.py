"""How far the updates of honest sites are from what is usual, on real images and on the phantom.

    python benchmarks/honest_updates.py --data ROOT            # an hour or so on one core; can be interrupted
    python benchmarks/honest_updates.py --table-only

ROOT holds data sets as ``fedshift data prepare`` writes them; those that are not there are left out. Each run is in one
process, with the limits ``federation.clip_…`` off. Of every accepted update it takes the norm of the change of the
parameters and of the running statistics, and the part of the former that points against the other sites, divided by
what is usual: the largest median over sites of this and earlier rounds, times the site's steps over the median steps if
it made more (as `fedshift.federation.server.robust.usual_limits` counts). Of sample counts it takes the ratio to the
median, and to all others together. The defaults of the options must lie above the largest ratios, and the last below 1.
Writes ``benchmarks/results/honest_updates.json`` and ``.md``; runs that are in the first are not repeated.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import frame
import numpy as np
import torch

from data_prep.phantom import make_phantom
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.schema.job import FederationSpec, JobSpec
from fedshift.schema.messages import Broadcast, Update
from fedshift.tasks.kinds import build_task

RESULT = frame.RESULTS / "honest_updates.json"
METHODS = ("fedavg", "fedbn", "fedfa+fedrdn", "afl")
OFF = tuple(f"federation.clip_{limit}_ratio=null" for limit in ("norm", "opposed", "sample"))
KINDS = ("parameters", "against the others", "running statistics", "samples", "samples of all others")
"""Columns of the table."""
RUNS: dict[str, tuple[str, ...]] = {
    "prostate": ("data.matrix=48", "network.options.features=8", "schedule.rounds=12"),
    "office_caltech": ("schedule.rounds=3",),
    "digits": ("schedule.rounds=6",),
    "pacs": ("schedule.rounds=6",),
    "cifar10": ("schedule.rounds=6",),
    "emnist": ("schedule.rounds=6",),
}
"""Task: the options of its runs."""
PROTOCOLS = {"prostate": "quick"}
"""Where it is not the task's default."""


def main() -> None:
    """Measure, or only write the table again from the result."""
    parser = frame.parser(__doc__)
    parser.add_argument("--data", type=Path, help="root of the prepared data")
    parser.add_argument("--tasks", nargs="+", choices=RUNS, default=[*RUNS])
    parser.add_argument("--methods", nargs="+", default=[*METHODS])
    parser.add_argument("--sites-at-most", type=int, default=12, help="of a data set with many sites only so many")
    parser.add_argument("--real-only", action="store_true", help="not the phantom")
    parser.add_argument("--table-only", action="store_true", help="write the table from the JSON again")
    args = parser.parse_args()
    if not args.table_only:
        torch.set_num_threads(1)
        content = frame.read(RESULT, {"runs": {}})
        content |= {
            "what": "largest ratio of an honest site's change (norm, and the part that points against the others) to "
            "the usual one, and of its sample count to the median and to all others, over all rounds and sites",
            "command": "python benchmarks/honest_updates.py --data ROOT",
            **frame.made_with("torch", "numpy"),
        }
        with tempfile.TemporaryDirectory() as scratch:
            make_phantom(Path(scratch) / "phantom", seed=0, cases=6, matrices=(48,))
            for task in args.tasks:
                roots = {"real": args.data, "phantom": None if args.real_only else Path(scratch) / "phantom"}
                for name, root in roots.items():
                    for methods in args.methods:
                        key = f"{task} {name} {methods}"
                        if key in content["runs"]:
                            continue
                        record = run(task, methods, root, Path(scratch) / key.replace(" ", "_"), args.sites_at_most)
                        if record is not None:
                            content["runs"][key] = record
                            print(key, record, flush=True)
                            frame.write(RESULT, content)
    content = frame.read(RESULT, {})
    frame.write(RESULT, content, table(content))


def run(task: str, methods: str, root: Path | None, folder: Path, most: int) -> dict[str, float] | None:
    """The largest ratios of one run; None if ``root`` does not have the data."""
    folder_of = None if root is None else root / resolve(task, methods).task.dataset
    if folder_of is None or not folder_of.is_dir():
        return None
    sites = sorted(path.parent.name for path in folder_of.glob("*/manifest.json"))[:most]
    job = resolve(task, methods, protocol=PROTOCOLS.get(task), sites=sites, options=(*RUNS[task], *OFF))
    started = time.monotonic()
    largest = Largest(job)
    run_in_process(job, {site: folder_of / site for site in sites}, folder, device="cpu", on_update=largest.add)
    return {
        "sites": len(sites),
        "rounds": job.task.schedule.rounds,
        **largest.ratios(),
        "seconds": round(time.monotonic() - started),
    }


@dataclass(frozen=True)
class Sent:
    """What is taken of one update: the change of the parameters, and the norm of that of the running statistics."""

    change: np.ndarray
    statistics: float
    n_steps: int
    n_samples: int

    @property
    def norm(self) -> float:
        """Of the change of the parameters."""
        return float(np.linalg.norm(self.change))


class Largest:
    """The largest ratios so far; one round's updates are in memory."""

    def __init__(self, job: JobSpec) -> None:
        net = build_task(job).network()
        self._parameters = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
        self._round, self._sent = 0, list[Sent]()
        self._usual, self._worst = [0.0, 0.0], dict.fromkeys(KINDS, 0.0)

    def add(self, broadcast: Broadcast, update: Update) -> None:
        """Note one update."""
        if update.round != self._round:
            self._close()
            self._round = update.round
        received = broadcast.unpacked().weights
        sent = update.restored(received).weights
        floating = {
            key: np.ravel(sent[key] - received[key])
            for key in sorted(sent)
            if np.issubdtype(sent[key].dtype, np.floating)
        }
        parts = [
            np.concatenate(
                [[0], *(value for key, value in floating.items() if (key in self._parameters) == is_parameter)]
            )
            for is_parameter in (True, False)
        ]
        self._sent.append(Sent(parts[0], float(np.linalg.norm(parts[1])), update.n_steps, update.n_samples))

    def ratios(self) -> dict[str, float]:
        """The largest of each kind."""
        self._close()
        return {kind: round(ratio, 2) for kind, ratio in self._worst.items()}

    def _close(self) -> None:
        sent, self._sent = self._sent, []
        if not sent:
            return
        sizes = [[update.norm for update in sent], [update.statistics for update in sent]]
        self._usual = [max(before, statistics.median(now)) for before, now in zip(self._usual, sizes, strict=True)]
        steps = max(1.0, statistics.median(update.n_steps for update in sent))
        usual, samples = self._usual, [update.n_samples for update in sent]
        votes = [
            update.change * min(1.0, usual[0] / max(update.norm, usual[0])) if usual[0] else update.change
            for update in sent
        ]
        for number, update in enumerate(sent):
            more = max(1.0, update.n_steps / steps)
            others = np.sum([vote for other, vote in enumerate(votes) if other != number], axis=0)
            against = -float(update.change @ others) / max(float(np.linalg.norm(others)), 1e-30)
            largest = (
                update.norm / (usual[0] * more) if usual[0] else 0.0,
                against / (usual[0] * more) if usual[0] else 0.0,
                update.statistics / (usual[1] * more) if usual[1] else 0.0,
                update.n_samples / statistics.median(samples),
                update.n_samples / (sum(samples) - update.n_samples),
            )
            self._worst = {kind: max(self._worst[kind], ratio) for kind, ratio in zip(KINDS, largest, strict=True)}


def table(content: Mapping[str, Any]) -> str:
    """The result as a Markdown table."""
    limits = ("clip_norm_ratio", "clip_opposed_ratio", "clip_sample_ratio")
    return frame.page(
        "honest_updates",
        kinds=KINDS,
        largest=[max(run.get(kind, 0.0) for run in content["runs"].values()) for kind in KINDS],
        limits={name: FederationSpec.model_fields[name].default for name in limits},
        **content,
    )


if __name__ == "__main__":
    main()
