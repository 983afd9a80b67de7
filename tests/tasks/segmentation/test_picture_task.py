"""Pictures as the data of a task: what is refused, and that a model learns from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from errors import raises
from segmentpictures import TASK, disc, prepare_discs
from volumesites import blob_job, make_volume_site

from fedshift.data.picture_scan import as_voxels
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.schema.job import JobSpec
from fedshift.schema.results import read_results
from fedshift.tasks.evaluation.surfaces import surface_scores
from fedshift.tasks.kinds import build_task


def disc_job(folder: Path, *options: str, methods: str = "fedavg") -> JobSpec:
    (folder / "discs.yaml").write_text(TASK, encoding="utf-8")
    return resolve(str(folder / "discs.yaml"), methods, options=options, seed=1)


@pytest.mark.parametrize("option", ["data.dims=3", "data.context=3", "data.spacing=[1,1,1]"])
def test_pictures_have_no_neighbours_and_no_spacing(tmp_path: Path, option: str) -> None:
    patch = ["data.patch=[16,16,16]"] if "dims" in option else []
    with raises("invalid-value", naming="pictures"):
        build_task(disc_job(tmp_path, option, *patch))


def test_a_task_takes_pictures_or_volumes(tmp_path: Path) -> None:
    pictures = prepare_discs(tmp_path / "raw", tmp_path)
    volumes = make_volume_site(tmp_path, "A")
    with raises("kind-of-data", naming="data.pictures=true"):
        build_task(disc_job(tmp_path, "data.pictures=false")).open(pictures, "A")
    with raises("kind-of-data", naming="data.pictures=false"):
        build_task(blob_job(tmp_path, "data.pictures=true")).open(volumes, "A")
    with raises("kind-of-data", naming="data.pictures"):
        build_task(resolve("prostate", "fedavg")).open(pictures, "A")


def test_patches_and_whole_pictures_are_cut_from_them(tmp_path: Path) -> None:
    folder = prepare_discs(tmp_path / "raw", tmp_path)
    data = build_task(disc_job(tmp_path, "data.normalise=none")).open(folder, "A")
    case = int(data.members("test")[0])
    picture, inside = disc(int(data.manifest.cases[case].id[1:]))
    image = data.images(np.array([case]))
    assert image.shape == (1, 3, 24, 32)
    np.testing.assert_array_equal(image[0].numpy(), np.stack([as_voxels(picture[..., k])[0] for k in range(3)]))
    np.testing.assert_array_equal(data.labels(np.array([case]))[0].numpy(), as_voxels(inside)[0])
    whole = build_task(disc_job(tmp_path, "data.matrix=32", "data.patch=[32,32]")).open(folder, "A")
    assert whole.samples(np.arange(2), "train")[0].shape == (2, 3, 32, 32)


def test_the_distances_of_outlines_are_within_the_picture(tmp_path: Path) -> None:
    """Pixels inside a disc are no part of its outline, though there is nothing above and below them."""
    first = np.zeros((1, 21, 21), bool)
    first[0, 5:16, 5:16] = True
    second = np.zeros_like(first)
    second[0, 6:17, 5:16] = True
    hausdorff, mean, surface = surface_scores(first, second, (1.0, 1.0, 1.0), tolerance=0.5)
    stacked = [np.repeat(mask, 41, axis=0) for mask in (first, second)]
    assert hausdorff == 1.0 and 0.4 < mean < 0.6 and 0.4 < surface < 0.6
    assert surface_scores(*stacked, (1.0, 1.0, 1.0), tolerance=0.5)[0] == 1.0
    nothing = np.zeros_like(first)
    assert surface_scores(nothing, first, (9.0, 3.0, 4.0), tolerance=0)[0] == pytest.approx(21 * 5.0)


@pytest.mark.slow
def test_a_model_learns_from_the_pictures_of_two_sites(tmp_path: Path) -> None:
    sites = {site: prepare_discs(tmp_path / site, tmp_path, site, seed=k) for k, site in enumerate("AB")}
    run_in_process(
        disc_job(tmp_path, "schedule.rounds=4", "data.samples_per_case=8"), sites, tmp_path / "run", device="cpu"
    )
    final = read_results(tmp_path / "run").final
    assert final is not None
    assert min(parts["test"].scores["dice"] for parts in final.best.evaluations.values()) > 0.7
