"""The image-free guess at prepared sites: from training masks alone, scored as a model is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from conftest import make_image_site, make_site, small_image_job, small_job
from volumesites import blob_job, make_volume_site

from fedshift.data.prepared import image_files
from fedshift.federation.image_free import can_guess, record_guess, score_guess
from fedshift.federation.in_process import run_in_process
from fedshift.schema.job import JobSpec
from fedshift.schema.manifest import read_manifest
from fedshift.schema.results import read_results

PATCHES = {"2D": (), "3D": ("data.dims=3", "data.patch=[8, 16, 16]", "network.options.strides=[2]")}


@pytest.mark.parametrize("dims", PATCHES)
def test_every_class_of_volumes_is_guessed_at_held_out_cases(tmp_path: Path, dims: str) -> None:
    data = {site: make_volume_site(tmp_path, site, cases=6) for site in "AB"}
    job = blob_job(tmp_path, *PATCHES[dims])
    found = score_guess(job, data, trained="AB", scored=[("A", "test"), ("B", "all")])
    assert set(found) == {("A", "test"), ("B", "all")}
    scores = found["A", "test"].scores
    assert {"dice", "dice left", "dice right", "hd95"} <= scores.keys() and 0 < scores["dice"] < 1
    assert found["B", "all"].distributions["dice"].n == 6


def slices_job(*options: str) -> JobSpec:
    return small_job("fedavg", *options, sites=("BIDMC", "HK"))


@pytest.mark.parametrize("options", [(), ("data.train_slices=foreground",), ("data.split=slice-legacy",)])
def test_slices_are_guessed_with_the_papers_dice_too(tmp_path: Path, options: tuple[str, ...]) -> None:
    data = {site: make_site(tmp_path, site, cases=5) for site in ("BIDMC", "HK")}
    scores = score_guess(slices_job(*options), data, trained=["BIDMC"], scored=[("HK", "test")])
    assert 0 < scores["HK", "test"].scores["dice"] <= 1 and "dice_papers" in scores["HK", "test"].scores


def test_no_image_is_looked_at(tmp_path: Path) -> None:
    """Other images leave the guess as it is."""
    scores = []
    for number, name in enumerate(("a", "b")):
        folder = make_volume_site(tmp_path / name, "A", cases=5)
        manifest = read_manifest(folder)
        for case in manifest.cases:
            for path in image_files(folder, manifest, case.id):
                image = sitk.ReadImage(str(path))
                voxels = sitk.GetArrayFromImage(image)
                changed = sitk.GetImageFromArray(
                    np.random.default_rng(number).permutation(voxels.ravel()).reshape(voxels.shape)
                )
                changed.CopyInformation(image)
                sitk.WriteImage(changed, str(path))
        scores.append(score_guess(blob_job(tmp_path), {"A": folder}, trained="A", scored=[("A", "test")])["A", "test"])
    assert scores[0].scores == scores[1].scores


def test_a_finished_run_s_record_gets_it_and_nothing_else_changes(tmp_path: Path) -> None:
    data = {site: make_volume_site(tmp_path, site, cases=5) for site in "AB"}
    job = blob_job(tmp_path, "schedule.rounds=1", "schedule.local_epochs=1")
    run_in_process(job, data, tmp_path / "run", device="cpu")
    before = read_results(tmp_path / "run")
    record_guess(job, data, tmp_path / "run")
    after = read_results(tmp_path / "run")
    assert before.final is not None and after.final is not None and not before.final.image_free
    assert set(after.final.image_free) == {"A", "B"} and 0 < after.final.image_free["A"]["test"]["dice left"] < 1
    before.final.image_free = after.final.image_free
    assert before == after


def test_pictures_have_no_place_to_guess(tmp_path: Path) -> None:
    make_image_site(tmp_path, "A")
    assert not can_guess(small_image_job("fedavg")) and can_guess(slices_job())
