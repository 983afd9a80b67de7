"""Whose statistics should FedRDN use for a patient of a hospital that took no part in training?

FedRDN normalises a scan with its site's mean and deviation. A new hospital has none in the model file, and
chooses: the statistics of a training site (``predict --site``), or those of its own scans (``--statistics own``). Four
real sites are held out in turn; the others train, and the model scores every scan of the site that was held out

- with ``own`` statistics of all its scans together,
- with ``own`` statistics of each scan by itself, as for a first patient,
- with the statistics of each training site.

The data are 31 T2-weighted volumes of PROMISE12's training set, which you download yourself; prepare them with
``fedshift data prepare prostate --source DIR --out ROOT`` first. Then::

    FEDSHIFT_DATA=ROOT python benchmarks/new_site_statistics.py --work WORK

Each model's scores go to ``benchmarks/results/new_site_statistics.json``, and a model whose scores are there is not
trained again; an interrupted run goes on where it was. The table beside it is made from this file only.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import frame
from left_out import SITES, trained_without

from fedshift.data.layouts.find import gather
from fedshift.data.locate import find_site
from fedshift.inference.model import Model, open_model
from fedshift.inference.ready import Choice
from fedshift.inference.scoring import labelled_cases, ready_for, score_cases

OUT = frame.RESULTS / "new_site_statistics.json"
TOGETHER, ALONE = "own, all scans", "own, each scan alone"


def main() -> int:
    """Score what is missing, then write the table."""
    parser = frame.parser(__doc__)
    parser.add_argument("--work", type=Path, help="folder for the runs; without it only the table is made")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if args.work is not None:
        for seed in args.seeds:
            for site in SITES:
                if not any((run["held_out"], run["seed"]) == (site, seed) for run in read(args.out)):
                    add(one(site, seed, args.rounds, args.work), args.out)
    runs = read(args.out)
    table = table_of(runs)
    frame.write(args.out, {"schema": 1, "runs": runs}, table)
    print(table)
    return 0


def one(held_out: str, seed: int, rounds: int, work: Path) -> dict[str, Any]:
    """Train without a site, and score its scans with each choice of statistics."""
    settings = (f"schedule.rounds={rounds}", "schedule.local_epochs=1")
    words = ("fedrdn", "prostate", "--protocol", "quick")
    command, path = trained_without(held_out, *words, seed=seed, settings=settings, work=work)
    model = open_model(path)
    return {
        "held_out": held_out,
        "seed": seed,
        "command": command,
        "round": model.header.round,
        "validation": model.header.scores,
        "dice": {choice: values for choice, values in scored(model, held_out)},
        "fedshift": model.header.fedshift,
    }


def scored(model: Model, held_out: str) -> Iterator[tuple[str, list[float]]]:
    """Foreground Dice of each scan on its own grid, in the same order for each choice of statistics."""
    site = find_site("prostate", held_out, local=None, simulator=True)
    cases = labelled_cases(model, gather(site / "volumes"), labels={"prostate": [1]}, annotated=None)

    def dice(choice: Choice, cases: Any) -> list[float]:
        ready = ready_for(model, cases, choice, device="cpu")
        scored_cases = list(score_cases(ready, cases, tolerance=model.header.job.evaluation.tolerance))
        failed = [case.error for case in scored_cases if case.error is not None]
        if failed:
            raise SystemExit(f"{held_out}: {failed[0]}")
        return [round(case.scores["prostate"]["dice"], 4) for case in scored_cases]

    yield TOGETHER, dice(Choice(estimate=True), cases)
    yield ALONE, [value for case in cases for value in dice(Choice(estimate=True), [case])]
    for trained in model.header.statistics:
        yield f"site {trained}", dice(Choice(site=trained), cases)


def table_of(runs: list[dict[str, Any]]) -> str:
    """Markdown: a row for each model, and what the choices differ by over all scans."""
    rows = []
    for run in runs:
        dice = run["dice"]
        single_means = [100 * statistics.fmean(dice[choice]) for choice in (TOGETHER, ALONE)]
        by_site = sorted(100 * statistics.fmean(values) for values in named(dice).values())
        means = [*single_means, by_site[0], statistics.fmean(by_site), by_site[-1]]
        rows.append({"held_out": run["held_out"], "seed": run["seed"], "scans": len(dice[TOGETHER]), "means": means})
    compared = []
    for choice in (TOGETHER, ALONE) if runs else ():
        by_run = [differences(run["dice"], choice) for run in runs]
        scans = [value for values in by_run for value in values]
        higher = {"higher": sum(value > 0 for value in scans), "models": sum(map(_is_above, by_run))}
        compared.append({"choice": choice, "scans": len(scans), "mean": statistics.fmean(scans), **higher})
    return frame.page("new_site_statistics", own=(TOGETHER, ALONE), rows=rows, differences=compared)


def _is_above(values: list[float]) -> bool:
    return statistics.fmean(values) > 0


def named(dice: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """The scores with a training site's statistics."""
    return {choice: values for choice, values in dice.items() if choice.startswith("site ")}


def differences(dice: Mapping[str, list[float]], choice: str) -> list[float]:
    """For each scan, in points of Dice: with this choice, less the mean over the training sites' statistics."""
    others = [statistics.fmean(values) for values in zip(*named(dice).values(), strict=True)]
    return [100 * (value - other) for value, other in zip(dice[choice], others, strict=True)]


def read(path: Path) -> list[dict[str, Any]]:
    """The models that have been scored."""
    runs: list[dict[str, Any]] = frame.read(path, {"runs": []})["runs"]
    return runs


def add(run: dict[str, Any], path: Path) -> None:
    """Add a model's scores to the file."""
    runs = sorted([*read(path), run], key=lambda entry: (entry["seed"], SITES.index(entry["held_out"])))
    frame.write(path, {"schema": 1, "runs": runs})


if __name__ == "__main__":
    sys.exit(main())
