"""Whether a change that gives other bits gives other scores: two checkouts of this repository, paired by seed.

    fedshift data prepare hippocampus --source .../hippocampus --simulate --out DATA
    python -m benchmarks.same_scores --checkout OTHER --data DATA/hippocampus_simulated

Each trains FedAvg on the hippocampus' recipe, shortened, in one process with the packages of this Python. Compared are
the mean test Dice of the sites' final models, which differ by chance within a checkout too: from seed to seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev

from benchmarks import frame

ROOT = Path(__file__).resolve().parents[1]
SITES = ("sim_a", "sim_b", "sim_c", "sim_d")
TRAIN = """
import json, sys
from pathlib import Path
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
sites, data, out, seed, rounds, steps = json.loads(sys.argv[1])
options = ["schedule.threads=1", "evaluation.mirror=false", f"schedule.rounds={rounds}"]
options += [f"schedule.local_steps={steps}"]
job = resolve("hippocampus", "fedavg", sites=sites, options=options, seed=seed)
run_in_process(job, {site: Path(data) / site for site in sites}, Path(out))
"""


def main() -> None:
    parser = frame.parser(__doc__, seeds=3, rounds=5, steps=10)
    parser.add_argument("--checkout", type=Path, required=True, help="another checkout of this repository")
    parser.add_argument("--data", type=Path, required=True, help="the prepared sites")
    args = parser.parse_args()
    scores: dict[str, list[float]] = {"this": [], "other": []}
    for seed in range(args.seeds):
        for name, tree in (("this", ROOT), ("other", args.checkout.resolve())):
            scores[name].append(dice(tree, args.data.resolve(), seed, args.rounds, args.steps))
            print(f"seed {seed}, {name}: {scores[name][-1]:.4f}", flush=True)
    differences = [a - b for a, b in zip(scores["this"], scores["other"], strict=True)]
    content = {
        "what": "mean test Dice over sites and classes of FedAvg on the hippocampus' recipe, shortened",
        **{"rounds": args.rounds, "steps_a_round": args.steps, "mean_test_dice": scores},
        "difference": {"mean": round(fmean(differences), 4), "deviation": round(stdev(differences), 4)},
        "deviation_over_seeds": {name: round(stdev(values), 4) for name, values in scores.items()},
    }
    frame.write(frame.RESULTS / "same_scores.json", content)


def dice(tree: Path, data: Path, seed: int, rounds: int, steps: int) -> float:
    """The mean test Dice after a run with the code of a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | frame.code_of(tree)
        words = json.dumps([SITES, str(data), folder, seed, rounds, steps])
        subprocess.run([sys.executable, "-c", TRAIN, words], cwd=folder, env=environ, check=True)
        final = json.loads((Path(folder) / "results.json").read_text(encoding="utf-8"))["final"]
    return fmean(site["test"]["dice"] for site in final["best"]["sites"].values())


if __name__ == "__main__":
    main()
