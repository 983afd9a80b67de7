"""Models of regions: predictions, their files, evaluation and bundles."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import highdicom as hd
import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from dicomstudies import write_slices
from scanfiles import volume
from volumesites import BLOBS, make_volume_site

from fedshift.cli import main
from fedshift.data.named_masks import read_mask
from fedshift.data.scans import read_scan
from fedshift.federation.in_process import run_in_process
from fedshift.federation.resolve import resolve
from fedshift.inference.dicom_rtstruct import write_structure_set
from fedshift.inference.dicom_seg import write_segmentation
from fedshift.inference.dicom_source import open_source
from fedshift.runtime.regions import voxels_of
from fedshift.schema.results import LAST, Results
from inference.test_dicom_results import origin

NESTED = "regions: {both: [left, right], right: [right]}\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], Path, Results]:
    folder = tmp_path_factory.mktemp("trained")
    sites = {site: make_volume_site(folder, site) for site in "AB"}
    (folder / "task.yaml").write_text(BLOBS + NESTED, encoding="utf-8")
    options = ["schedule.rounds=8", "optimizer.lr=0.02", "evaluation.largest_component=true"]
    job = resolve(str(folder / "task.yaml"), "fedavg", options=options, seed=1)
    return sites, folder / "run" / LAST, run_in_process(job, sites, folder / "run").results


def voxels(path: Path) -> np.ndarray:
    return sitk.GetArrayFromImage(sitk.ReadImage(path))


@pytest.mark.slow
def test_predictions_and_evaluate_score_as_the_results(
    tmp_path: Path, trained: tuple[dict[str, Path], Path, Results]
) -> None:
    sites, model, results = trained
    assert results.final is not None
    told = results.final.last.sites["A"]["test"]
    image, mask = (sites["A"] / "volumes" / f"case03{end}.nii.gz" for end in ("", "_mask"))
    words = ["--out", str(tmp_path / "out"), "--overlay", "--format", "mask", "--format", "regions"]
    assert main(["predict", str(model), str(image), *words]) == 0
    written, reference = voxels(tmp_path / "out" / "case03_mask.nii.gz"), voxels(mask)
    both, right = (voxels(tmp_path / "out" / f"case03_{name}_mask.nii.gz") for name in ("both", "right"))
    assert told["dice both"] > 0.6
    for found, there, name in ((both, reference > 0, "both"), (right, reference == 2, "right")):
        overlap = 2 * (found.astype(bool) & there).sum() / (found.sum() + there.sum())
        assert overlap == pytest.approx(told[f"dice {name}"])
    np.testing.assert_array_equal(written == 2, right == 1)
    np.testing.assert_array_equal(written == 1, (both == 1) & (right == 0))
    with (tmp_path / "out" / "predictions.csv").open(newline="", encoding="utf-8") as table:
        (row,) = csv.DictReader(table)
    assert float(row["volume_ml both"]) == pytest.approx(both.sum() * 2 / 1000, abs=1e-3)
    folder = tmp_path / "new"
    folder.mkdir()
    for path in (image, mask):
        (folder / path.name).symlink_to(path)
    said = ["--label", "left=1", "--label", "right=2"]
    assert main(["evaluate", str(model), "--source", str(folder), "--out", str(tmp_path / "scores"), *said]) == 0
    (summary,) = (tmp_path / "scores").glob("*.json")
    scores = json.loads(summary.read_text(encoding="utf-8"))["scores"]
    assert scores["dice both"]["mean"] == pytest.approx(told["dice both"])
    assert main(["report", str(tmp_path / "scores"), "--out", str(tmp_path / "report.html")]) == 0


@pytest.mark.slow
def test_the_report_shows_regions(
    tmp_path: Path, trained: tuple[dict[str, Path], Path, Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    sites, model, _ = trained
    monkeypatch.setenv("FEDSHIFT_DATA", str(sites["A"].parents[1]))
    assert main(["report", str(model.parent), "--out", str(tmp_path / "r.html"), "--images"]) == 0
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "1 both" in page and "2 right" in page and "left" not in page.partition("Worst, median and best")[2][:20000]
    assert main(["card", str(model), "--out", str(tmp_path / "card.html")]) == 0
    assert json.loads((tmp_path / "card.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_bundle_writes_the_same_classes_without_fedshift(
    tmp_path: Path, trained: tuple[dict[str, Path], Path, Results]
) -> None:
    sites, model, _ = trained
    scans = tmp_path / "scans"
    scans.mkdir()
    image = sites["A"] / "volumes" / "case03.nii.gz"
    (scans / image.name).symlink_to(image)
    assert main(["predict", str(model), str(image), "--out", str(tmp_path / "ours"), "--device", "cpu"]) == 0
    assert main(["export", str(model), "--bundle", str(tmp_path / "bundle"), "--device", "cpu"]) == 0
    metadata = json.loads((tmp_path / "bundle" / "configs" / "metadata.json").read_text(encoding="utf-8"))
    outputs = metadata["network_data_format"]["outputs"]["pred"]
    assert outputs["num_channels"] == 2 and outputs["channel_def"]["0"] == "logit of both"
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "fedshift.py").write_text('raise ImportError("without fedshift")\n', encoding="utf-8")
    words = ["--config_file", "configs/inference.json", "--dataset_dir", str(scans), "--output_dir", "../theirs"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "block"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(
        [sys.executable, "-m", "monai.bundle", "run", *words],
        cwd=tmp_path / "bundle",
        env=environ,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    ours, theirs = (voxels(tmp_path / who / "case03_mask.nii.gz") for who in ("ours", "theirs"))
    np.testing.assert_array_equal(ours, theirs)
    assert set(np.unique(ours)) == {0, 1, 2}


def test_segments_and_regions_of_interest_overlap(tmp_path: Path) -> None:
    series = write_slices(tmp_path / "s", volume()[0])
    scan, source = read_scan(series), open_source(series)
    sets = np.zeros(scan.voxels.shape, np.uint8)
    sets[2:7, 4:15, 5:18] |= 1
    sets[3:5, 6:10, 8:12] |= 2
    names = ("Anterior", "Posterior")
    for write, file in ((write_segmentation, "seg.dcm"), (write_structure_set, "rtstruct.dcm")):
        write(sets, scan, tmp_path / file, source=source, origin=origin(), classes=names, regions=True)
        back, _ = read_mask(tmp_path / file, scan, None, sets=True)
        np.testing.assert_array_equal(back.voxels, sets)
    segments = hd.seg.segread(tmp_path / "seg.dcm")
    both = [segments.get_volume(segment_numbers=[n], combine_segments=True).array.sum() for n in (1, 2)]
    assert both[0] == voxels_of(sets, 1, regions=True).sum()
    assert segments.SegmentationType == "BINARY" and segments.SegmentsOverlap != "NO"
    rois = pydicom.dcmread(tmp_path / "rtstruct.dcm").StructureSetROISequence
    assert [roi.ROIName for roi in rois] == list(names)
