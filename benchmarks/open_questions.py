r"""Three questions about readings of the papers, each settled by small runs in one process.

    python benchmarks/open_questions.py vm --data ROOT --out benchmarks/results/open_questions/vm.json
    python benchmarks/open_questions.py fedharmo --data ROOT --out benchmarks/results/open_questions/fedharmo.json
    python benchmarks/open_questions.py fraug --data ROOT --out benchmarks/results/open_questions/fraug.json

ROOT is where ``fedshift data prepare`` has put rotated_mnist, prostate and digits. A run that stands in FILE.json is
not repeated, so a command that was interrupted goes on; ``--rows`` names some of the rows. What the runs show is in
docs/open-questions.md.

**vm**: with its β = 10 and the paper's 200 local steps, does VM diverge, and on which reading of f_i? Of every round:
the accuracies, the sites' losses f_i and the weights c_i of their changes.

**fedharmo**: which part of FedHarmo lowers it on few slices: the amplitudes, the weight perturbation, or the norm?

**fraug**: what does the ramp-up of λ_c do? Of every round: λ_c, and how far the moving class means are from those of
the site's training images by the network as it is then.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

import frame
import numpy as np
import torch

import fedshift
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.methods import base, fraug, vm
from fedshift.schema.errors import FedshiftError
from fedshift.schema.messages import Arrays, Broadcast, Update
from fedshift.schema.results import Results

Round = dict[str, Any]
UNLIMITED = tuple(f"federation.{key}=null" for key in ("max_norm_ratio", "clip_norm_ratio", "clip_opposed_ratio"))
"""The server's own limits on changes are no part of a method."""


@dataclass(frozen=True)
class Row:
    """A setting of a question, and the seeds with which it is run."""

    methods: str
    options: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    shrink: float = 1.0
    """VM: what every c_i is multiplied by, beside the rule (24)."""


@dataclass(frozen=True)
class Question:
    """What its runs have in common."""

    task: str
    protocol: str
    sites: tuple[str, ...]
    options: tuple[str, ...]
    rows: dict[str, Row]
    arithmetic: Callable[[], Any] | None = None


VM = Question(
    task="rotated_mnist",
    protocol="augmentation",
    sites=("deg00", "deg15", "deg30", "deg45", "deg60"),
    options=("network={name: lenet5, options: {size: 28}}", "schedule.rounds=4", *UNLIMITED),
    rows={
        "FedAvg": Row("fedavg"),
        "β = 10, f of the received model": Row("vm", ("vm.variant=paper", "vm.beta=10")),
        "β = 2, f of the received model": Row("vm", ("vm.variant=paper", "vm.beta=2")),
        "β = 0.5, f of the received model": Row("vm", ("vm.variant=paper", "vm.beta=0.5")),
        "β = 10, f of the trained model": Row("vm", ("vm.variant=released", "vm.beta=2")),
        "β = 10, f of the trained model, no 1/n (the code)": Row("vm", ("vm.variant=released", "vm.beta=10")),
        "β = 10, f of the received model, 1/n twice (Algorithm 2)": Row(
            "vm", ("vm.variant=paper", "vm.beta=10"), shrink=0.2
        ),
        "β = 10, f of the received model, a sum over images": Row(
            "vm", ("vm.variant=paper", "vm.beta=4000", "schedule.rounds=2")
        ),
        "β = 10, f of the received model, images turned by up to 45°": Row(
            "vm+augmentation", ("vm.variant=paper", "vm.beta=10", "augmentation.rotation=45")
        ),
        "β = 10, f of the received model, 5 local steps": Row(
            "vm", ("vm.variant=paper", "vm.beta=10", "schedule.local_steps=5", "schedule.rounds=40")
        ),
    },
)

FEDHARMO = Question(
    task="prostate",
    protocol="fedfa",
    sites=("BIDMC", "HK", "RUNMC", "UCL"),
    options=(
        "data.fraction=0.166667",
        "data.matrix=64",
        "network.options.features=8",
        "optimizer.lr=0.001",
        "schedule.rounds=12",
        "schedule.local_epochs=2",
    ),
    rows={
        "FedAvg": Row("fedavg", seeds=(0, 1)),
        "FedSAM": Row("fedsam"),
        "HarmoFL, all amplitudes (its paper)": Row("harmofl", seeds=(0, 1)),
        "HarmoFL, DC only (its code)": Row("harmofl", ("harmofl.variant=released",), seeds=(0, 1)),
        "FedHarmo, all amplitudes (its paper)": Row("fedharmo", seeds=(0, 1)),
        "FedHarmo, DC only (its code)": Row("fedharmo", ("fedharmo.variant=released",), seeds=(0, 1)),
        "FedAvg, norm of its code": Row("fedavg", ("network.options.norm=batch_statistics",)),
        "FedHarmo, DC only, norm of its code": Row(
            "fedharmo", ("fedharmo.variant=released", "network.options.norm=batch_statistics")
        ),
    },
)

FRAUG_ROUNDS = 80
FRAUG = Question(
    task="digits",
    protocol="fraug",
    sites=("mnist", "mnistm", "usps"),
    options=(
        "data.fraction=1.0",
        "data.images=300",
        "schedule.batch_size=16",
        "network.options.width=8",
        f"schedule.rounds={FRAUG_ROUNDS}",
        "evaluation.every=5",
    ),
    rows={
        # In 80 rounds of 20 steps, ramp_up=1 is the paper's ramp as it stands: 80 rounds of 20 steps.
        "ramp-up over 80 rounds (the paper)": Row("fraug", ("fraug.ramp_up=1",)),
        "0.3 throughout (the code)": Row("fraug", ("fraug.ramp_up=0",)),
        "no class means": Row("fraug", ("fraug.moving_average=false",)),
        "FedBN": Row("fedbn"),
    },
)


def first_mean_left(rounds: int, steps: int, length: float, rate: float) -> list[Round]:
    """Of every round: λ_c, and the part of a class mean that its first images still are at the round's end."""
    weight, rows = 1.0, []
    for round_ in range(rounds):
        now = rate * fraug.ramp(round_, length)
        weight *= (1 - now) ** steps
        rows.append({"round": round_ + 1, "lambda_c": now, "of_the_first": weight, "steps_remembered": 1 / now})
    return rows


QUESTIONS = {
    "vm": VM,
    "fedharmo": FEDHARMO,
    "fraug": Question(
        FRAUG.task,
        FRAUG.protocol,
        FRAUG.sites,
        FRAUG.options,
        FRAUG.rows,
        arithmetic=lambda: {
            "rounds of 20 steps, lambda 0.3, ramp over 80 rounds": first_mean_left(81, 20, 80.0, 0.3),
        },
    ),
}


# --- one run ------------------------------------------------------------------------------------------


@contextmanager
def shrunk(factor: float) -> Iterator[None]:
    """Every coefficient of VM times ``factor``."""
    rule = vm.coefficients

    def less(losses: np.ndarray, shares: np.ndarray, *, beta: float, released: bool) -> np.ndarray:
        return factor * rule(losses, shares, beta=beta, released=released)

    with mock.patch.object(vm, "coefficients", less):
        yield


@contextmanager
def class_means_watched(errors: dict[int, dict[str, float]]) -> Iterator[None]:
    """``errors``: round -> site -> Σ_c ‖ū_c − m_c‖ / Σ_c ‖m_c‖, m_c the class means by the site's trained network."""
    original = fraug.Client.end

    @torch.no_grad()
    def end(self: fraug.Client, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        net = ctx.run.net
        was_training = net.training
        net.eval()
        sums, counts = torch.zeros_like(self._means), torch.zeros(len(self._means))
        for x, y in data.chunks():
            sums.index_add_(0, y, net.embed(ctx.run.normalise(x, training=False)))  # type: ignore[operator]
            counts += torch.bincount(y, minlength=len(counts))
        net.train(was_training)
        present = (counts > 0) & self._seen
        true = sums[present] / counts[present][:, None]
        off = (self._means[present] - true).norm(dim=1).sum() / true.norm(dim=1).sum()
        errors.setdefault(ctx.round, {})[ctx.run.site] = float(off)
        return original(self, data, ctx)

    with mock.patch.object(fraug.Client, "end", end):
        yield


def measure(question: Question, row: Row, seed: int, root: Path) -> dict[str, Any]:
    """Train, and give what is kept of the run."""
    set_options = {option.partition("=")[0] for option in row.options}
    options = (*(text for text in question.options if text.partition("=")[0] not in set_options), *row.options)
    job = resolve(
        question.task, row.methods, protocol=question.protocol, sites=question.sites, options=options, seed=seed
    )
    losses: dict[int, dict[str, float]] = {}
    means: dict[int, dict[str, float]] = {}

    def note(_broadcast: Broadcast, update: Update) -> None:
        if "vm" in update.arrays:
            losses.setdefault(update.round, {})[update.site] = float(update.arrays["vm"]["loss"])

    data = {site: root / question.task / site for site in job.task.everyone}
    started, ended = time.process_time(), ""
    with tempfile.TemporaryDirectory() as folder, shrunk(row.shrink), class_means_watched(means):
        try:
            run_in_process(job, data, Path(folder), on_update=note)
        except FedshiftError as error:
            ended = str(error)
        results = Results.model_validate_json((Path(folder) / "results.json").read_text(encoding="utf-8"))
    record: dict[str, Any] = {"methods": row.methods, "options": list(options), "seed": seed}
    if row.shrink != 1:
        record["every_change_times"] = row.shrink
    record |= scores(results)
    if losses:
        config = vm.Config.model_validate(job.methods["vm"])
        for entry in record["rounds"]:
            f = losses.get(entry["round"])
            if f is not None:
                values = np.array([f[site] for site in job.task.sites if site in f])
                c = vm.coefficients(
                    values,
                    np.full(len(values), 1 / len(values)),
                    beta=config.beta,
                    released=config.variant == "released",
                )
                entry |= {"losses": values.round(5).tolist(), "weights": (row.shrink * c).round(4).tolist()}
    for entry in record["rounds"]:
        if entry["round"] in means:
            entry["class_means_off"] = mean(means[entry["round"]].values())
    if ended:
        record["ended"] = ended
    return record | {"processor_seconds": round(time.process_time() - started)}


def scores(results: Results) -> dict[str, Any]:
    """Validation means of every round, test means of the best and the last one."""
    metric = results.job.metric
    rounds: list[Round] = []
    for record in results.rounds:
        values = [site.val[metric] for site in record.sites.values() if metric in site.val]
        rounds.append({"round": record.round, "val": mean(values) if values else None})
    content: dict[str, Any] = {"metric": metric, "rounds": rounds}
    if results.final is not None:
        for name, final in (("best", results.final.best), ("last", results.final.last)):
            at_site = {site: parts["test"][metric] for site, parts in final.sites.items() if "test" in parts}
            content[name] = {"round": final.round, "test": mean(at_site.values()), "sites": at_site}
            if final.held_out:
                content[name]["held_out"] = mean(parts["all"][metric] for parts in final.held_out.values())
    return content


# --- all runs of a question ---------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, and write after every run."""
    parser = frame.parser(__doc__)
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("--data", type=Path, required=True, metavar="ROOT")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED", help="only these seeds")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="only these rows")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    question = QUESTIONS[args.question]
    content: dict[str, Any] = json.loads(args.out.read_text(encoding="utf-8")) if args.out.is_file() else {}
    content["command"] = shlex.join(
        ["python", "benchmarks/open_questions.py", args.question, "--data", "ROOT", "--out", "FILE.json"]
    )
    content["versions"] = {"fedshift": fedshift.__version__, "torch": torch.__version__, "machine": platform.machine()}
    if question.arithmetic is not None:
        content["arithmetic"] = question.arithmetic()
    runs = content.setdefault("runs", {})
    for seed in args.seeds:
        for name, row in question.rows.items():
            measured = {run["seed"] for run in runs.get(name, [])}
            if seed not in row.seeds or seed in measured or (args.rows and name not in args.rows):
                continue
            run = measure(question, row, seed, args.data)
            runs[name] = sorted([*runs.get(name, []), run], key=lambda entry: int(entry["seed"]))
            content["runs"] = {name: runs[name] for name in question.rows if name in runs}
            runs = content["runs"]
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            last = run.get("last", {}).get("test")
            print(f"{name}, seed {seed}: {last} ({run['processor_seconds']} s)", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
