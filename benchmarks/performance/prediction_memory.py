"""Memory of a prediction in 3D against a volume's length, with few classes and with many.

    python -m benchmarks.performance.prediction_memory

``fedshift predict`` with the hippocampus task, MONAI's ``BasicUNet`` and weights that were never trained, on made-up
volumes. One volume is predicted, then others of twice and four times its length, each in a process of its own whose
peak Linux reports. What a voxel more costs is compared with its probabilities, a float32 for each class: three, and
fourteen as in a task of many organs. Windows do not overlap, for speed.
"""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks import frame
from benchmarks.performance.made_volumes import AS_MEASURED, untrained_model, write_case
from benchmarks.performance.prediction import predict, run
from fedshift.federation.resolve import resolve

SHORTEST = (128, 128, 96)
"""Voxels along x, y, z; the patch is 40x56x40."""
LENGTHS = (1, 2, 4)
STRUCTURES = (2, 13)


def main() -> None:
    args = frame.parser(__doc__, threads=2).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        content: dict[str, Any] = {
            "shortest": list(SHORTEST),
            "threads": args.threads,
            "classes": {str(1 + number): memory(Path(scratch), number, args.threads) for number in STRUCTURES},
        }
    print(json.dumps(content, indent=1))
    frame.write_measured("prediction_memory", content)


def memory(folder: Path, structures: int, threads: int) -> dict[str, Any]:
    """Peaks by length, and what a voxel more costs in parts of its probabilities."""
    rng = np.random.default_rng(0)
    job = resolve(str(task_with(structures, folder)), "fedavg", options=[*AS_MEASURED, "data.overlap=0"])
    model = untrained_model(folder / f"model{structures}.pt", job)
    peaks: dict[int, int] = {}
    for length in LENGTHS:
        shape = (*SHORTEST[:2], SHORTEST[2] * length)
        scan = write_case(folder, f"{structures}structures_{length}", shape, rng)
        peaks[length] = run(predict(model, [scan], folder / f"out{structures}_{length}"), threads).peak
        print(f"{structures} structures, {length} x {SHORTEST}: {peaks[length] / 1e6:.0f} MB", flush=True)
    voxel = {f"{a} to {b}": (peaks[b] - peaks[a]) / (np.prod(SHORTEST) * (b - a)) for a, b in pairwise(LENGTHS)}
    output = 4 * len(job.task.classes)
    return {
        "megabytes": {str(length): round(peak / 1e6) for length, peak in peaks.items()},
        "bytes_of_the_probabilities_of_a_voxel": output,
        "bytes_a_voxel": {name: round(value, 1) for name, value in voxel.items()},
        "times_the_probabilities": {name: round(value / output, 2) for name, value in voxel.items()},
    }


def task_with(structures: int, folder: Path) -> Path:
    """The hippocampus task with other structures."""
    task = yaml.safe_load((Path(__file__).parents[2] / "apps" / "hippocampus.yaml").read_text(encoding="utf-8"))
    task |= {"name": "made_up", "classes": ["background", *(f"organ {number}" for number in range(structures))]}
    del task["codes"]
    path = folder / f"{structures}structures.yaml"
    path.write_text(yaml.safe_dump(task), encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
