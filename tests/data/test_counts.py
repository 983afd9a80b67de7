"""Estimated numbers of samples, from the manifest alone, against what a task then finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import make_image_site, make_site, small_image_job, small_job
from volumesites import make_volume_site

from fedshift.data.splits import about_counts
from fedshift.schema.manifest import read_manifest
from fedshift.tasks.kinds import build_task

SLICES = ("data.train_slices=all", "data.fraction=1.0", "data.split=case")


def test_pictures_are_counted_exactly(tmp_path: Path) -> None:
    folder = make_image_site(tmp_path, "A")
    site = "data.fraction_of=site"
    for options in (
        (),
        ("data.fraction=0.25",),
        ("data.images=5",),
        ("data.fraction=0.5", site),
        ("data.fraction=0.9", site, "data.shares=[0.8, 0.1, 0.1]"),
    ):
        job = small_image_job("fedavg", *options, sites=("A",))
        data = build_task(job).open(folder, "A")
        estimate = about_counts(read_manifest(folder), job.task.data)
        assert estimate == {split: data.count(split) for split in ("train", "val", "test")}


def test_every_slice_of_a_case_is_a_sample(tmp_path: Path) -> None:
    folder = make_site(tmp_path, "HK", cases=5, depth=8)
    job = small_job("fedavg", *SLICES, sites=("HK",))
    assert about_counts(read_manifest(folder), job.task.data) == {"train": 24, "val": 8, "test": 8}


@pytest.mark.parametrize(("fraction", "train"), [(0.5, 48), (0.01, 32)])
def test_a_share_of_the_slices_is_not_less_than_the_papers_least(fraction: float, train: int, tmp_path: Path) -> None:
    folder = make_site(tmp_path, "HK", cases=14, depth=8)
    counts = about_counts(read_manifest(folder), {"fraction": fraction})
    assert counts["train"] == train


def test_the_split_by_slice_has_its_own_shares(tmp_path: Path) -> None:
    folder = make_site(tmp_path, "HK", cases=20, depth=10)
    counts = about_counts(read_manifest(folder), {"split": "slice-legacy"})
    assert counts == {"train": 72, "val": 24, "test": 24}, "of 200 slices about 120 show the organ"


def test_patches_of_an_epoch_and_windows_of_an_evaluation_are_counted(tmp_path: Path) -> None:
    folder = make_volume_site(tmp_path, "A", cases=5, shape=(12, 20, 24), spacing=(2.0, 1.0, 1.0))
    data = {"patch": [8, 16, 16], "spacing": [1.0, None, 0.5], "samples_per_case": 3}
    counts = about_counts(read_manifest(folder), data)
    assert counts == {"train": 9, "val": 4 * 2 * 4, "test": 4 * 2 * 4}
