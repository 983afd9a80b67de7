"""What do adapters send, and what do they reach, against fine-tuning all weights for equally many steps?

A small SwinUNETR is trained by FedAvg at two of the simulated hippocampus sites: the base. From it two other sites,
with other scanners, go on by FedAvg for the same rounds and steps: with all weights, with adapters on attention, and
with adapters on convolutions. Told are the bytes of a site's message and of the server's, the Dice of the test volumes
with the last model, and that of the validation volumes with it and with the base. It is in 2D, by slices, so that all
ends within minutes on a core; learning rates were not tuned.

    FEDSHIFT_DATA=ROOT python benchmarks/adapters.py

``ROOT`` is what ``fedshift data prepare hippocampus --simulate`` wrote. Scores go to
``benchmarks/results/adapters.json``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import frame
import torch

from fedshift.data.locate import find_site
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.schema.results import LAST, Results
from fedshift.tasks import pretrained

OUT = frame.RESULTS / "adapters.json"
OF_BASE, OTHERS = ("sim_a", "sim_b"), ("sim_c", "sim_d")
"""Sites that train the base, and those that go on from it."""
NETWORK = (
    "network.name=monai.SwinUNETR",
    "network.options={feature_size: 12, num_heads: [2, 4, 8, 16]}",
    "data.dims=2",
    "data.patch=[64, 32]",
    "data.spacing=[null, 0.9, 1.3]",  # so that nearly every slice is one patch
    "data.samples_per_case=4",
    "schedule.batch_size=4",
    "schedule.threads=1",
    "schedule.precision=fp32",
    "evaluation.mirror=false",
)
WAYS: dict[str, tuple[float, str | None]] = {
    "all weights": (0.001, None),
    "adapters on attention": (0.001, "network.adapters={on: attention, rank: 8}"),
    "adapters on convolutions": (0.001, "network.adapters={on: conv, rank: 8}"),
}
"""Way -> learning rate, and what makes it."""


def main() -> int:
    """Train the base, go on from it in each way, write the file."""
    parser = frame.parser(__doc__)
    parser.add_argument("--base-rounds", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30, help="of a site in a round")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["FEDSHIFT_WEIGHTS"] = name
        run(folder / "base", args.base_rounds, args.steps, "optimizer.lr=0.001", sites=OF_BASE)
        file = (folder / "base" / LAST).rename(folder / "base.pt")
        start = f"network.weights={json.dumps(pretrained.identify(file).model_dump())}"
        ways = [gone_on(way, folder, args.rounds, args.steps, start) for way in WAYS]
    frame.write(
        args.out,
        {
            "what": f"FedAvg at {' and '.join(OTHERS)} from a SwinUNETR that FedAvg trained elsewhere "
            f"({args.base_rounds} rounds): {args.rounds} rounds of {args.steps} steps a site. Dice in percent with "
            "the last model: mean over sites of the mean over volumes and both parts. Bytes: the arrays of a site's "
            "message of a round, and of the server's to it",
            "command": " ".join(["python benchmarks/adapters.py", *sys.argv[1:]]),
            "made_with": frame.made_with("torch", "monai", "peft"),
            "ways": ways,
        },
    )
    return 0


def run(folder: Path, rounds: int, steps: int, *options: str, sites: Sequence[str]) -> Results:
    """A run of FedAvg."""
    length = [f"schedule.rounds={rounds}", f"schedule.local_steps={steps}", f"evaluation.select={rounds}"]
    job = resolve("hippocampus", "fedavg", options=[*NETWORK, *length, *options], sites=sites)
    data = {site: find_site(job.task.dataset, site, local=None, simulator=True) for site in job.task.everyone}
    return run_in_process(job, data, folder, device="cpu").results


def gone_on(way: str, folder: Path, rounds: int, steps: int, start: str) -> dict[str, Any]:
    """A way's run."""
    rate, adapters = WAYS[way]
    options = [start, "evaluation.start=true", f"optimizer.lr={rate}", *([adapters] if adapters else [])]
    results = run(folder / way, rounds, steps, *options, sites=OTHERS)
    sent = results.rounds[0].sites[OTHERS[0]]
    assert results.statistics is not None
    record = {
        "way": way,
        "started from": results.job.initial_weights.partition("; ")[2],
        "bytes up": sent.bytes_up,
        "bytes down": sent.bytes_down,
        "dice": last(results, "test"),
        "learning rate": rate,
        "validation dice of the base": mean([results.statistics.sites[site].val["dice"] for site in OTHERS]),
        "validation dice": last(results, "val"),
        "seconds a step": round(fmean(told.seconds / told.steps for told in results.rounds[-1].sites.values()), 2),
    }
    print(record, flush=True)
    return record


def last(results: Results, split: str) -> float:
    """Of the last model."""
    assert results.final is not None
    return mean([results.final.last.sites[site][split]["dice"] for site in OTHERS])


def mean(scores: Sequence[float]) -> float:
    """In percent."""
    return round(100 * fmean(scores), 2)


if __name__ == "__main__":
    raise SystemExit(main())
