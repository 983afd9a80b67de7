"""Which rule finds the round that is best at a hospital that took no part?

Each of the prostate's four sites is left out of a short training on the images of the other three in one place, with
the moves of the preset ``scanner``. Compared are the rounds with the highest mean validation Dice over the sites that
train, with the highest of the worst of them, the best at sites that took no part (each of the three is left out again,
as `fedshift leave-one-out --choose-round` does), and the last; and beside them the round that is best at the site
itself, which nobody can know. Dice is that of patches as in the scores of rounds, the mean over all volumes of a site.

    FEDSHIFT_DATA=DIR python benchmarks/round_choice.py --work WORK

with the data of `fedshift data prepare prostate --source DIR --matrix 96`. Training without sites A and B serves both
for A left out, where B is left out again, and the other way round. What has ended in WORK is not trained again; without
``--work`` only the page is made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import frame
from left_out import SITES

from fedshift.data.locate import find_sites
from fedshift.federation.in_process import run_pooled
from fedshift.federation.protocols import note_held_out
from fedshift.federation.resolve import resolve
from fedshift.federation.server.coordinator import Coordinator
from fedshift.federation.site.site import Site
from fedshift.schema.messages import Broadcast
from fedshift.schema.results import FILE_NAME, Results, read_results

OUT = frame.RESULTS / "round_choice.json"
LEAN = (
    *("data.matrix=64", "data.spacing=null", "data.patch=[64, 64]", "data.samples_per_case=12", "data.fold=all"),
    *("data.augmentation=scanner", "data.augmentation_only=[rotate, scale, shift, mirror]", "data.mirror=[1]"),
    *("network.options.features=[8, 16, 32, 64, 64, 8]", "optimizer.lr=0.003"),
    *("schedule.rounds=8", "schedule.threads=1"),
    *("evaluation.mirror=false", "evaluation.largest_component=false"),
)
RULES = {
    "mean": "mean over the sites that train (`evaluation.select=mean`)",
    "worst": "worst of the sites that train (`evaluation.select=worst`)",
    "left out inside": "sites left out inside training (`leave-one-out --choose-round`)",
    "last": "last",
    "best at the site": "best at the site itself, which nobody can know",
}
Curve = Mapping[int, float]


def main() -> int:
    """Train what is missing, then make the page."""
    parser = frame.parser(__doc__)
    parser.add_argument("--work", type=Path, help="folder for the runs; without it only the page is made")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    args = parser.parse_args()
    if args.work:
        runs = [run for seed in args.seeds for run in trained(args.work, seed)]
        frame.write(OUT, {"schema": 1, "settings": list(LEAN), "runs": runs})
    runs = frame.read(OUT, {"runs": []})["runs"]
    page = frame.page("round_choice", rows=rows(runs), seeds=sorted({run["seed"] for run in runs}))
    frame.write(OUT, frame.read(OUT, {}), page)
    print(page)
    return 0


def trained(work: Path, seed: int) -> list[dict[str, Any]]:
    """For each site left out its Dice by round, the validation Dice of the others, and that of those left out again."""
    inner = {pair: inner_curves(work, pair, seed) for pair in itertools.combinations(SITES, 2)}
    runs = []
    for site in SITES:
        run = result(work, (site,), seed, score_all)
        others = [other for other in SITES if other != site]
        again = {other: inner[_pair(site, other)][other] for other in others}
        validation = {
            other: {record.round: record.sites[other].val["dice"] for record in run.rounds} for other in others
        }
        at_site = {record.round: record.held_out[site]["dice"] for record in run.rounds}
        runs.append({"held_out": site, "seed": seed, "at_site": at_site, "val": validation, "left_out_again": again})
    return runs


def _pair(site: str, other: str) -> tuple[str, str]:
    first, second = sorted((site, other), key=SITES.index)
    return first, second


def inner_curves(work: Path, pair: tuple[str, str], seed: int) -> dict[str, Curve]:
    """Validation Dice by round at two sites that are left out together."""
    run = result(work, pair, seed, note_held_out)
    return {site: {record.round: record.held_out[site]["dice"] for record in run.rounds} for site in pair}


def result(
    work: Path,
    held_out: tuple[str, ...],
    seed: int,
    on_aggregate: Callable[[Coordinator, Mapping[str, Site], Broadcast], None],
) -> Results:
    """The record of a training without some sites."""
    folder = work / f"without_{'_'.join(held_out)}_seed{seed}"
    if not (folder / FILE_NAME).is_file() or read_results(folder).final is None:
        sites = [site for site in SITES if site not in held_out]
        job = resolve("prostate", "all", sites=sites, held_out=list(held_out), options=LEAN, seed=seed)
        print(f"without {', '.join(held_out)}, seed {seed}", flush=True)
        run_pooled(job, find_sites(job), folder, resume=True, on_aggregate=on_aggregate)
    return read_results(folder)


def score_all(coordinator: Coordinator, sites: Mapping[str, Site], broadcast: Broadcast) -> None:
    """Score the aggregate of a round on all volumes of the site that is left out."""
    (site,) = coordinator.job.task.held_out
    with sites[site].loaded(broadcast) as model:
        coordinator.record.note_held_out(site, broadcast.round - 1, model.scores("all"))


def rows(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each rule the chosen rounds and the mean Dice at each site left out, over seeds."""
    table = []
    for rule in RULES:
        chosen = {(run["held_out"], run["seed"]): chosen_round(rule, run) for run in runs}
        dice = {
            site: fmean(run["at_site"][str(chosen[site, run["seed"]])] for run in runs if run["held_out"] == site)
            for site in SITES
        }
        numbers = {site: [round_ for (name, _), round_ in chosen.items() if name == site] for site in SITES}
        table.append({"name": RULES[rule], "rounds": numbers, "dice": dice, "mean": fmean(dice.values())})
    return table


def chosen_round(rule: str, run: dict[str, Any]) -> int:
    """The round that a rule takes, the earlier of equals."""
    rounds = sorted(map(int, run["at_site"]))
    scores: Mapping[str, Callable[[int], float]] = {
        "mean": lambda number: fmean(curve[str(number)] for curve in run["val"].values()),
        "worst": lambda number: min(curve[str(number)] for curve in run["val"].values()),
        "left out inside": lambda number: fmean(curve[str(number)] for curve in run["left_out_again"].values()),
        "last": float,
        "best at the site": lambda number: run["at_site"][str(number)],
    }
    return max(rounds, key=lambda number: (scores[rule](number), -number))


if __name__ == "__main__":
    raise SystemExit(main())
