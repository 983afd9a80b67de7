"""Which plan follows from sites' fingerprints that are added up, and which from averages of the sites' own numbers?

`fedshift survey` adds sums and tallies, so that what is planned from is what one folder with all cases would give. The
other way is that every site works out its medians, percentiles, mean and standard deviation, and the server averages
these, weighted by cases: then the variance between sites is lost, and the median of medians is of no case.

    FEDSHIFT_DATA=ROOT python benchmarks/pooled_fingerprints.py hippocampus_simulated --out FILE

``ROOT`` has the data set as ``fedshift data`` prepared it (``prepare hippocampus --simulate``, or ``phantom --cases
5`` for the prostate's). All of its sites are asked. Numbers of both ways, and of the exact values of all cases, go to
``benchmarks/results/pooled_fingerprints/DATASET.json``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import frame
import numpy as np

from fedshift.data.locate import find_site, prepared_sites
from fedshift.data.prepared import read_images, read_labels
from fedshift.data.tallies import add_intensities, medians, merge, quantile, spread
from fedshift.federation.survey_answer import answer
from fedshift.schema.fingerprint import Fingerprint, Geometry, Intensities
from fedshift.schema.manifest import read_manifest
from fedshift_survey.planning.plan import Plan, make_plan

OUT = frame.RESULTS / "pooled_fingerprints"
PERCENTILES = (0.005, 0.5, 0.995)


def main() -> int:
    """Ask the sites, plan both ways, write the file."""
    parser = frame.parser(__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folders = {site: find_site(args.dataset, site, local=None, simulator=True) for site in prepared_sites(args.dataset)}
    told = [answer(folder, site) for site, folder in folders.items()]
    pooled, averaged = merge(told), _averaged(told)
    record = {
        "what": f"plans of {args.dataset} from {len(told)} sites' fingerprints: added up (fedshift survey), or with "
        "each site's medians averaged, weighted by cases; intensities inside the labels, as nnU-Net's rule for CT uses "
        "them, likewise, and of all voxels at hand",
        "command": " ".join(["python benchmarks/pooled_fingerprints.py", *sys.argv[1:]]),
        "sites": {
            each.site: {"cases": each.surveyed, **_plan(make_plan(each, sites=1)), **_site(each)} for each in told
        },
        "added up": {**_plan(make_plan(pooled, sites=len(told))), **_added(told)},
        "averaged": {**_plan(make_plan(averaged, sites=len(told))), **_mean_of(told)},
        "all cases": _exact(folders),
    }
    frame.write(args.out or OUT / f"{args.dataset}.json", record)
    return 0


def _inside(site: Fingerprint) -> Intensities:
    """Inside the labels, of the first sequence."""
    places = site.intensities[site.channels[0]]
    classes = [place for name, place in places.items() if name in site.classes]
    return places.get("inside the labels") or reduce(add_intensities, classes)


def _numbers(inside: Intensities) -> dict[str, float]:
    statistics = spread(inside)
    low, middle, high = (quantile(inside.values, q) for q in PERCENTILES)
    return _rounded(
        {"mean": statistics.mean, "std": statistics.deviation, "0.5 %": low, "median": middle, "99.5 %": high}
    )


def _rounded(numbers: dict[str, float]) -> dict[str, float]:
    return {key: float(f"{value:.5g}") for key, value in numbers.items()}


def _site(site: Fingerprint) -> dict[str, Any]:
    return {"intensities": _numbers(_inside(site))}


def _added(sites: Sequence[Fingerprint]) -> dict[str, Any]:
    return {"intensities": _numbers(reduce(add_intensities, map(_inside, sites)))}


def _mean_of(sites: Sequence[Fingerprint]) -> dict[str, Any]:
    each, weights = [_numbers(_inside(site)) for site in sites], [site.surveyed for site in sites]
    return {
        "intensities": _rounded(
            {key: float(np.average([numbers[key] for numbers in each], weights=weights)) for key in each[0]}
        )
    }


def _averaged(sites: Sequence[Fingerprint]) -> Fingerprint:
    """A fingerprint of which all medians are the averages of the sites'."""
    weights = [site.surveyed for site in sites]
    cases = sum(weights)

    def average(what: str) -> Any:
        each = [medians(getattr(site.geometry, what)) for site in sites]
        return tuple(((float(value), float(cases)),) for value in np.average(each, axis=0, weights=weights))

    geometry = Geometry(cases=cases, spacing=average("spacing"), extent=average("extent"), voxels=average("voxels"))
    return merge(sites).model_copy(update={"geometry": geometry})


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "spacing": [*(plan.spacing or ())],
        "median shape": [*plan.shape],
        "patch": [*plan.patch],
        "batch": plan.batch,
        "strides": [[*stride] for stride in plan.network.topology.strides],
        "GB": round(plan.need, 2),
    }


def _exact(folders: dict[str, Path]) -> dict[str, Any]:
    """Of the voxels themselves, every case with the same weight, as a survey counts them."""
    means, squares, spacings, values = [], [], [], []
    rng = np.random.default_rng(0)
    for folder in folders.values():
        manifest = read_manifest(folder)
        for case in manifest.cases:
            if case.split == "test":
                continue
            inside = read_images(folder, manifest, case)[0][read_labels(folder, case) > 0].astype(np.float64)
            means.append(inside.mean())
            squares.append((inside**2).mean())
            values.append(rng.choice(inside, 2000))
            spacings.append(case.spacing)
    mean = float(np.mean(means))
    low, middle, high = np.quantile(np.concatenate(values), PERCENTILES)
    numbers = {"mean": mean, "std": float(np.sqrt(np.mean(squares) - mean**2))}
    return {
        "cases": len(means),
        "spacing": [float(f"{mm:.4g}") for mm in np.median(spacings, axis=0)],
        "intensities": _rounded({**numbers, "0.5 %": low, "median": middle, "99.5 %": high}),
    }


if __name__ == "__main__":
    raise SystemExit(main())
