"""Does a network of regions outline the hippocampus as a whole as well as one of classes does with their union?

Both are trained with the recipe of the hippocampus, for fewer rounds and with half as many features: one with two
classes that exclude each other, the other with the protocol ``regions``, a sigmoid for the hippocampus and one for its
anterior part. The last models outline the test volumes of all sites, and Dice is of the whole (of the classes, their
union) and of the anterior part.

    FEDSHIFT_DATA=ROOT python benchmarks/hippocampus_regions.py --rounds 10

``ROOT`` is what ``fedshift data prepare hippocampus --simulate`` wrote. Scores go to
``benchmarks/results/recipes/hippocampus_regions.json``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import frame
import numpy as np

from fedshift.data.locate import find_site
from fedshift.data.prepared import read_images, read_labels
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.inference.model import open_model
from fedshift.inference.ready import Choice, make_ready
from fedshift.runtime.regions import voxels_of
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest
from fedshift.schema.results import LAST
from fedshift.tasks.evaluation.overlap import dice

OUT = frame.RESULTS / "recipes" / "hippocampus_regions.json"


def main() -> int:
    """Train both, score them, write the file."""
    parser = frame.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    runs = []
    for seed in args.seeds:
        for protocol in (None, "regions"):
            options = [f"schedule.rounds={args.rounds}", *SHORT]
            job = resolve("hippocampus", "fedavg", protocol=protocol, seed=seed, options=options)
            with TemporaryDirectory() as folder:
                sites = scored(job, Path(folder))
            means = {name: round(100 * fmean(fmean(s[name]) for s in sites.values()), 2) for name in STRUCTURES}
            runs.append({"trained on": protocol or "classes", "seed": seed, "mean": means, "sites": sites})
            print(runs[-1]["trained on"], seed, means, flush=True)
    record: dict[str, Any] = {
        "what": f"FedAvg on the simulated hippocampus sites, {args.rounds} rounds of one epoch, half as many features: "
        "Dice of each test volume, last model; in percent the mean over sites of the mean over volumes",
        "command": " ".join(["python benchmarks/hippocampus_regions.py", *sys.argv[1:]]),
        "runs": runs,
    }
    frame.write(args.out, record)
    return 0


SHORT = (
    "schedule.local_epochs=1",
    "schedule.threads=1",
    "evaluation.mirror=false",
    "network={name: monai.DynUNet, options: {strides: [1, 2, 2, 2], filters: [8, 16, 32, 64], deep_supervision: true, "
    "deep_supr_num: 2}}",
)
"""So that both end within minutes on a core that has other work as well."""
STRUCTURES = {"hippocampus": (1, 2), "Anterior": (1,)}
"""What is scored, and the classes that it is made of."""


def scored(job: JobSpec, folder: Path) -> dict[str, dict[str, list[float]]]:
    """Site -> structure -> Dice of each test volume."""
    data = {site: find_site(job.task.dataset, site, local=None, simulator=True) for site in job.task.sites}
    run_in_process(job, data, folder / "run")
    ready = make_ready(open_model(folder / "run" / LAST), Choice(), device="cpu")
    scores: dict[str, dict[str, list[float]]] = {}
    for site, place in data.items():
        manifest = read_manifest(place)
        scores[site] = {name: [] for name in STRUCTURES}
        for case in manifest.by_split("test"):
            predicted = ready.segment(read_images(place, manifest, case), manifest.known_spacing(case))
            reference = read_labels(place, case)
            for name, classes in STRUCTURES.items():
                truth = np.isin(reference, classes)
                if job.task.regions:
                    outlined = voxels_of(predicted, job.task.structures.index(name) + 1, regions=True)
                else:
                    outlined = np.isin(predicted, classes)
                counts = (np.array(np.count_nonzero(m)) for m in (outlined & truth, outlined, truth))
                scores[site][name].append(round(float(dice(*counts)), 4))
    return scores


if __name__ == "__main__":
    raise SystemExit(main())
