"""What do mirror images and the largest connected part add to a model's scores, without training it anew?

Models of a cross-validation score the validation and the test volumes of their fold, as ``fedshift evaluate`` does, in
four ways: as they are, with the mean over mirror images (``evaluation.mirror``), with the largest connected part of the
prediction alone (``evaluation.largest_component``), and with both. With FedRDN a site's volumes are normalised by the
site's statistics. Models with personal parts (FedBN) are not for this script, as the sites keep those.

    FEDSHIFT_DATA=ROOT python benchmarks/inference_options.py RUN [RUN ...]

``RUN`` is a run's folder, as those of the cells of ``fedshift compare benchmarks/recipes/prostate.yaml``. Scores go
to ``benchmarks/results/recipes/prostate_inference.json``, where those of a job that is there are not made again; the
table beside it is made from this file only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import frame

from fedshift.data.cases import CaseFiles
from fedshift.data.layouts.find import gather
from fedshift.data.locate import find_site
from fedshift.data.splits import case_splits
from fedshift.inference.model import Model, open_model
from fedshift.inference.ready import Choice
from fedshift.inference.scoring import labelled_cases, ready_for, score_cases
from fedshift.schema.manifest import read_manifest
from fedshift.schema.results import BEST
from fedshift.tasks.kinds import build_task

OUT = frame.RESULTS / "recipes" / "prostate_inference.json"
PARTS = ("val", "test")
WAYS: Mapping[str, dict[str, bool]] = {
    "as it is": {"mirror": False, "largest_component": False},
    "mirror images": {"mirror": True, "largest_component": False},
    "largest part": {"mirror": False, "largest_component": True},
    "both": {"mirror": True, "largest_component": True},
}


def main() -> int:
    """Score the models that are missing, then write the table."""
    parser = frame.parser(__doc__)
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="without any, only the table is made")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    known: list[dict[str, Any]] = frame.read(args.out, [])
    for run in args.runs:
        model = open_model(run / BEST)
        if named(model) in [{key: entry[key] for key in named(model)} for entry in known]:
            continue
        if model.header.personal:
            print(f"{run}: its sites keep personal parts of the model, left out")
            continue
        known.append(named(model) | {"round": model.header.round, "dice": scored(model)})
        known.sort(key=lambda entry: (entry["methods"], entry["seed"], entry["fold"]))
        frame.write(args.out, known)
        print(f"{run}: {named(model)}", flush=True)
    table = table_of(known)
    frame.write(args.out, known, table)
    print(table)
    return 0


def named(model: Model) -> dict[str, Any]:
    """What tells a model of the cross-validation from the others."""
    job = model.header.job
    methods = "+".join(name for name in job.methods if name != "fedavg") or "fedavg"
    return {"methods": methods, "seed": job.seed, "fold": job.task.data["fold"]}


def scored(model: Model) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Way -> part -> site -> foreground Dice of each volume on its own grid."""
    scores: dict[str, dict[str, dict[str, list[float]]]] = {way: {part: {} for part in PARTS} for way in WAYS}
    for part, site, cases in volumes(model):
        for way, options in WAYS.items():
            scores[way][part][site] = dice(with_options(model, options), site, cases)
    return scores


def volumes(model: Model) -> Iterator[tuple[str, str, list[CaseFiles]]]:
    """The validation and the test volumes of each site in the model's fold."""
    task = model.header.job.task
    for site in task.sites:
        folder = find_site(task.dataset, site, local=None, simulator=True)
        manifest = read_manifest(folder)
        splits = case_splits(manifest.cases, site=site, fold=task.data["fold"])
        part_of = {case.id: split for case, split in zip(manifest.cases, splits, strict=True)}
        every = labelled_cases(model, gather(folder / "volumes"), labels={"prostate": [1]}, annotated=None)
        for part in PARTS:
            yield part, site, [case for case in every if part_of[case.id] == part]


def with_options(model: Model, options: Mapping[str, bool]) -> Model:
    """The same weights with other options of inference."""
    job = model.header.job
    job = job.model_copy(update={"evaluation": job.evaluation.model_copy(update=dict(options))})
    return replace(model, header=model.header.model_copy(update={"job": job}), task=build_task(job))


def dice(model: Model, site: str, cases: Sequence[CaseFiles]) -> list[float]:
    """Foreground Dice of each volume, with the site's statistics where the model asks for some."""
    ready = ready_for(model, cases, Choice(site=site if model.header.statistics else None), device="cpu")
    scored_cases = list(score_cases(ready, cases, tolerance=model.header.job.evaluation.tolerance))
    failed = [case.error for case in scored_cases if case.error is not None]
    if failed:
        raise SystemExit(f"{site}: {failed[0]}")
    return [round(case.scores["prostate"]["dice"], 4) for case in scored_cases]


def table_of(runs: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: for each method the mean over its models of the mean over sites."""
    rows = []
    for methods in dict.fromkeys(run["methods"] for run in runs):
        models = [run["dice"] for run in runs if run["methods"] == methods]
        for part in PARTS:
            means = [fmean(mean_of(scores[way][part]) for scores in models) for way in WAYS]
            rows.append({"methods": methods, "models": len(models), "part": part, "means": means})
    return frame.page("inference_options", ways=list(WAYS), rows=rows)


def mean_of(sites: Mapping[str, Sequence[float]]) -> float:
    """Mean over sites of the mean over volumes, in percent."""
    return 100 * fmean(fmean(values) for values in sites.values())


if __name__ == "__main__":
    raise SystemExit(main())
