"""An epoch, and a round of the demo, on two cores: this checkout beside another.

    python -m benchmarks.performance.checkouts --other OTHER

One site alone trains epochs of the recipe of the prostate (phantom) and of the hippocampus (made volumes), with as many
threads as the recipe says; and ``fedshift run`` trains the demo's job at its six sites. Seconds are the clock's, of the
quickest round but the first, each in a new process with the packages of this Python, in turn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import frame
from benchmarks.performance.made_volumes import hippocampus_sites
from data_prep.phantom import make_phantom

ROOT = Path(__file__).resolve().parents[2]
EPOCHS = """
import json, sys
from pathlib import Path
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
task, site, data, out, rounds = json.loads(sys.argv[1])
job = resolve(task, "fedavg", sites=(site,), options=[f"schedule.rounds={rounds}", "schedule.local_epochs=1"])
run_in_process(job, {site: Path(data) / site}, Path(out), device="cpu")
"""
COMMAND = "import sys; from fedshift.cli import main; sys.exit(main())"


def main() -> None:
    parser = frame.parser(__doc__, repeats=5, rounds=4)
    parser.add_argument("--other", type=Path, required=True, help="another checkout of this repository")
    args = parser.parse_args()
    trees = {"this": ROOT, "other": args.other.resolve()}
    content: dict[str, Any] = {
        "other": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=args.other, capture_output=True, text=True, check=True
        ).stdout.strip()
    }
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        make_phantom(root / "phantom", matrices=(96,))
        phantom, volumes = root / "phantom" / "prostate", hippocampus_sites(root, cases=32)
        ways: dict[str, Callable[[Path], float]] = {
            "epoch of the prostate": lambda tree: epoch(tree, "prostate", "BIDMC", phantom, args.rounds),
            "epoch of the hippocampus": lambda tree: epoch(tree, "hippocampus", "sim_a", volumes, args.rounds),
            "round of the demo": lambda tree: demo_round(tree, root / "phantom", args.rounds),
        }
        for name, way in ways.items():
            measures = {which: lambda way=way, tree=tree: way(tree) for which, tree in trees.items()}
            seconds = frame.in_turn(measures, args.repeats)
            content[name] = {"seconds": seconds, "this_to_other": frame.ratios(seconds["this"], seconds["other"])}
            frame.write_measured("checkouts", content)


def epoch(tree: Path, task: str, site: str, data: Path, rounds: int) -> float:
    """Seconds of a site's epoch in one process."""
    with tempfile.TemporaryDirectory() as folder:
        words = json.dumps([task, site, str(data), folder, rounds])
        python(tree, folder, "-c", EPOCHS, words)
        results = json.loads((Path(folder) / "results.json").read_text(encoding="utf-8"))
    return min(float(record["sites"][site]["seconds"]) for record in results["rounds"][1:])


def demo_round(tree: Path, data: Path, rounds: int) -> float:
    """Seconds of a round under FLARE's simulator."""
    with tempfile.TemporaryDirectory() as folder:
        words = ("job", "fedfa", "prostate", "--protocol", "quick", "--name", "demo", "--out", folder)
        python(tree, folder, "-c", COMMAND, *words, "--set", f"schedule.rounds={rounds}")
        python(tree, folder, "-c", COMMAND, "run", f"{folder}/demo", "--workspace", f"{folder}/run", data=data)
        (file,) = Path(folder, "run").rglob("results.json")
        results = json.loads(file.read_text(encoding="utf-8"))
    return min(float(record["seconds"]) for record in results["rounds"][1:])


def python(tree: Path, folder: str, *words: str, data: Path | None = None) -> None:
    """Run this Python with the code of a checkout."""
    environ = os.environ | frame.code_of(tree) | {"FEDSHIFT_DEVICE": "cpu"}
    environ |= {"FEDSHIFT_DATA": str(data)} if data else {}
    result = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise RuntimeError(result.stderr[-1000:])


if __name__ == "__main__":
    main()
