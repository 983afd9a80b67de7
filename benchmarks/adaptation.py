"""Does adapting a model at a hospital that took no part help there, and does the evidence tell when it does not?

Four real sites are held out in turn and the others train. At the site that was held out the model is adapted without
masks to all scans, and with the masks of one and of three patients, drawn several times; it is scored on all scans, or
on those of all other patients, also as it would be if fine-tuning went all of the way. ``--anyway`` gives what would
have been without a decision; what was decided says which of the two models the hospital has.

The data are 31 T2-weighted volumes of PROMISE12's training set, which you download yourself; prepare them with
``fedshift data prepare prostate --source DIR --out ROOT`` first. Then::

    FEDSHIFT_DATA=ROOT python benchmarks/adaptation.py --work WORK

Models are lean, so that one trains in minutes: patches of 96 pixels, half the features, 16 rounds. ``--whole`` takes
the task's network and slices, trained on the other sites' images in one place (the scale ``whole`` of
``recipes/prostate_unseen_scanner.yaml``), and writes another file. Either has the augmentation for hospitals that took
no part. Results go to ``benchmarks/results/adaptation.json`` one by one, and what is there is not made again; an
interrupted run goes on where it was. The table beside it is made from this file only.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from math import comb
from pathlib import Path
from typing import Any

import frame
import numpy as np
import torch
from left_out import SITES, pooled_without, trained_without
from torch import Tensor

from fedshift.data.cases import CaseFiles
from fedshift.data.layouts.find import gather
from fedshift.data.locate import find_site
from fedshift.inference import scoring
from fedshift.inference.adaptation import decision, fine_tuning, unlabelled
from fedshift.inference.model import Model, open_model
from fedshift.inference.ready import Choice, ReadyModel, make_ready
from fedshift.inference.sequences import find_cases
from fedshift.schema.seeding import derive_seed

OUT = frame.RESULTS / "adaptation.json"
LEAN = (
    *("schedule.rounds=16", "optimizer.lr=0.002", "data.patch=[96,96]", "data.matrix=96"),
    *("data.spacing=[null,1.667,1.667]", "network.options.features=[8,16,32,64,128,8]"),
)
WHOLE = ("schedule.rounds=8", "data.matrix=128", "data.spacing=null")
UNSEEN = (
    *("data.augmentation=scanner", "data.augmentation_only=[rotate,scale,shift,mirror]", "data.mirror=[1]"),
    "data.fold=all",
)
"""What holds best at a hospital that took no part (docs/results.md)."""
HARM = 1.0
"""Points of Dice by which a site's mean is lower that count as harm, and higher as a gain."""
MANY = 20
"""Scans of a hospital's week, for the time: no site of these data has so many."""
KEY = ("seed", "held_out", "masks", "draw")


def main() -> int:
    """Make what is missing, then the table."""
    parser = frame.parser(__doc__, draws=3)
    parser.add_argument("--work", type=Path, help="folder for the runs; without it only the table is made")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--sites", nargs="+", default=list(SITES), choices=SITES)
    parser.add_argument("--masks", type=int, nargs="+", default=[0, 1, 3])
    parser.add_argument("--whole", action="store_true", help="the task's network and slices")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = args.out or (OUT.with_stem("adaptation_whole") if args.whole else OUT)
    if args.work is not None:
        for seed in args.seeds:
            for site in args.sites:
                for run in missing(out, site, seed, args):
                    add(run, out)
    runs = read(out)
    table = table_of(runs, whole=args.whole)
    frame.write(out, {"schema": 1, "runs": runs}, table)
    print(table)
    return 0


def missing(out: Path, site: str, seed: int, args: Any) -> Iterator[dict[str, Any]]:
    """Adapt the model without a site as often as is not done yet."""
    wanted = [(masks, draw) for masks in args.masks for draw in range(args.draws if masks else 1)]
    known = {tuple(run[key] for key in KEY) for run in read(out)}
    wanted = [pair for pair in wanted if (seed, site, *pair) not in known]
    if not wanted:
        return
    settings = [*(WHOLE if args.whole else LEAN), *UNSEEN, "schedule.threads=1"]
    if args.whole:
        command, path = pooled_without(site, "prostate", seed=seed, settings=settings, work=args.work)
    else:
        command, path = trained_without(site, "fedavg", "prostate", seed=seed, settings=settings, work=args.work)
    model = open_model(path)
    cases = labelled_at(model, site)
    about = {"held_out": site, "seed": seed, "command": command, "round": model.header.round}
    for masks, draw in wanted:
        print(f"{site}, seed {seed}: {masks} masks, draw {draw}", flush=True)
        adapted = labelled(model, cases, masks, draw, seed) if masks else without(model, site, cases, seed)
        yield {**about, "masks": masks, "draw": draw, "fedshift": model.header.fedshift, **adapted}


def sets_of(site: str) -> Sequence[Any]:
    return gather(find_site("prostate", site, local=None, simulator=True) / "volumes")


def labelled_at(model: Model, site: str) -> Sequence[CaseFiles]:
    return scoring.labelled_cases(model, sets_of(site), labels={"prostate": [1]}, annotated=None)


def labelled(model: Model, cases: Sequence[CaseFiles], masks: int, draw: int, seed: int) -> dict[str, Any]:
    """Adapt to some drawn cases, and score on the others."""
    chosen = drawn(len(cases), masks, draw, seed)
    chosen_cases = [case for number, case in enumerate(cases) if number in chosen]
    tested = [case for number, case in enumerate(cases) if number not in chosen]
    ready = make_ready(model, Choice(), device="cpu")
    before = dice(ready, tested)
    with tempfile.TemporaryDirectory() as root, Stopwatch() as watch:
        labelled_cases = fine_tuning.open_cases(
            model, chosen_cases, [case.id for case in chosen_cases], Path(root), true_spacing=False
        )
        outcome = decision.with_masks(ready, labelled_cases, anyway=True, seed=seed)
    after = dice(ready, tested)
    start = {key: value.to(ready.device) for key, value in model.weights.items()}
    net = ready.predictor.net
    net.load_state_dict({key: all_the_way(start[key], value) for key, value in net.state_dict().items()})
    return result(outcome.adaptation, before, after, watch) | {"all_the_way": dice(ready, tested)}


def all_the_way(start: Tensor, adapted: Tensor) -> Tensor:
    """The weights after fine-tuning, of those that went a part of the way."""
    return torch.lerp(start, adapted, 1 / fine_tuning.SHARE) if adapted.is_floating_point() else adapted


def drawn(n: int, masks: int, draw: int, seed: int) -> frozenset[int]:
    """The numbers of the cases of a draw; no two draws have the same, as long as there are others."""
    chosen: dict[frozenset[int], None] = {}
    attempt = 0
    while len(chosen) <= min(draw, comb(n, masks) - 1):
        rng = np.random.default_rng(derive_seed(seed, "adaptation", attempt, f"{masks} masks"))
        chosen[frozenset(rng.permutation(n)[:masks].tolist())] = None
        attempt += 1
    return list(chosen)[-1]


def without(model: Model, site: str, cases: Sequence[CaseFiles], seed: int) -> dict[str, Any]:
    """Adapt to all scans of a site without masks, and score on all; with the time, also for `MANY` scans of others."""
    before = dice(make_ready(model, Choice(), device="cpu"), cases)
    others = [case for other in SITES if other != site for case in labelled_at(model, other)][:MANY]
    adapted_to(model, others[:2], seed)  # the first loads libraries
    *_, ratio = adapted_to(model, others, seed)
    ready, outcome, watch, of_a_prediction = adapted_to(model, cases, seed)
    times = {len(others): ratio, len(cases): of_a_prediction}
    return result(outcome.adaptation, before, dice(ready, cases), watch) | {"of_a_prediction": times}


def adapted_to(
    model: Model, cases: Sequence[CaseFiles], seed: int
) -> tuple[ReadyModel, decision.Outcome, Stopwatch, float]:
    """The model adapted to scans without their masks, what was decided, and the time, also in predictions of them."""
    ready, scans = make_ready(model, Choice(), device="cpu"), find_cases([c.image for c in cases], model.sequences)
    with Stopwatch() as predicting:
        for scan in scans:
            ready.segment(scan.read_stacked()[1], None)
    with Stopwatch() as watch:
        windows = unlabelled.windows_of(model, scans, true_spacing=False)
        outcome = decision.without_masks(ready, windows, anyway=True, seed=seed)
    return ready, outcome, watch, round(watch.processor / predicting.processor, 2)


def dice(ready: ReadyModel, cases: Sequence[CaseFiles]) -> list[float]:
    return [round(scoring.dice(ready, case, scoring.decode(case)[0]), 4) for case in cases]


def result(adaptation: Any, before: list[float], after: list[float], watch: Stopwatch) -> dict[str, Any]:
    """What is kept of an adaptation; ``accepted``: whether the model was adapted by decision."""
    return {
        "accepted": adaptation.decision == "adapted",
        "adaptation": adaptation.model_dump(mode="json", exclude={"decision", "labelled", "unlabelled", "fedshift"}),
        "before": before,
        "after": after,
        "seconds": round(watch.wall, 1),
        "processor_seconds": round(watch.processor, 1),
    }


class Stopwatch:
    """Seconds on the clock, and of the processor, which do not depend on what else a machine does."""

    def __enter__(self) -> Stopwatch:
        self._start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self.wall, self.processor = time.perf_counter() - self._start[0], time.process_time() - self._start[1]


def table_of(runs: list[dict[str, Any]], *, whole: bool) -> str:
    """Markdown: a row for each site and number of masks, and how often the decision was right."""
    rows, counts = [], []
    for masks in sorted({run["masks"] for run in runs}):
        of_masks = [run for run in runs if run["masks"] == masks]
        for site in SITES:
            if some := [run for run in of_masks if run["held_out"] == site]:
                rows.append({"site": site, "masks": masks, "runs": len(some), **means(some)})
        changes = [(100 * change(run), run["accepted"]) for run in of_masks]
        counts.append(
            {
                "masks": masks,
                "runs": len(of_masks),
                **means(of_masks),
                "harm": sum(points < -HARM for points, _ in changes),
                "harm_all_the_way": harm_all_the_way(of_masks),
                "harm_let_through": sum(points < -HARM and accepted for points, accepted in changes),
                "gain": sum(points > HARM for points, _ in changes),
                "gain_prevented": sum(points > HARM and not accepted for points, accepted in changes),
                "slowest": max(run["processor_seconds"] for run in of_masks),
                "of_a_prediction": longest(of_masks),
            }
        )
    return frame.page("adaptation", rows=rows, counts=counts, harm=HARM, whole=whole)


def longest(runs: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Number of scans -> the longest time without masks, as a multiple of a prediction's."""
    times: dict[int, float] = {}
    for run in runs:
        for scans, ratio in run.get("of_a_prediction", {}).items():
            times[int(scans)] = max(ratio, times.get(int(scans), 0.0))
    return dict(sorted(times.items()))


def means(runs: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Mean Dice in percent: before, adapted without a decision, fine-tuned all of the way, and as decided."""
    before = [100 * statistics.fmean(run["before"]) for run in runs]
    after = [100 * statistics.fmean(run["after"]) for run in runs]
    decided = [b if run["accepted"] else a for run, a, b in zip(runs, before, after, strict=True)]
    whole = [100 * statistics.fmean(run["all_the_way"]) for run in runs if "all_the_way" in run]
    every = {"before": before, "after": after, "all_the_way": whole, "decided": decided}
    return {name: statistics.fmean(values) if values else None for name, values in every.items()}


def harm_all_the_way(runs: Sequence[dict[str, Any]]) -> int | None:
    """How often fine-tuning all of the way would have harmed; None without masks."""
    changes = [change(run, "all_the_way") for run in runs if "all_the_way" in run]
    return sum(100 * points < -HARM for points in changes) if changes else None


def change(run: dict[str, Any], after: str = "after") -> float:
    return statistics.fmean(run[after]) - statistics.fmean(run["before"])


def read(path: Path) -> list[dict[str, Any]]:
    """What has been made."""
    runs: list[dict[str, Any]] = frame.read(path, {"runs": []})["runs"]
    return runs


def add(run: dict[str, Any], path: Path) -> None:
    """Add a result to the file."""
    runs = sorted([*read(path), run], key=lambda entry: [entry[key] for key in KEY])
    frame.write(path, {"schema": 1, "runs": runs})


if __name__ == "__main__":
    sys.exit(main())
