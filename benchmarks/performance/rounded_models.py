"""What it does to a model's scores that its weights travel as bf16 or int8: the same models, rounded and not.

    FEDSHIFT_DATA=PREPARED python -m benchmarks.performance.rounded_models

Training carries every rounding on to models that differ by points (see `precision`); here nothing is trained after the
rounding. FedAvg on prostate scans of four sites, several seeds; the best and the last model of each are scored on the
test patients as they are, and as sites receive them with ``federation.weights_as``. Dice in percent.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import torch

from benchmarks import frame
from benchmarks.performance.precision import SITES, job_of
from fedshift.data.locate import find_sites
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model
from fedshift.federation.site.site import Site, SiteOptions
from fedshift.schema.compression import WeightsAs, pack, packed_keys
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Broadcast, Weights
from fedshift.schema.results import BEST, LAST
from fedshift.tasks.kinds import build_task

FORMATS: tuple[WeightsAs, ...] = get_args(WeightsAs)


def main() -> None:
    args = frame.parser(__doc__, rounds=30, seeds=4, matrix=64).parse_args()
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(models, seed, args.rounds, args.matrix) for seed in range(args.seeds)]
        all_models = [model for future in waiting for model in future.result()]
    content = {
        "what": f"FedAvg, prostate, {', '.join(SITES)}, {args.matrix}x{args.matrix}, U-Net of 16 features, "
        f"{args.rounds} rounds of one epoch in bf16; scored in fp32",
        "models": all_models,
        "largest_difference_of_the_mean": {
            form: max((model["difference"][form]["mean"] for model in all_models), key=abs) for form in FORMATS[1:]
        },
        "largest_difference_at_a_site": {
            form: max((value for model in all_models for value in model["difference"][form].values()), key=abs)
            for form in FORMATS[1:]
        },
    }
    print(json.dumps(content, indent=1))
    frame.write_measured("rounded_models", content)


def models(seed: int, rounds: int, matrix: int) -> list[dict[str, Any]]:
    """The best and the last model of a run, in all formats."""
    torch.set_num_threads(1)
    job, exact = (job_of(arm, seed, rounds=rounds, matrix=matrix) for arm in ("bf16", "fp32"))
    data, told = find_sites(job), []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        results = run_in_process(job, data, folder / "run", device="cpu").results
        assert results.selected is not None
        for name, file, round_ in (("best", BEST, results.selected.round), ("last", LAST, rounds)):
            weights, _ = read_model(folder / "run" / file, round_=round_)
            dice = {
                form: scores(exact, data, folder / name / form, as_received(exact, weights, form)) for form in FORMATS
            }
            apart = {
                form: {key: round(dice[form][key] - dice["fp32"][key], 3) for key in dice[form]} for form in FORMATS[1:]
            }
            told.append({"seed": seed, "model": name, "round": round_, "dice": dice, "difference": apart})
            print(json.dumps(told[-1]), flush=True)
    return told


def as_received(job: JobSpec, weights: Weights, form: WeightsAs) -> Weights:
    """As a site has them when they have travelled so."""
    net = build_task(job).network()
    keys = packed_keys(weights, dict(net.named_parameters()), form)
    return {key: pack(value, form).unpack() if key in keys else value for key, value in weights.items()}


def scores(job: JobSpec, data: Mapping[str, Path], state: Path, weights: Weights) -> dict[str, float]:
    """Test Dice by site, and their mean."""
    model = Broadcast(round=job.task.schedule.rounds + 1, best_round=0, weights=weights, arrays={})
    dice = {}
    for name in SITES:
        site = Site(job, name, data[name], SiteOptions(state / name))
        dice[name] = 100 * site.validate(model).values["test"]["dice"]
    return {name: round(value, 3) for name, value in (dice | {"mean": fmean(dice.values())}).items()}


if __name__ == "__main__":
    main()
