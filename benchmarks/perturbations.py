r"""How much of each method's perturbation reaches the network's outputs, by task, network and normalisation.

    python benchmarks/perturbations.py --out benchmarks/results/perturbations.json
    python benchmarks/perturbations.py --out benchmarks/results/perturbations.json --data ROOT --model MODEL

The first is the trial of ``fedshift job`` (`fedshift.federation.effect`: untrained networks, made-up images), of every
row of `ROWS`; half a minute. The second does the prostate's default recipe once more with the four real sites in ROOT
(where ``fedshift data prepare prostate`` has put them), untrained and with the weights of MODEL, a model file of the
same network. Figures are parts of the outputs' own variation.
"""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import frame
import torch

import fedshift
from fedshift.federation.effect import LEAST, effects
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.tasks.kinds import build_task

METHODS = ("fedrdn", "fedfa", "mixstyle", "moex", "harmofl")
ROWS: dict[str, tuple[str, str | None, tuple[str, ...]]] = {
    "prostate, the default recipe": ("prostate", None, ()),
    "prostate, batch norm": ("prostate", None, ("network.options.norm=batch",)),
    "prostate, volumes not normalised": ("prostate", None, ("data.normalise=none",)),
    "prostate, FedFA's protocol": ("prostate", "fedfa", ()),
    "hippocampus, the default recipe": ("hippocampus", None, ()),
    "digits": ("digits", None, ()),
    "Office-Caltech, FedRDN's protocol": ("office_caltech", "fedrdn", ("data.size=64", "network.options.hidden=64")),
}
SITES = ("BIDMC", "HK", "RUNMC", "UCL")
QUICK = (  # of the leaderboard's prostate, whose models are small
    *("data.spacing=[null, 2.5, 2.5]", "data.patch=[64, 64]", "data.matrix=64", "data.samples_per_case=24"),
    "network.options.features=[8, 8, 16, 32, 32, 8]",
)


def trial(task: str, protocol: str | None, options: Sequence[str]) -> dict[str, dict[str, float]]:
    """Method -> what it perturbs -> effect, with made-up images."""
    return {
        method: {
            effect.what: effect.size for effect in effects(resolve(task, method, protocol=protocol, options=options))
        }
        for method in METHODS
    }


def real(root: Path, model: Path | None) -> dict[str, dict[str, float]]:
    """The same with the four prostate sites."""
    sizes = {}
    for method in METHODS:
        job = resolve("prostate", method, sites=SITES, options=QUICK)
        task = build_task(job)
        net = task.network()
        if model is not None:
            net.load_state_dict(read_model_file(model)["weights"])
        data = [task.open(root / "prostate" / site, site) for site in SITES]
        sizes[method] = {effect.what: effect.size for effect in effects(job, data, net)}
    return sizes


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write after each part."""
    parser = frame.parser(__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--data", type=Path, metavar="ROOT")
    parser.add_argument("--model", type=Path, metavar="MODEL")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    content: dict[str, Any] = json.loads(args.out.read_text(encoding="utf-8")) if args.out.is_file() else {}
    content["command"] = shlex.join(["python", "benchmarks/perturbations.py", "--out", "FILE.json"])
    content["versions"] = {"fedshift": fedshift.__version__, "torch": torch.__version__, "machine": platform.machine()}
    content["least"] = LEAST
    if args.data is None:
        content["made_up"] = {row: trial(*what) for row, what in ROWS.items()}
    else:
        content["real"] = {
            "command": f"{content['command']} --data ROOT --model MODEL",
            "untrained": real(args.data, None),
            "trained": real(args.data, args.model) if args.model is not None else {},
        }
    args.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
