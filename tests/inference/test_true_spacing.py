"""Voxels that really are of 1 x 1 x 1 mm: whoever says it gets the grid of training, and who does not is told."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from conftest import small_image_job
from volumesites import make_volume_site, write_task

from fedshift.cli import main
from fedshift.data.prepared import image_files
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.inference.model import open_model
from fedshift.inference.ready import Choice, make_ready
from fedshift.inference.segment import ready_for
from fedshift.inference.sequences import find_case
from fedshift.runtime import segmentation
from fedshift.runtime.monai_run import segment_files
from fedshift.schema.manifest import TRUE_SPACING, read_manifest
from fedshift.schema.results import LAST, Results
from fedshift_survey.drift.compare import folder_reference

from .conftest import brightness_model, save_model, write_ball

DATA = (
    "{dims: 2, patch: [16, 16], context: 3, samples_per_case: 8, normalise: percentile, spacing: [null, 1.2, 1.2], "
    "matrix: 32}"
)
SHAPE = (12, 20, 24)
OF_TRAINING, OF_MATRIX = (12, 17, 20), (12, 27, 32)
"""`SHAPE` at 1.2 mm, and with 32 voxels along the longer side."""
TOLD = "resampled by data.matrix and not by its 1 mm"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], Path, Results]:
    """Sites that were prepared with ``--true-spacing``, a model file and its results."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained")
    sites = {
        site: make_volume_site(folder, site, cases=6, val=2, shape=SHAPE, spacing=(1.0, 1.0, 1.0), gain=gain)
        for site, gain in (("A", 1.0), ("B", 1.3))
    }
    for site in sites.values():
        read_manifest(site).model_copy(update={"preparation": {TRUE_SPACING: True}}).write(site)
    task = write_task(folder / "task.yaml", data=DATA, schedule="{rounds: 2, local_epochs: 3, batch_size: 2}")
    job = resolve(str(task), "fedavg", options=["evaluation.reference=true"], seed=1)
    return sites, folder / "run" / LAST, run_in_process(job, sites, folder / "run").results


@pytest.fixture
def grids(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Voxels along z, y, x of every volume that the network is asked for."""
    seen: list[tuple[int, ...]] = []
    plain = segmentation.network_volume

    def watched(*of: Any, **options: Any) -> np.ndarray:
        made = plain(*of, **options)
        seen.append(made.shape[1:])
        return made

    monkeypatch.setattr(segmentation, "network_volume", watched)
    return seen


def case_to_test(site: Path) -> tuple[str, Path]:
    """The id of a site's test case, and its scan."""
    manifest = read_manifest(site)
    (case,) = manifest.by_split("test")
    return case.id, image_files(site, manifest, case.id)[0]


@pytest.mark.slow
def test_a_prediction_is_on_the_grid_of_training(
    tmp_path: Path,
    trained: tuple[dict[str, Path], Path, Results],
    grids: list[tuple[int, ...]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    sites, file, _ = trained
    model, (case, scan) = open_model(file), case_to_test(sites["B"])
    assert model.resamples_by_matrix
    assert tuple(model.task.open(sites["B"], "B").volumes.shapes[0]) == OF_TRAINING
    masks = []
    for name, words, grid in (("plain", [], OF_MATRIX), ("true", ["--true-spacing"], OF_TRAINING)):
        out = tmp_path / name
        assert main(["predict", str(file), str(scan), "--out", str(out), *words]) == 0
        assert grids[-1] == grid
        masks.append(sitk.GetArrayFromImage(sitk.ReadImage(out / f"{case}_mask.nii.gz")))
        with (out / "predictions.csv").open(newline="", encoding="utf-8") as table:
            (row,) = csv.DictReader(table)
        printed = capsys.readouterr().out
        for text in (printed, row["warnings"]):
            assert (TOLD in text) == (not words)
            assert ("--true-spacing" in text) == (not words)
    assert not np.array_equal(*masks)


def test_scores_are_those_that_the_site_has_measured(
    tmp_path: Path, trained: tuple[dict[str, Path], Path, Results], capsys: pytest.CaptureFixture[str]
) -> None:
    sites, file, results = trained
    case, scan = case_to_test(sites["B"])
    assert results.final is not None
    told = results.final.last.sites["B"]["test"]
    for kind, ending in (("images", ""), ("masks", "_mask")):
        (tmp_path / kind).mkdir()
        shutil.copy(scan.with_name(f"{case}{ending}.nii.gz"), tmp_path / kind / f"{case}.nii.gz")
    named = ["--images", str(tmp_path / "images"), "--masks", str(tmp_path / "masks")]
    labels = ["--label", "left=1", "--label", "right=2"]
    same = []
    for name, words in (("plain", []), ("true", ["--true-spacing"])):
        out = tmp_path / name
        assert main(["evaluate", str(file), *named, *labels, "--out", str(out), *words]) == 0
        printed = capsys.readouterr().out
        lost = "nothing for these scans, and they are resampled by data.matrix and not by 1 mm; if the voxels are of"
        assert (lost in printed) == ("--true-spacing" in printed) == (not words)
        with (out / "scores.csv").open(newline="", encoding="utf-8") as table:
            rows = list(csv.DictReader(table))
        same.append(
            all(
                float(row[score]) == pytest.approx(told[f"{score} {row['class']}"], rel=1e-5)
                for row in rows
                for score in ("dice", "hd95", "surface_dice", "volume_difference")
            )
        )
    assert same == [False, True]


@pytest.mark.parametrize("true", [False, True])
def test_statistics_are_of_windows_on_the_same_grid(
    true: bool, trained: tuple[dict[str, Path], Path, Results], grids: list[tuple[int, ...]]
) -> None:
    sites, file, _ = trained
    case = find_case(case_to_test(sites["A"])[1], ())
    ready_for(open_model(file), [case], Choice(estimate=True), device="cpu", true_spacing=true)
    assert grids == [OF_TRAINING if true else OF_MATRIX]


def test_later_scans_are_compared_in_mm_and_a_prepared_site_says_it_itself(
    tmp_path: Path,
    trained: tuple[dict[str, Path], Path, Results],
    grids: list[tuple[int, ...]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    sites, file, _ = trained
    model = open_model(file)
    reference = folder_reference(model, make_ready(model, Choice(), device="cpu"), sites["A"])
    assert grids and set(grids) == {OF_TRAINING} and "spacing" in reference.apart
    grids.clear()
    (tmp_path / "scans" / "2026-01").mkdir(parents=True)
    shutil.copy(case_to_test(sites["A"])[1], tmp_path / "scans" / "2026-01" / "a.nii.gz")
    for name, words, grid in (("plain", [], OF_MATRIX), ("true", ["--true-spacing"], OF_TRAINING)):
        out = tmp_path / name
        assert main(["drift", str(file), str(tmp_path / "scans"), "--out", str(out), *words]) in (0, 1)
        printed = " ".join(capsys.readouterr().out.split())
        lost = (
            "1 of 1 headers hold no voxel size (1 x 1 x 1 mm): these scans are not compared in what needs one, and "
            "resampled by data.matrix and not by 1 mm; if the voxels are of this size, add --true-spacing"
        )
        assert (lost in printed) == ("voxel size (1" in printed) == (not words)
        (scan,) = json.loads((out / "drift.json").read_text(encoding="utf-8"))["scans"]
        assert [scan[key] is not None for key in ("spacing", "extent", "volume")] == [bool(words)] * 3
        assert grids.pop() == grid


@pytest.mark.slow
def test_an_export_has_the_word_in_its_configuration(
    tmp_path: Path, trained: tuple[dict[str, Path], Path, Results]
) -> None:
    for name, more in (("plain", []), ("true", ["--true-spacing"])):
        words = ["export", str(trained[1]), "--bundle", str(tmp_path / name), "--device", "cpu"]
        assert main([*words, *more]) == 0
        config = json.loads((tmp_path / name / "configs" / "inference.json").read_text(encoding="utf-8"))
        assert config["true_spacing"] is bool(more)
        assert "add\n`--true_spacing True`" in (tmp_path / name / "docs" / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_bundle_takes_the_same_word(tmp_path: Path, trained: tuple[dict[str, Path], Path, Results]) -> None:
    sites, file, _ = trained
    case, scan = case_to_test(sites["B"])
    (tmp_path / "scans").mkdir()
    shutil.copy(scan, tmp_path / "scans")
    words = ["predict", str(file), str(scan), "--device", "cpu"]
    assert main([*words, "--out", str(tmp_path / "ours"), "--true-spacing"]) == 0
    assert main(["export", str(file), "--bundle", str(tmp_path / "plain"), "--device", "cpu"]) == 0
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "fedshift.py").write_text('raise ImportError("without fedshift")\n', encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "block"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    places = ["--dataset_dir", "../scans", "--output_dir", "../theirs", "--true_spacing", "True"]
    result = subprocess.run(
        [sys.executable, "-m", "monai.bundle", "run", "--config_file", "configs/inference.json", *places],
        cwd=tmp_path / "plain",
        env=environ,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{case}.nii.gz: " in result.stdout and "lost header" not in result.stdout
    ours, theirs = (
        sitk.GetArrayFromImage(sitk.ReadImage(tmp_path / of / f"{case}_mask.nii.gz")) for of in ("ours", "theirs")
    )
    assert np.array_equal(ours, theirs) and ours.any()


def test_a_bundles_option_is_no_text() -> None:
    """``--true_spacing false`` on its command line is the text, which would count as true."""
    with pytest.raises(ValueError, match="'false'"):
        segment_files(["a"], None, None, None, None, None, "false")  # type: ignore[arg-type]


@pytest.mark.slow
def test_models_that_know_no_voxel_size_are_told_to_do_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures, slices = save_model(tmp_path / "p.pt", small_image_job("fedavg")), brightness_model(tmp_path / "s.pt")
    assert main(["predict", str(pictures), "a.png", "--out", str(tmp_path / "out"), "--true-spacing"]) == 2
    assert "--true-spacing [no-effect]" in capsys.readouterr().err
    for model in (pictures, slices):
        assert main(["export", str(model), "--bundle", str(tmp_path / "bundle"), "--true-spacing"]) == 2
        assert "--true-spacing [no-effect]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists() and not (tmp_path / "bundle").exists()

    scan = tmp_path / "scan.nii.gz"
    write_ball(scan, spacing=(1.0, 1.0, 1.0))
    for name, words in (("plain", []), ("true", ["--true-spacing"])):
        assert main(["predict", str(slices), str(scan), "--out", str(tmp_path / name), *words]) == 0
        printed = capsys.readouterr().out
        assert ("--true-spacing" in printed) == (not words)
        assert "data.matrix" not in printed, "every scan is resampled by it"
