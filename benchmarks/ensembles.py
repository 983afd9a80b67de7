"""What does averaging the models of several seeds gain at a hospital that took no part?

Four real sites are held out in turn, and the others' images train in one place, once for each seed (the scale ``whole``
of ``recipes/prostate_unseen_scanner.yaml``). Every scan of the site that was held out is segmented by each model and by
the mean of their probabilities (``fedshift predict --models``).

The data are 31 T2-weighted volumes of PROMISE12's training set, which you download yourself; prepare them with
``fedshift data prepare prostate --source DIR --out ROOT`` first. Then::

    FEDSHIFT_DATA=ROOT python benchmarks/ensembles.py --work WORK --seeds 0 1 2

What has been trained below ``WORK``, by ``adaptation.py --whole`` too, is not trained again.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import frame
from adaptation import UNSEEN, WHOLE, dice, labelled_at
from left_out import SITES, pooled_without
from scipy import stats

from fedshift.inference.ensemble import averaged
from fedshift.inference.model import open_model
from fedshift.inference.ready import Choice, make_ready

OUT = frame.RESULTS / "ensembles.json"


def main() -> int:
    """Segment all scans of each site, and compare."""
    parser = frame.parser(__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    settings = [*WHOLE, *UNSEEN, "schedule.threads=1"]
    commands, sites = [], {}
    for site in SITES:
        trained = [pooled_without(site, "prostate", seed=s, settings=settings, work=args.work) for s in args.seeds]
        commands += [command for command, _ in trained]
        ready = [make_ready(open_model(path), Choice(), device="cpu") for _, path in trained]
        cases = labelled_at(ready[0].model, site)
        print(f"{site}: {len(cases)} scans", flush=True)
        singles = {seed: dice(model, cases) for seed, model in zip(args.seeds, ready, strict=True)}
        sites[site] = {"single": singles, "averaged": dice(averaged(ready[0], ready[1:]), cases)}
    content = {
        "command": " ".join(["python benchmarks/ensembles.py", *map(frame._word, sys.argv[1:])]),
        "training": sorted(set(commands)),
        **frame.made_with("torch", "monai"),
        "sites": sites,
    }
    page = frame.page("ensembles", record=content, rows=rows_of(sites), whole=whole(sites))
    frame.write(args.out, content, page)
    print(page)
    return 0


def rows_of(sites: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each site the mean Dice of single models, of the best one, and of their mean, in percent."""
    return [
        {
            "site": site,
            "single": 100 * statistics.fmean(of_cases(scores_of)),
            "best": 100 * max(statistics.fmean(scores) for scores in scores_of["single"].values()),
            "averaged": 100 * statistics.fmean(scores_of["averaged"]),
        }
        for site, scores_of in sites.items()
    ]


def whole(sites: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The difference over all cases, in points, with its 95 % interval (Student's) and Wilcoxon's p."""
    pairs = [
        pair for scores_of in sites.values() for pair in zip(of_cases(scores_of), scores_of["averaged"], strict=True)
    ]
    differences = [100 * (after - before) for before, after in pairs]
    mean = statistics.fmean(differences)
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * float(stats.sem(differences))
    p = float(stats.wilcoxon(differences).pvalue)
    return {"n": len(pairs), "difference": mean, "low": mean - half, "high": mean + half, "p": p}


def of_cases(scores_of: Mapping[str, Any]) -> Sequence[float]:
    """Of each case the mean Dice of the single models."""
    return [statistics.fmean(scores) for scores in zip(*scores_of["single"].values(), strict=True)]


if __name__ == "__main__":
    sys.exit(main())
