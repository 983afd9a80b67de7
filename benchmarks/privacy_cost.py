r"""What privacy costs in Dice: FedRDN's and FedFA's statistics, the network, and DP-SGD, at several ε.

    python benchmarks/privacy_cost.py --real ROOT/prostate --out benchmarks/results/privacy_cost.json

ROOT is where ``fedshift data prepare prostate`` has put its sites. The phantom is made in a temporary folder, and its
sites have more cases. The figures go to FILE.json and, for people, to FILE.md.

All runs are in one process, with the same schedule and network (instance norm, since DP-SGD takes no batch norm), every
site has the same policy, and the ε is that of a site over the whole job, for what carries the noise. Clips are those of
`RULES`, for all ε: the same change of the network without noise has a norm that is printed beside, so that one can see
how much the clip alone takes away. The score is the last model's mean Dice over the sites' test cases, averaged over
seeds. The same command goes on with what FILE.json lacks.
"""

from __future__ import annotations

import itertools
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import frame
import numpy as np
import torch

from data_prep.phantom import make_phantom
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.federation.site.privacy.ledger import Ledger
from fedshift.schema.errors import QuorumError
from fedshift.schema.manifest import read_manifest
from fedshift.schema.messages import Broadcast, Update
from fedshift.schema.policy import Policy

DELTA = 1e-3
EPSILONS = (None, 20.0, 8.0, 3.0)
RULES: Mapping[str, tuple[str, str, dict[str, float]]] = {
    "statistics, FedRDN": ("fedrdn", "statistics", {}),
    "statistics, FedFA": ("fedfa", "statistics", {"clip": 1.0}),
    "the network's change": ("fedavg", "weights", {"clip": 1.0}),
    "DP-SGD": ("fedavg", "dp_sgd", {"clip": 0.5}),
}
"""Name → methods, the part of the policy, and its options besides ε and δ."""
OPTIONS = (
    "network.name=monai.BasicUNet",
    "network.options.features=[8, 8, 16, 16, 32, 8]",
    "data.matrix=64",
    "schedule.precision=fp32",
    # An honest site's noise must not be taken for an attack.
    "federation.max_update_norm=1e9",
    "federation.max_norm_ratio=1e9",
)


def main() -> None:
    parser = frame.parser(__doc__)
    parser.add_argument("--real", type=Path, required=True, help="folder of prepared prostate sites")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20, help="optimiser steps of a round")
    parser.add_argument("--cases", type=int, default=24, help="cases of each of the phantom's sites")
    args = parser.parse_args()
    torch.set_num_threads(1)
    settings = {
        "delta": DELTA,
        "rounds": args.rounds,
        "steps": args.steps,
        "clips": {name: options.get("clip") for name, (_, _, options) in RULES.items()},
        "options": list(OPTIONS),
        "cases": args.cases,
    }
    empty: dict[str, Any] = {"settings": settings, "cpu_minutes": 0.0, "training_cases": {}, "runs": []}
    content = frame.read(args.out, empty)
    if content["settings"] != settings:
        raise SystemExit(f"{args.out} was measured with other settings: choose another file")
    content["command"] = shlex.join(["python", *sys.argv])
    finished = {(entry["data"], entry["noise_on"], entry["epsilon"], entry["seed"]) for entry in content["runs"]}
    with tempfile.TemporaryDirectory() as folder:
        phantom = Path(folder) / "data"
        make_phantom(phantom, seed=0, cases=args.cases, matrices=(64,), sites=("BIDMC", "HK", "UCL"))
        places = {"real": args.real, "phantom": phantom / "prostate"}
        for seed, (name, place) in itertools.product(args.seeds, places.items()):
            data = {path.parent.name: path.parent for path in sorted(place.glob("*/manifest.json"))}
            cases = {site: len(read_manifest(path).by_split("train")) for site, path in data.items()}
            content["training_cases"][name] = cases
            for what, epsilon in itertools.product(RULES, EPSILONS):
                if (name, what, epsilon, seed) in finished:
                    continue
                started = time.process_time()
                where = Path(folder) / f"run{len(content['runs'])}"
                entry = same_run(content["runs"], name, what, epsilon, seed) or run(
                    what, epsilon, data, where, rounds=args.rounds, steps=args.steps, seed=seed
                )
                key = {"data": name, "noise_on": what, "epsilon": epsilon, "seed": seed}
                content["runs"].append(key | entry)
                print(content["runs"][-1], flush=True)
                content["cpu_minutes"] = round(content["cpu_minutes"] + (time.process_time() - started) / 60, 2)
                frame.write(args.out, content, page(content))


def same_run(runs: list[dict[str, Any]], name: str, what: str, epsilon: float | None, seed: int) -> dict[str, Any]:
    """The figures of a run without noise of the same methods, which is the same run; else nothing."""
    for entry in runs if epsilon is None else []:
        same = (entry["data"], entry["epsilon"], entry["seed"]) == (name, None, seed)
        if same and RULES[entry["noise_on"]][0] == RULES[what][0]:
            return {key: entry[key] for key in ("dice", "change", "ledger")}
    return {}


def run(
    what: str,
    epsilon: float | None,
    data: Mapping[str, Path],
    folder: Path,
    *,
    rounds: int,
    steps: int,
    seed: int,
) -> dict[str, Any]:
    """One federation: Dice of the last model, the norm of the first round's change, and what the ledger says."""
    methods, part, options = RULES[what]
    noise = None
    if epsilon is not None:
        noise = Policy.model_validate({part: {"epsilon": epsilon, "delta": DELTA, **options}})
    schedule = f"schedule.rounds={rounds}", f"schedule.local_steps={steps}"
    job = resolve("prostate", methods, protocol="quick", sites=tuple(data), options=(*OPTIONS, *schedule), seed=seed)
    norms: list[float] = []

    def look(broadcast: Broadcast, update: Update) -> None:
        if broadcast.round == 1:
            changes = [update.weights[key].astype(float) - broadcast.weights[key] for key in update.weights]
            norms.append(float(np.sqrt(sum(np.square(change).sum() for change in changes))))

    privacy = {} if noise is None else dict.fromkeys(data, noise)
    try:
        finished = run_in_process(job, data, folder, device="cpu", privacy=privacy, on_update=look)
    except QuorumError as error:
        return {"dice": None, "why": str(error), "change": max(norms, default=None), "ledger": None}
    final = finished.results.final
    assert final is not None
    dice = [splits["test"]["dice"] for splits in final.last.sites.values()]
    ledgers = [Ledger(folder / "site_state" / name).trusted() for name in data] if noise is not None else []
    spent = max((account.epsilon(DELTA) for account in ledgers), default=None)
    return {"dice": float(np.mean(dice)), "change": float(np.median(norms)), "ledger": spent}


def page(content: Mapping[str, Any]) -> str:
    """The figures for people."""
    runs = content["runs"]
    seeds = sorted({run["seed"] for run in runs})
    parts = []
    for name, title in (("real", "Real prostate MRI"), ("phantom", "Phantom")):
        rows = []
        for what, clip in content["settings"]["clips"].items():
            mine = [run for run in runs if (run["data"], run["noise_on"]) == (name, what)]
            norms = [run["change"] for run in mine if run["epsilon"] is None]
            cells = [cell([run for run in mine if run["epsilon"] == epsilon], len(seeds)) for epsilon in EPSILONS]
            rows.append({"what": what, "clip": clip, "norm": float(np.mean(norms)) if norms else None, "cells": cells})
        if name in content["training_cases"]:
            parts.append({"title": title, "cases": content["training_cases"][name], "rows": rows})
    return frame.page("privacy_cost", seeds=seeds, epsilons=EPSILONS, parts=parts, **content)


def cell(runs: list[dict[str, Any]], seeds: int) -> str:
    """Mean over seeds, and how far they lie apart."""
    dice = [entry["dice"] for entry in runs if entry["dice"] is not None]
    if not dice:
        return "ended by the server's checks" if runs else "–"
    missing = "" if len(runs) == seeds else f", {len(runs)} of {seeds} seeds"
    ended = "" if len(dice) == len(runs) else f", {len(runs) - len(dice)} ended"
    return f"{np.mean(dice):.3f} ({min(dice):.3f} to {max(dice):.3f}{missing}{ended})"


if __name__ == "__main__":
    main()
