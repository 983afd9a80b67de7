"""Segmentation of regions, and voxels to ignore: against the same of classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from errors import raises
from volumesites import BLOBS, blob_job, make_volume_site

from fedshift.data.prepared import mask_file, read_labels
from fedshift.data.scans import read_scan
from fedshift.federation.image_free import score_guess
from fedshift.federation.in_process import run_in_process
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.inference.masks import write_mask
from fedshift.runtime.regions import IGNORED
from fedshift.runtime.segmentation import classes_of
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest
from fedshift.schema.results import LAST
from fedshift.tasks.kinds import build_task
from fedshift.tasks.segmentation.patch_task import Task

DISJOINT = "regions: {left: [left], right: [right]}\n"
NESTED = "regions: {both: [left, right], right: [right]}\n"


def job_of(folder: Path, more: str, *options: str, methods: str = "fedavg") -> JobSpec:
    (folder / "blobs.yaml").write_text(BLOBS + more, encoding="utf-8")
    return resolve(str(folder / "blobs.yaml"), methods, options=options, seed=1)


def task_of(job: JobSpec) -> Task:
    task = build_task(job)
    assert isinstance(task, Task)
    return task


def ignore(folder: Path, *, x_from: int) -> None:
    """Let the voxels from a column on be ignored in all masks of a site."""
    manifest = read_manifest(folder)
    for case in manifest.cases:
        path = mask_file(folder, case.id)
        labels = read_labels(folder, case)
        labels[..., x_from:] = IGNORED
        scan = read_scan(path)
        path.unlink()
        write_mask(labels, scan, path, source=Path("none.nrrd"))
    manifest.model_copy(update={"ignore": True}).write(folder)


def perfect(task: Task, opened: Any, case: int) -> torch.Tensor:
    """Probabilities (1, R, z, y, x) of one who knows the mask."""
    regions = task._job.task.made_regions
    assert regions is not None
    return torch.from_numpy(regions.table[opened.labels(np.array([case])).numpy()]).movedim(-1, 1).float()


def test_scores_are_of_regions(tmp_path: Path) -> None:
    folder = make_volume_site(tmp_path, "A", shape=(8, 20, 24))
    built = task_of(job_of(tmp_path, NESTED, "data.spacing=[3.0,1.0,1.0]"))
    assert built.network()(torch.zeros(1, 1, 16, 16)).shape == (1, 2, 16, 16)
    opened = built.open(folder, "A")
    whole = perfect(built, opened, 3)
    evaluation = built.evaluate(iter([whole]), opened, "test", seed=0, share_cases=True)
    assert (
        evaluation.scores["dice both"] > 0.9
        and evaluation.scores["dice"] > 0.9
        and "dice left" not in evaluation.scores
    )
    assert evaluation.calibration is not None and evaluation.calibration.ece < 1e-6
    predicted = built.predicted(20 * whole - 10)
    assert built.scores(iter([predicted]), opened, "test") == {"dice": 1, "dice both": 1, "dice right": 1}
    lacking = predicted & 1
    scores = built.scores(iter([lacking]), opened, "test")
    assert scores["dice both"] == 1 and scores["dice right"] == 0
    assert built.confidences(iter([whole]), opened, "test").__next__() == 1
    missed = built.evaluate(
        iter([whole * torch.tensor([1, 0])[:, None, None]]), opened, "test", seed=0, share_cases=True
    )
    assert missed.one_sided is not None and missed.one_sided["right"].missed == 1 and "both" not in missed.one_sided


@pytest.mark.slow
def test_two_regions_that_exclude_each_other_score_as_two_classes(tmp_path: Path) -> None:
    data = {site: make_volume_site(tmp_path, site, cases=6) for site in "AB"}
    dice = {}
    for name, more in (("classes", ""), ("regions", DISJOINT)):
        job = job_of(tmp_path, more, "schedule.rounds=30", "optimizer.lr=0.02")
        final = run_in_process(job, data, tmp_path / name).results.final
        assert final is not None
        dice[name] = [final.last.sites[site]["test"]["dice"] for site in "AB"]
    assert min(dice["regions"]) > 0.95
    assert dice["regions"] == pytest.approx(dice["classes"], abs=0.03)


def test_one_region_decides_as_the_class_of_a_binary_head(tmp_path: Path) -> None:
    one = task_of(job_of(tmp_path, "regions: {both: [left, right]}\n"))
    logits = torch.randn(2, 2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    apart = logits[:, 1:] - logits[:, :1]
    assert torch.equal(one.predicted(apart), logits.argmax(1).to(torch.uint8))
    torch.testing.assert_close(one.probabilities(apart)[:, 0], logits.softmax(1)[:, 1])


def test_regions_that_masks_do_not_outline_are_neither_learned_nor_scored(tmp_path: Path) -> None:
    folder = make_volume_site(tmp_path, "A", annotated=("right",))
    built = task_of(job_of(tmp_path, NESTED))
    opened = built.open(folder, "A")
    there = built.at(opened)
    x, y = opened.train_samples(np.arange(4))
    logits = torch.randn(4, 2, *x.shape[2:]).requires_grad_()
    (slope,) = torch.autograd.grad(there.loss(logits, y), logits)
    assert not slope[:, 0].any() and slope[:, 1].any()
    found = there.evaluate(iter([perfect(built, opened, 3)]), opened, "test", seed=0, share_cases=True)
    assert found.scores["dice right"] == found.scores["dice"] == 1 and "dice both" not in found.scores
    other = make_volume_site(tmp_path / "other", "A", annotated=("left",))
    with raises("no-outlines", naming="site A"):
        task_of(job_of(tmp_path, "regions: {both: [left, right]}\n")).at(built.open(other, "A"))


@pytest.mark.parametrize("more", ["", NESTED])
def test_what_is_predicted_where_voxels_are_ignored_changes_no_score(tmp_path: Path, more: str) -> None:
    folder = make_volume_site(tmp_path, "A")
    ignore(folder, x_from=14)
    with raises("ignore-unknown", naming="site A"):
        build_task(job_of(tmp_path, more)).open(folder, "A")
    built = task_of(job_of(tmp_path, more, "ignore=true"))
    opened = built.open(folder, "A")
    assert (opened.labels(np.array([3])) == IGNORED).any()
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(opened.labels(np.array([3])).shape[0], built._job.task.outputs, 20, 24, generator=rng)
    other = logits.clone()
    other[..., 14:] = -other[..., 14:]
    found = [
        built.evaluate(iter([built.probabilities(each)]), opened, "test", seed=0, share_cases=True)
        for each in (logits, other)
    ]
    assert found[0] == found[1] and found[0].scores["dice"] > 0
    scores = [built.scores(iter([built.predicted(each)]), opened, "test") for each in (logits, other)]
    assert scores[0] == scores[1]
    guess = score_guess(built._job, {"A": folder, "B": folder}, trained=["A"], scored=[("A", "test")])
    assert guess["A", "test"].scores["dice"] > 0


@pytest.mark.slow
def test_ignore_with_no_ignored_voxel_has_the_same_bits(tmp_path: Path) -> None:
    data = {site: make_volume_site(tmp_path, site) for site in "AB"}
    weights = []
    for number, options in enumerate(([], ["ignore=true"])):
        job = blob_job(tmp_path, "schedule.rounds=1", *options)
        run_in_process(job, data, tmp_path / str(number))
        weights.append(read_model_file(tmp_path / str(number) / LAST)["weights"])
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_of_each_region_the_largest_part_is_kept() -> None:
    probability = np.zeros((2, 4, 8, 8), np.float32)
    probability[0, :, :4, :4], probability[0, 0, 7, 7] = 0.9, 0.9
    probability[1, 0, 0, 0], probability[1, :2, 6:, 0] = 0.8, 0.8
    certainty = np.zeros_like(probability)
    sets = classes_of(probability, (4, 8, 8), largest_component=(1, 2), regions=True, certainty=certainty)
    assert (sets[:, :4, :4] == 1).all() and sets[0, 7, 7] == 0 and (sets[:2, 6:, 0] == 2).all()
    np.testing.assert_array_equal(certainty, probability)
