"""Cases without the structure are trained on and scored: Dice over the others, and the volume of false positives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_site, small_job
from errors import raises
from volumesites import blob_job, make_volume_site

from fedshift.data.check import check
from fedshift.federation.in_process import run_in_process
from fedshift.federation.survey_answer import answer
from fedshift.reporting.false_positives import sentences
from fedshift.reporting.table import scores_table
from fedshift.schema.codes import WITHOUT_STRUCTURE
from fedshift.schema.manifest import read_manifest
from fedshift.schema.policy import Policy
from fedshift.tasks.kinds import build_task

TAKEN = "data.empty=true"
IN_3D = ("data.dims=3", "data.patch=[8, 16, 16]")


@pytest.mark.parametrize("options", [(), IN_3D], ids=["2D", "3D"])
def test_sites_with_some_and_with_only_empty_cases_train_and_are_scored(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    sites = {
        "A": make_volume_site(tmp_path, "A", cases=7, val=1, test=3, empty=(0, 6)),
        "B": make_volume_site(tmp_path, "B", cases=5, empty=range(5)),
    }
    job = blob_job(tmp_path, "schedule.rounds=2", "evaluation.local=true", "evaluation.reference=true", TAKEN, *options)
    results = run_in_process(job, sites, tmp_path / "run").results
    assert results.final is not None
    best = results.final.best
    of_a, of_b = (best.evaluations[site]["test"] for site in ("A", "B"))
    assert of_a.distributions["dice"].n == 2 and of_a.distributions["false_positives"].n == 1
    assert of_b.distributions.keys() == {
        "false_positives",
        "false_positives left",
        "false_positives right",
    }
    assert "dice" not in of_b.scores and of_b.scores["false_positives"] >= 0
    assert "dice" in best.sites["A"]["val"] and best.sites["B"]["val"] == {}, "nothing to select by at B"
    assert all("dice" not in record.sites["B"].val for record in results.rounds)
    assert results.final.against_local.keys() == {"A"} and results.final.against_local["A"].n == 2
    notes = str(scores_table(results).caption)
    assert "A: left: 1" in notes.replace("\n", " ")


@pytest.mark.parametrize("options", [(), IN_3D], ids=["2D", "3D"])
def test_false_positives_are_millilitres_on_the_scans_own_grid(options: tuple[str, ...], tmp_path: Path) -> None:
    import torch

    folder = make_volume_site(tmp_path, "A", cases=4, val=0, test=2, empty=(3,), spacing=(2.0, 1.0, 1.5))
    built = build_task(blob_job(tmp_path, TAKEN, *options))
    data = built.open(folder, "A")

    def ball(index: np.ndarray) -> torch.Tensor:
        """What is there, and in each case 2 x 4 x 4 voxels of the first class."""
        labels = data.labels(index).clone()
        labels[..., :4, :4][labels[..., :4, :4] == 0] = 1
        return torch.nn.functional.one_hot(labels, 3).movedim(-1, 1).float()

    told = built.evaluate(map(ball, data.eval_index("test")), data, "test", seed=0, share_cases=True)
    slices = read_manifest(folder).cases[0].shape[0]
    assert told.distributions["false_positives left"].cases == pytest.approx([slices * 16 * 3.0 / 1000])
    assert told.distributions["false_positives right"].cases == [0.0]
    assert told.scores["false_positives"] == pytest.approx(slices * 16 * 3.0 / 2000)
    assert told.distributions["dice right"].cases == [1.0] and told.distributions["dice left"].n == 1
    assert told.one_sided is not None and told.one_sided["left"].invented == 1
    left, right = sentences(told)
    assert left.startswith("left: 1") and f"{slices * 0.048:.2f} ml" in left
    assert right.startswith("right: 1") and "0.00 ml" in right


def test_slices_are_scored_alike(tmp_path: Path) -> None:
    sites = {site: make_site(tmp_path, site, cases=6, empty=(0, 5)) for site in ("BIDMC", "HK", "UCL")}
    run = run_in_process(small_job("fedavg", "schedule.rounds=1", TAKEN), sites, tmp_path / "run")
    final = run.results.final
    assert final is not None
    for site in sites:
        told = final.best.evaluations[site]["test"]
        assert told.distributions.keys() == {"false_positives"} and told.distributions["false_positives"].n == 1
        assert "dice" in final.best.sites[site]["val"] and "dice" not in final.best.sites[site]["test"]


def test_a_job_that_takes_none_refuses_the_site(tmp_path: Path) -> None:
    folder = make_volume_site(tmp_path, "A", empty=(0,))
    with raises("mask-empty", naming=("site A", "data.empty=true")):
        build_task(blob_job(tmp_path)).open(folder, "A")
    assert build_task(blob_job(tmp_path, TAKEN)).open(folder, "A").n_train


@pytest.mark.parametrize("option", ["data.train_slices=foreground", "data.split=slice-legacy"])
def test_slices_with_foreground_alone_would_leave_them_out(option: str) -> None:
    with raises("options-clash", naming="data.empty"):
        build_task(small_job("fedavg", TAKEN, option))


def test_a_survey_and_the_check_take_a_site_with_only_empty_cases(tmp_path: Path) -> None:
    folder = make_volume_site(tmp_path, "A", cases=6, empty=range(6))
    told: Any = answer(folder, "A", Policy())
    assert told.cases and read_manifest(folder).preparation[WITHOUT_STRUCTURE] == 6
    errors = [finding for finding in check(folder) if finding.level == "error" and "empty mask" in finding.message]
    assert not errors
