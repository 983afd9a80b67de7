"""What one poisoned site does to the model, with and without limits, and with robust aggregation.

    python benchmarks/poisoned_site.py --data ROOT            # an hour or so on one core; can be interrupted
    python benchmarks/poisoned_site.py --table-only

All runs are FedAvg with the same seed, in one process, on the phantom with six sites, and on real prostate MRI if ROOT
has ``prostate`` as ``fedshift data prepare`` writes it. The poisoned site trains as the others do and then sends
something else, which the guard lets through. With its honest change d = w_k - w (parameters)::

    sign       w - 5 d
    sign 15    w - 15 d
    noise      w + e,  e drawn once from a normal distribution, as long as 10 d
    samples    w + d,  and it says from the first round on that it has 1000 times its samples
    variances  w + d,  and every running variance times 10^6

Running statistics are otherwise sent as they are. (Noise drawn anew in every round does nothing to this network: FedAvg
averages it away.)

The score is the last model's mean foreground Dice per case over the validation and test cases of the honest sites.
Writes ``benchmarks/results/poisoned_site.json`` and ``.md``; runs that are in the first are not repeated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import frame
import numpy as np
import torch

from data_prep.phantom import make_phantom
from fedshift.federation.resolve import resolve
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Update, Weights

RESULT = frame.RESULTS / "poisoned_site.json"
POISONED = "HK"
ATTACKS = ("none", "sign", "sign 15", "noise", "samples", "variances")
MANY, LARGE = 1000, 1e6
"""What the site multiplies its samples by, and its running variances."""
RULES: dict[str, tuple[str, ...]] = {
    "no limits": tuple(f"federation.clip_{limit}_ratio=null" for limit in ("norm", "opposed", "sample")),
    "the default limits": (),
    "median": ("federation.robust.rule=median",),
    "trimmed_mean, trim 1": ("federation.robust.rule=trimmed_mean", "federation.robust.trim=1"),
    "norm_clipping, clip 1": ("federation.robust.rule=norm_clipping", "federation.robust.clip=1"),
}
MATRIX = 48
SMALL = (
    f"data.matrix={MATRIX}",
    "network.options.features=8",
    "network.options.bn_momentum=0.1",
    "schedule.precision=fp32",
    "schedule.local_steps=10",
    "schedule.batch_size=8",
    "optimizer.lr=0.003",
)


def poison(update: Update, received: Weights, parameters: frozenset[str], attack: str, *, seed: int) -> Update:
    """What the poisoned site sends in place of ``update``; it has told the server of its samples before."""
    if attack == "none":
        return update
    if attack == "samples":
        return replace(update, n_samples=MANY * update.n_samples)
    if attack == "variances":
        large = {k: v * np.float32(LARGE) for k, v in update.weights.items() if k.endswith("running_var")}
        return replace(update, weights={**update.weights, **large})
    change = {key: update.weights[key] - received[key] for key in sorted(parameters)}
    if attack.startswith("sign"):
        times = float(attack.removeprefix("sign") or 5)
        sent = {key: np.float32(-times) * value for key, value in change.items()}
    else:
        rng = np.random.default_rng(seed)
        noise = {key: rng.standard_normal(value.shape) for key, value in change.items()}
        sent = {key: value * (10 * norm(change) / norm(noise)) for key, value in noise.items()}
    weights = {key: np.asarray(received[key] + value, np.float32) for key, value in sent.items()}
    return replace(update, weights={**update.weights, **weights})


def norm(arrays: Mapping[str, np.ndarray]) -> float:
    """Of all arrays together."""
    return float(np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in arrays.values())))


def run(job: JobSpec, data: Mapping[str, Path], folder: Path, attack: str) -> dict[str, object]:
    """One run: scores of the last model by site, and how far the farthest honest site moved beyond the median."""
    coordinator = Coordinator(job, folder / "server")
    sites: dict[str, Site] = {}
    for name in job.task.sites:
        beside = next(iter(sites.values()), None)
        network = None if beside is None else beside.job_network
        sites[name] = Site(job, name, data[name], SiteOptions(folder / "sites", job_network=network))
    net = next(iter(sites.values()))._net
    parameters = frozenset(name for name, _ in net.named_parameters())
    coordinator.open(0)
    for name, site in sites.items():
        info, update = site.info(), site.statistics()
        if name == POISONED and attack == "samples":
            info, update = (
                replace(info, n_train=MANY * info.n_train),
                replace(update, n_samples=MANY * update.n_samples),
            )
        coordinator.register(info)
        coordinator.accept(update)
    coordinator.close()
    ratios = []
    for round_ in range(1, coordinator.rounds + 1):
        broadcast = coordinator.open(round_)
        moved = []
        for name, site in sites.items():
            update = site.train(broadcast)
            moved.append(norm({key: update.weights[key] - broadcast.weights[key] for key in parameters}))
            if name == POISONED:
                update = poison(update, broadcast.weights, parameters, attack, seed=job.seed)
            coordinator.accept(update)
        ratios.append(max(moved) / float(np.median(moved)))
        coordinator.close()
    scored = {name: site.validate(coordinator.open(coordinator.rounds + 1)) for name, site in sites.items()}
    dice = {}
    for name, scores in scored.items():
        manifest = json.loads((data[name] / "manifest.json").read_text(encoding="utf-8"))
        n = {split: sum(case["split"] == split for case in manifest["cases"]) for split in ("val", "test")}
        dice[name] = sum(n[s] * scores.values[s]["dice"] for s in n) / sum(n.values())
    refused = [(r.round, fault.site, fault.key) for r in coordinator.results.rounds for fault in r.rejected]
    return {
        "dice": {name: round(value, 4) for name, value in dice.items()},
        "honest": round(float(np.mean([value for name, value in dice.items() if name != POISONED])), 4),
        "refused": refused,
        "farthest_honest_over_median": round(max(ratios), 2),
    }


def table(content: Mapping[str, Any]) -> str:
    """The results as Markdown tables in percent."""
    runs = [run for by_rule in content["runs"].values() for by_attack in by_rule.values() for run in by_attack.values()]
    refused = sum(len(run["refused"]) for run in runs)
    most = max(run["farthest_honest_over_median"] for run in runs)
    return frame.page("poisoned_site", **{"note": "", "attacks": ATTACKS, "refused": refused, "most": most, **content})


def main() -> None:
    """Measure, or only write the table again from the result."""
    parser = frame.parser(__doc__)
    parser.add_argument("--data", type=Path, help="root of prepared data, for real prostate MRI too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--cases", type=int, default=8, help="cases of each site of the phantom")
    parser.add_argument("--no-phantom", action="store_true", help="only the real data, for now")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=[*RULES])
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=[*ATTACKS])
    parser.add_argument("--table-only", action="store_true", help="write the table from the JSON again")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    if not args.table_only:
        torch.set_num_threads(1)
        measure(args)
    content = frame.read(args.out, {})
    frame.write(args.out, content, table(content))


def measure(args: argparse.Namespace) -> None:
    """Make the runs that are not in the result yet; it is written after each."""
    content: dict[str, Any] = {
        "what": "last model's mean foreground Dice per case at the honest sites, in percent; FedAvg, "
        f"{args.rounds} rounds of 10 steps of Adam 0.003, batches of 8, U-Net with 8 features, {MATRIX}x{MATRIX}; the "
        f"phantom has six sites of {args.cases} cases, the real prostate MRI four of 6 to 9; the poisoned site is "
        f"{POISONED}",
        "command": "python benchmarks/poisoned_site.py --data ROOT",
        "seed": args.seed,
        **frame.made_with("torch", "numpy"),
        "runs": {},
    }
    before = frame.read(args.out, {})
    if before.get("what") == content["what"] and before["seed"] == args.seed:
        content["runs"] = before["runs"]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        sets: dict[str, Path] = {}
        if not args.no_phantom:
            make_phantom(root / "data", seed=args.seed, cases=args.cases, matrices=(MATRIX,))
            sets["the phantom"] = root / "data" / "prostate"
        if args.data is not None:
            sets["real prostate MRI"] = args.data / "prostate"
        for what, folder in sets.items():
            sites = sorted(path.parent.name for path in folder.glob("*/manifest.json"))
            data = {site: folder / site for site in sites}
            for rule in args.rules:
                options = (*SMALL, f"schedule.rounds={args.rounds}", *RULES[rule])
                job = resolve("prostate", "fedavg", protocol="quick", options=options, seed=args.seed, sites=sites)
                scores = content["runs"].setdefault(what, {}).setdefault(rule, {})
                for attack in args.attacks:
                    if attack in scores:
                        continue
                    scores[attack] = run(job, data, root / f"{what} {rule} {attack}".replace(" ", "_"), attack)
                    frame.write(args.out, content)
                    print(f"{time.monotonic() - started:.0f} s", what, rule, attack, scores[attack], flush=True)


if __name__ == "__main__":
    main()
