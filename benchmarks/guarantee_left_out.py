"""What a guarantee is worth at a real hospital that took no part: levels of the other sites, and of its own few cases.

The models are the lean ones of ``benchmarks/adaptation.py``, trained without one site; the data are the same, too::

    FEDSHIFT_DATA=ROOT python benchmarks/guarantee_left_out.py --work WORK

**Others' level**: conformal risk control on all cases of the training sites that training had not seen, as if the
hospital were one of them. **Own level**: on k of the hospital's own cases, for every choice of k; the
share is then that of its other cases, on average over all choices. Results go to
``benchmarks/results/guarantee_left_out.json``, and the table beside it is made from this file.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import frame
import numpy as np
from adaptation import LEAN, UNSEEN, sets_of
from left_out import SITES, trained_without

from fedshift.data.case_check import known_spacing
from fedshift.data.locate import find_site
from fedshift.data.splits import case_splits
from fedshift.inference import scoring
from fedshift.inference.model import open_model
from fedshift.inference.promise import EVEN
from fedshift.inference.ready import Choice, ReadyModel, make_ready
from fedshift.schema.guarantee import LEVELS, Level, Promise
from fedshift.schema.manifest import read_manifest
from fedshift.tasks.evaluation.guarantee import CaseRisks, Counts, own_promise

OUT = frame.RESULTS / "guarantee_left_out.json"
STRUCTURE, ALPHAS, CASES = "prostate", (0.2, 0.25), (3, 4, 5, 6)


def main() -> None:
    parser = frame.parser(__doc__, seed=0)
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--sites", nargs="+", default=list(SITES), choices=SITES)
    args = parser.parse_args()
    runs: list[dict[str, Any]] = []
    for site in args.sites:
        settings = [*LEAN, *UNSEEN, "schedule.threads=1"]
        command, path = trained_without(site, "fedavg", "prostate", seed=args.seed, settings=settings, work=args.work)
        ready = make_ready(open_model(path), Choice(), device="cpu")
        others, hospital = Hospital(), Hospital()
        for other in (name for name in SITES if name != site):
            others.add(ready, other, unseen=True)
        hospital.add(ready, site, unseen=False)
        runs.append({"held_out": site, "seed": args.seed, "command": command, **measured(hospital, others)})
        print(runs[-1], flush=True)
    command = f"FEDSHIFT_DATA=ROOT python benchmarks/guarantee_left_out.py --work WORK --sites {' '.join(args.sites)}"
    facts = {"command": command, "runs": runs}
    frame.write(OUT, {"schema": 1, **facts}, frame.page("guarantee_left_out", **facts))


@dataclass
class Hospital:
    """Cases of one or more sites: their risk curves, and the sizes of outlines in volumes of the structure."""

    risks: CaseRisks = field(default_factory=CaseRisks)
    sizes: list[np.ndarray] = field(default_factory=list)

    def add(self, ready: ReadyModel, site: str, *, unseen: bool) -> None:
        """Add the cases of a site; of one that trained, those that training had not seen."""
        manifest = read_manifest(find_site("prostate", site, local=None, simulator=True))
        fold = ready.model.header.job.task.data.get("fold")
        splits = case_splits(manifest.cases, site=site, fold=fold)
        kept = {case.id for case, split in zip(manifest.cases, splits, strict=True) if not unseen or split != "train"}
        sets = sets_of(site)
        cases = scoring.labelled_cases(ready.model, sets, labels={STRUCTURE: [1]}, annotated=None)
        for case, subject in zip(cases, scoring.subjects_of(sets), strict=True):
            if case.id in kept:
                decoded, _ = scoring.decode(case)
                truth, counts = decoded.mask.voxels == 1, Counts()
                voxels = np.stack([image.voxels for image in decoded.images])

                def count(
                    place: int, part: slice, values: np.ndarray, truth: Any = truth, counts: Any = counts
                ) -> None:
                    if place == 1:
                        counts.add(values, truth[part])

                ready.segment(voxels, known_spacing(decoded.image, true=False), on_scan=count)
                self.risks.add_outline(STRUCTURE, counts.risks(), subject=f"{site} {subject}")
                self.sizes.append(counts.outlined / counts.total)


def measured(hospital: Hospital, others: Hospital) -> dict[str, Any]:
    """Mean shares at the hospital and sizes of its outer outlines, with both kinds of levels."""
    n, pooled = len(hospital.sizes), others.risks.curves()[STRUCTURE]
    rows: list[dict[str, Any]] = []
    for alpha in ALPHAS:
        of_others = shares(hospital, range(n), own_promise(pooled, alpha))
        rows.append({"alpha": alpha, "calibrated_on": "others", "cases": pooled.n, **mean_of([of_others])})
        for k in (number for number in CASES if number < n):
            drawn = [drawn_once(hospital, chosen, alpha) for chosen in itertools.combinations(range(n), k)]
            rows.append({"alpha": alpha, "calibrated_on": "own", "cases": k, **mean_of(drawn)})
    half = Promise(n=n, outer=Level(level=EVEN))
    return {"cases": n, "at_half": shares(hospital, range(n), half)["outer"], "rows": rows}


def drawn_once(hospital: Hospital, chosen: Sequence[int], alpha: float) -> dict[str, float | None]:
    """`shares` of the cases that were not chosen, with the levels of those that were."""
    part = CaseRisks(subjects={STRUCTURE: list(chosen)})
    for kept, every in ((part.missed, hospital.risks.missed), (part.false, hospital.risks.false)):
        kept[STRUCTURE] = [every[STRUCTURE][number] for number in chosen]
    rest = [number for number in range(len(hospital.sizes)) if number not in chosen]
    return shares(hospital, rest, own_promise(part.curves()[STRUCTURE], alpha))


def shares(hospital: Hospital, cases: Sequence[int], promise: Promise) -> dict[str, float | None]:
    """Means over some cases; None without a level."""
    missed, false = hospital.risks.missed[STRUCTURE], hospital.risks.false[STRUCTURE]
    told = {"outer": (missed, promise.outer), "inner": (false, promise.inner), "size": (hospital.sizes, promise.outer)}
    return {name: _at(values, cases, level) for name, (values, level) in told.items()}


def _at(values: Sequence[np.ndarray], cases: Sequence[int], level: Level | None) -> float | None:
    if level is None or level.level is None:
        return None
    return float(np.mean([values[number][LEVELS.index(level.level)] for number in cases]))


def mean_of(drawn: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    """Over the draws that have a level, and how many have an outer one."""
    known = {name: [draw[name] for draw in drawn if draw[name] is not None] for name in ("outer", "inner", "size")}
    means = {name: round(float(np.mean(values)), 4) if values else None for name, values in known.items()}
    return {"covered": round(len(known["outer"]) / len(drawn), 4), **means}


if __name__ == "__main__":
    main()
