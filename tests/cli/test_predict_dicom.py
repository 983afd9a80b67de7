"""``fedshift predict`` on DICOM: what is written where, what is refused, and the whole way from studies."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import dicomforms
import highdicom as hd
import numpy as np
import pytest
import SimpleITK as sitk
from dicomforms import in_file
from dicomstudies import draw_segmentation, write_enhanced, write_slices
from inference.conftest import BALL, brightness_model, save_model, write_ball
from scanfiles import volume

from cli.conftest import Refused
from fedshift.cli import main
from fedshift.federation.model_files import read_model_file
from fedshift.federation.resolve import resolve
from fedshift.schema.job import JobSpec
from fedshift.schema.results import BEST
from fedshift.schema.yaml_file import read_yaml

UNCODED = """
name: organ
kind: segmentation
dataset: organ
sites: [A, B]
classes: [background, organ]
data: {matrix: 32, context: 3, scale: 1.0, split: case, fraction: 1.0, train_slices: all, augmentation: none}
network: {name: unet, options: {features: 4, bn_momentum: 0.5}}
loss: ce_dice
optimizer: {name: adam, lr: 0.01}
schedule: {rounds: 12, local_epochs: 3, batch_size: 8}
"""
CODES = """codes:
  organ: {category: [91723000, SCT, Anatomical Structure], type: [41216001, SCT, Prostate]}
"""


def predict(*words: object) -> int:
    return main(["predict", *map(str, words)])


def test_a_study_gives_a_segmentation_and_a_mask_of_every_series(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, study, out = brightness_model(tmp_path / "model.pt"), tmp_path / "study", tmp_path / "out"
    image, _ = volume(**BALL)
    one = write_slices(study / "t2", image, seed="1")
    for file in write_slices(tmp_path / "second", image, seed="2", reverse=True).iterdir():
        file.rename(one / f"b{file.name}")
    write_enhanced(study / "whole.dcm", image, seed="3", order=[12, *range(12)])
    assert predict(model, study, "--out", out) == 0
    printed = capsys.readouterr().out
    segs = sorted(out.glob("*_seg.dcm"))
    assert len(segs) == len(list(out.glob("*_mask.nii.gz"))) == 3 and "whole_seg.dcm" in printed
    for path in segs:
        assert hd.seg.segread(path).SeriesDescription.startswith("PHANTOM-TRAINED prostate: research use")
    record = json.loads((out / "predictions.json").read_text(encoding="utf-8"))
    assert record["model"]["trained_on"] == "phantom" and len(record["images"]) == 3
    with (out / "predictions.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    for row, entry in zip(table, record["images"], strict=True):
        prostate = entry["classes"]["prostate"]
        assert row["file"] == entry["file"] and float(row["volume_ml"]) == prostate["volume_ml"] > 4
        assert 0.5 < prostate["probability"] <= 1 and float(row["probability"]) == prostate["probability"]
        assert entry["warnings"] and sorted(entry["written"]) == ["mask", "seg"]
    # The results lie in the study now: they are not taken for scans, nor in the way of its series.
    for path in segs:
        path.rename(one / path.name)
    assert predict(model, study, "--out", tmp_path / "again", "--format", "seg") == 0
    assert sorted(path.suffix for path in (tmp_path / "again").iterdir()) == [".csv", ".dcm", ".dcm", ".dcm", ".json"]


def test_all_results_of_a_scan_are_written_or_none_and_none_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = brightness_model(tmp_path / "model.pt"), tmp_path / "out"
    image, _ = volume(**BALL)
    good = write_slices(tmp_path / "good", image)

    def dateless(made: object, number: int) -> None:
        made.StudyDate = "someday"  # type: ignore[attr-defined]

    bad = write_slices(tmp_path / "bad", image, change=dateless)
    every = ("--format", "mask", "--format", "seg", "--format", "rtstruct", "--format", "sr")
    assert predict(model, good, bad, "--out", out, *every) == 1
    printed = capsys.readouterr().err
    assert "bad_seg.dcm" in printed and "DICOM SEG" in printed
    names = ["good_mask.nii.gz", "good_rtstruct.dcm", "good_seg.dcm", "good_sr.dcm"]
    assert sorted(path.name for path in out.iterdir()) == [
        *names,
        "predictions.partial.csv",
        "predictions.partial.json",
    ]
    assert predict(model, good, "--out", out, *every) == 0, "the unfinished call's results are replaced"
    assert sorted(path.name for path in out.iterdir()) == [*names, "predictions.csv", "predictions.json"]
    (out / "predictions.csv").unlink()
    refused(
        "predict", model, good, "--out", out, "--format", "rtstruct", code="output-exists", naming="good_rtstruct.dcm"
    )
    write_ball(tmp_path / "scan.nii.gz")
    for words, reason in (
        ((tmp_path / "scan.nii.gz", "--format", "seg"), "[not-dicom]"),
        ((good, "--format", "sr"), "--format seg [options-clash]"),
    ):
        assert predict(model, *words, "--out", tmp_path / "new") == 2
        assert reason in capsys.readouterr().err
    values = np.zeros((13, 180, 200), np.int16)
    values[0, 0, 0] = 200  # one bright voxel, which the network's grid averages away
    dark = write_slices(tmp_path / "dark", sitk.GetImageFromArray(values))
    assert predict(model, dark, "--out", tmp_path / "none") == 0
    assert "no DICOM (seg)" in capsys.readouterr().out
    assert not list((tmp_path / "none").glob("*.dcm")) and (tmp_path / "none" / "dark_mask.nii.gz").is_file()
    monkeypatch.setitem(sys.modules, "highdicom", None)
    assert predict(model, good, "--out", tmp_path / "without", "--format", "seg") == 2
    assert "pip install 'fedshift[dicom]'" in capsys.readouterr().err
    assert predict(model, good, "--out", tmp_path / "without") == 0
    assert "needs highdicom" in capsys.readouterr().out
    assert not list((tmp_path / "without").glob("*.dcm"))


def test_a_class_without_codes_gets_none_that_nobody_gave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    for name, text in (("plain", UNCODED), ("coded", UNCODED + CODES)):
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    jobs = {name: resolve(str(tmp_path / f"{name}.yaml"), "fedavg") for name in ("plain", "coded")}
    assert (
        "codes" not in jobs["plain"].dump()["task"] and JobSpec.parse(jobs["coded"].dump(), where="x") == jobs["coded"]
    )
    model = save_model(tmp_path / "model.pt", jobs["plain"], kind="patients")
    scan = write_slices(tmp_path / "scan", volume(**BALL)[0])
    words = ("predict", model, scan, "--out", tmp_path / "out")
    refused(*words, "--format", "seg", code="codes-missing", naming=("organ", "--codes"))
    assert predict(model, scan, "--out", tmp_path / "masks") == 0
    assert "masks only: " in capsys.readouterr().out
    assert [path.name for path in sorted((tmp_path / "masks").glob("scan*"))] == ["scan_mask.nii.gz"]
    refused(*words, "--codes", tmp_path / "plain.yaml", code="codes-missing", naming="plain.yaml")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(CODES.replace("organ:", "liver:"), encoding="utf-8")
    refused(*words, "--codes", wrong, code="codes-invalid", naming="'liver'")
    assert predict(model, scan, "--out", tmp_path / "out", "--codes", tmp_path / "coded.yaml") == 0


@pytest.mark.slow
def test_from_studies_with_segmentations_to_a_segmentation_of_a_new_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSHIFT_DATA", str(tmp_path / "data"))
    Path("clinics.yaml").write_text(UNCODED + CODES, encoding="utf-8")
    for seed, site in enumerate("AB"):
        for number in range(5):
            image, mask = volume(10 * seed + number, size=(32, 32, 9), radius=6.0)
            series = write_slices(tmp_path / site / f"P{number}" / "t2", image, seed=f"{site}{number}")
            drawn = sitk.GetArrayFromImage(mask) > 0
            draw_segmentation(tmp_path / site / f"P{number}" / "seg.dcm", series, {"Whole gland": drawn})
        words = ["--task", "clinics.yaml", "--site", site, "--source", site, "--out", "data"]
        assert main(["data", "prepare", "own", *words]) == 0
    assert main(["job", "fedavg", "clinics.yaml"]) == 0
    assert main(["run", "jobs/fedavg_organ", "--in-process", "-w", "run"]) == 0, capsys.readouterr().err
    image, mask = volume(99, size=(32, 32, 9), radius=6.0)
    write_slices(tmp_path / "new" / "t2", image, seed="new", reverse=True)
    assert predict(f"run/{BEST}", "new", "--out", "results") == 0
    assert read_model_file(Path("run") / BEST)["kind"] == "patients"
    seg = hd.seg.segread(Path("results") / "t2_seg.dcm")
    assert seg.SeriesDescription == "organ: research use, not for diagnosis"
    voxels = sitk.GetArrayFromImage(sitk.ReadImage("results/t2_mask.nii.gz")) > 0
    truth = sitk.GetArrayFromImage(mask) > 0
    assert 2 * np.sum(voxels & truth) / (voxels.sum() + truth.sum()) > 0.8
    assert seg.NumberOfFrames == voxels.any((1, 2)).sum()
    assert read_yaml(Path("clinics.yaml"))["codes"]


@pytest.mark.parametrize("enhanced", [True, False])
def test_one_of_several_volumes_is_segmented_checked_prepared_and_scored(
    enhanced: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second time point has the ball, the first nothing."""
    model = brightness_model(tmp_path / "model.pt")
    image, mask = volume(**BALL)
    pixels = sitk.GetArrayFromImage(image).astype(np.uint16)
    count = len(pixels)
    x, y, z = image.GetOrigin()
    at = [(x, y, z + image.GetSpacing()[2] * k) for k in range(count)] * 2
    tags: dict[str, Any] = {
        "at": at,
        "marks": [{"TemporalPositionIdentifier": 1 + k // count} for k in range(2 * count)],
        "header": {"BodyPartExamined": "PROSTATE"},
    }
    both = np.concatenate([np.random.default_rng(0).integers(0, 100, pixels.shape).astype(np.uint16), pixels])

    def spaced(made: Any, k: int = 0) -> None:
        measures = made.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0] if enhanced else made
        measures.PixelSpacing = [image.GetSpacing()[1], image.GetSpacing()[0]]

    folder = tmp_path / "study" / "P1"
    if enhanced:
        path = dicomforms.write_enhanced(folder / "dce.dcm", both, change=spaced, **tags)
    else:
        path = dicomforms.write_classic(folder / "dce", both, change=spaced, **tags)
    assert predict(model, path, "--out", tmp_path / "no") == 1
    err = capsys.readouterr().err
    assert "2 volumes" in err and "--volume N" in err
    assert predict(model, path, "--out", tmp_path / "out", "--volume", 2) == 0
    (seg,) = (tmp_path / "out").glob("*_seg.dcm")
    drawn = sitk.ReadImage(str(next((tmp_path / "out").glob("*_mask.nii.gz"))))
    np.testing.assert_array_equal(sitk.GetArrayFromImage(drawn) > 0, sitk.GetArrayFromImage(mask) > 0)
    seg.rename(folder / "seg.dcm")
    words = ["--label", "prostate=prostate"]
    assert main(["data", "check", str(tmp_path / "study"), *words]) == 1
    assert "holds 2 volumes" in capsys.readouterr().out
    assert main(["data", "check", str(tmp_path / "study"), *words, "--volume", "2"]) == 0
    options = ["--source", str(tmp_path / "study"), *words, "--volume", "2"]
    prepare = ["data", "prepare", "own", "--dataset", "d", "--site", "A", "--out", str(tmp_path / "root"), *options]
    assert main(prepare) == 0
    kept = sitk.ReadImage(str(next((tmp_path / "root" / "d" / "A").rglob("P1.nii.gz"))))
    np.testing.assert_array_equal(in_file(sitk.GetArrayFromImage(kept)), pixels)
    assert main(["evaluate", str(model), "--out", str(tmp_path / "scores"), *options]) == 0
    with (tmp_path / "scores" / "scores.csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert float(row["dice"]) == 1
