"""``fedshift predict``: what it prints and writes, and what a bad image costs."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk
import torch
from conftest import SHAPE_CLASSES, make_image_site, small_image_job
from inference.conftest import BALL, Run, brightness_model, dice, save_model, write_ball
from PIL import Image, ImageColor
from scanfiles import volume, write_dicom

from cli.conftest import Refused
from fedshift.cli import main
from fedshift.cli.predict_table import PARTIAL, PARTIAL_RECORD, RECORD
from fedshift.data.arrays import open_images
from fedshift.data.scans import read_scan
from fedshift.federation.in_process import run_in_process
from fedshift.inference import overlay
from fedshift.inference.classify import depth_of, read_input
from fedshift.inference.model import open_model
from fedshift.inference.ready import Choice, ReadyModel, make_ready
from fedshift.schema.results import BEST
from fedshift.tasks.kinds import build_task


def rows(folder: Path, table: str = "predictions.csv") -> list[dict[str, str]]:
    with (folder / table).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def predict(*words: object) -> int:
    return main(["predict", *map(str, words)])


@pytest.mark.slow
def test_masks_volumes_and_overlays_of_scans_in_four_formats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = brightness_model(tmp_path / "model.pt")
    truth = write_ball(tmp_path / "a.nii.gz")
    write_ball(tmp_path / "b.nrrd", direction=(0, 1, 0, 1, 0, 0, 0, 0, -1))
    write_dicom(tmp_path / "c", volume(**BALL)[0])
    write_ball(tmp_path / "d.mha")
    out = tmp_path / "out" / "deep"
    names = ("a.nii.gz", "b.nrrd", "c", "d.mha")
    assert predict(model, *(tmp_path / name for name in names), "--out", out, "--overlay") == 0
    printed = capsys.readouterr().out
    assert "(phantom)" in printed and "medical device" in printed
    masks = ("a_mask.nii.gz", "b_mask.nrrd", "c_mask.nii.gz", "d_mask.mha")
    for name, mask, row in zip(names, masks, rows(out), strict=True):
        image = sitk.ReadImage(out / mask)
        if name != "b.nrrd":
            assert dice(sitk.GetArrayFromImage(image), sitk.GetArrayFromImage(truth)) > 0.95
        voxels = int(sitk.GetArrayFromImage(image).sum())
        assert row["file"] == str(tmp_path / name) and int(row["voxels"]) == voxels
        assert float(row["volume_ml"]) == pytest.approx(voxels * np.prod(image.GetSpacing()) / 1000, abs=1e-3)
        assert float(row["volume_ml"]) == pytest.approx(4 / 3 * np.pi * 1.1**3, rel=0.08)
        assert f"{name}: {float(row['volume_ml']):.1f} ml" in printed
    for name in ("a", "b", "c", "d"):
        with Image.open(out / f"{name}_overlay.png") as picture:
            pixels = np.asarray(picture.convert("RGB"))
        assert pixels.shape[0] > 500 and ((pixels == (255, 196, 0)).all(-1)).sum() > 200, "an outline"


def test_no_cell_of_the_table_is_a_formula_and_no_name_changes_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = brightness_model(tmp_path / "model.pt")
    monkeypatch.chdir(tmp_path)
    names = ["=cmd.nii.gz", "@sum.nii.gz", "a\x1b[2Jb.nii.gz"]
    for name in names:
        write_ball(tmp_path / name)
    assert predict(model, *names, "--out", "out") == 0
    shown = capsys.readouterr().out
    assert r"a\x1b[2Jb.nii.gz" in shown and "\x1b" not in shown
    table = rows(tmp_path / "out")
    assert [row["file"] for row in table] == ["./=cmd.nii.gz", "./@sum.nii.gz", names[2]]
    assert not any(value.startswith(("=", "+", "-", "@")) for row in table for value in row.values())


def test_the_outline_is_where_the_mask_is_and_the_patients_right_is_on_the_left(tmp_path: Path) -> None:
    model = brightness_model(tmp_path / "model.pt")
    write_ball(tmp_path / "scan.nii.gz", target=(8.0, 0.0, 0.0), radius=7.0)  # on the patient's left
    assert predict(model, tmp_path / "scan.nii.gz", "--out", tmp_path / "out", "--overlay") == 0
    with Image.open(tmp_path / "out" / "scan_overlay.png") as picture:
        large = np.asarray(picture.convert("RGB"))[40:550, 8:528]
    columns = np.argwhere((large == (255, 196, 0)).all(-1))[:, 1]
    width = np.flatnonzero(large.any((0, 2))).max()
    assert columns.min() > width / 2


def test_each_class_has_its_colour_and_is_on_one_of_the_slices(tmp_path: Path) -> None:
    image, _ = volume(size=(40, 30, 60), spacing=(1.0, 1.0, 2.0))
    file = tmp_path / "scan.nii.gz"
    sitk.WriteImage(image, str(file))
    mask = np.zeros((60, 30, 40), np.uint8)
    mask[5:58, 8:22, 8:20], mask[5:58, 8:22, 20:32] = 1, 2  # side by side
    mask[20, 3:6, 8:30] = 3  # in one slice, which is none of the evenly spaced ones
    names = [f"{name} 1.0 ml" for name in ("left", "right", "small")]
    overlay.draw(read_scan(file), mask, tmp_path / "o.png", title="scan", classes=names, kind="patients")
    with Image.open(tmp_path / "o.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    for number in (1, 2, 3):
        places = np.argwhere((pixels == ImageColor.getrgb(overlay.class_colour(number))).all(-1))
        assert (places[:, 0] < 44).sum() > 50, "in the legend"
        assert (places[:, 0] > 50).sum() > 30, "on a slice"
    assert not (pixels == overlay.OUTLINE_COLOUR).all(-1).any(), "of a single class only"
    assert len({overlay.class_colour(number) for number in range(1, 120)}) == 119


def test_scans_that_are_not_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ball(tmp_path / "scans" / "a.nii.gz")
    for name in ("k.hdr", "k.img", "l.gipl"):
        (tmp_path / "scans" / name).write_bytes(b"")
    assert predict(brightness_model(tmp_path / "model.pt"), tmp_path / "scans", "--out", tmp_path / "out") == 0
    assert "k.hdr, l.gipl" in capsys.readouterr().out


def test_nifti_2_is_read_and_the_record_says_so(tmp_path: Path) -> None:
    """… with the same volume as the same scan in NIfTI-1, and the record of each beside it."""
    write_ball(tmp_path / "one.nii.gz")
    scan = nibabel.load(tmp_path / "one.nii.gz")
    nibabel.save(nibabel.Nifti2Image(np.asarray(scan.dataobj), scan.affine), tmp_path / "two.nii.gz")
    nibabel.save(nibabel.Nifti1Image(np.asarray(scan.dataobj), scan.affine), tmp_path / "three.nii.zst")
    files = [tmp_path / name for name in ("one.nii.gz", "two.nii.gz", "three.nii.zst")]
    assert predict(brightness_model(tmp_path / "model.pt"), *files, "--out", tmp_path / "out") == 0
    assert len({row["volume_ml"] for row in rows(tmp_path / "out")}) == 1
    entries = json.loads((tmp_path / "out" / "predictions.json").read_text(encoding="utf-8"))["images"]
    assert [entry["reading"]["image"]["format"] for entry in entries] == ["NIfTI-1", "NIfTI-2", "NIfTI-1"]
    assert (tmp_path / "out" / "three_mask.nii.gz").is_file()


def test_a_bad_image_costs_only_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = brightness_model(tmp_path / "model.pt")
    good, out = tmp_path / "good.nii.gz", tmp_path / "out"
    write_ball(good)
    scan = sitk.ReadImage(good)
    values = sitk.GetArrayFromImage(scan).astype(np.float32)
    bad = {
        "nan": np.where(values > 500, np.nan, values),
        "flat": np.full_like(values, 7),
        "slices": values[:2],
        "four": np.stack([values, values]),
    }
    for name, array in bad.items():
        sitk.WriteImage(sitk.GetImageFromArray(array, isVector=False), tmp_path / f"{name}.nii.gz")
    sitk.WriteImage(sitk.GetImageFromArray(np.stack([values] * 3, -1), isVector=True), tmp_path / "colour.nii.gz")
    (tmp_path / "empty.nii.gz").touch()
    (tmp_path / "cut.nii.gz").write_bytes(good.read_bytes()[:5000])
    (tmp_path / "text.nii.gz").write_text("no scan", encoding="utf-8")
    write_dicom(tmp_path / "gap", scan, skip=(5,))
    names = {
        "nan.nii.gz": "NaN or infinite",
        "flat.nii.gz": "the same intensity everywhere",
        "slices.nii.gz": "has 2 slice",
        "four.nii.gz": "has 2 volumes",
        "colour.nii.gz": "not in colour",
        "empty.nii.gz": "is an empty file",
        "cut.nii.gz": "cannot be read",
        "text.nii.gz": "cannot be read",
        "gap": "one is missing or duplicated",
        "none.nii.gz": "does not exist",
    }
    assert predict(model, *(tmp_path / name for name in names), good, "--out", out) == 1
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == len(names)
    table = rows(out, PARTIAL)
    for (name, reason), line, row in zip(names.items(), told, table, strict=False):
        assert line == f"fedshift: {row['error']}" and str(tmp_path / name) in line and reason in line
        assert not row["volume_ml"]
    assert float(table[-1]["volume_ml"]) > 4 and not table[-1]["error"]
    assert sorted(path.name for path in out.iterdir()) == ["good_mask.nii.gz", PARTIAL, PARTIAL_RECORD]


def test_a_failed_call_does_not_stand_in_the_way_of_the_corrected_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = brightness_model(tmp_path / "model.pt"), tmp_path / "out"
    write_ball(tmp_path / "a.nii.gz")
    assert predict(model, tmp_path / "aa.nii.gz", "--out", out) == 1
    assert list(out.iterdir()) == [], "nothing was found, so nothing is left"
    both = [tmp_path / "a.nii.gz", tmp_path / "b.nii.gz"]
    assert predict(model, *both, "--out", out) == 1
    assert "1 of 2 images failed" in capsys.readouterr().out
    write_ball(tmp_path / "b.nii.gz")
    assert predict(model, *both, "--out", out) == 0
    assert sorted(path.name for path in out.iterdir()) == ["a_mask.nii.gz", "b_mask.nii.gz", "predictions.csv", RECORD]
    assert [bool(row["error"]) for row in rows(out)] == [False, False]
    assert predict(model, *both, "--out", out) == 2, "a finished table is replaced with --force only"


def test_a_scan_that_does_not_fit_into_memory_is_named_with_a_mend_and_the_rest_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = brightness_model(tmp_path / "model.pt"), tmp_path / "out"
    for name in ("large", "small"):
        write_ball(tmp_path / f"{name}.nii.gz")
    logits, sizes = ReadyModel.logits, iter((1 << 50, 1))

    def hungry(*given: Any) -> torch.Tensor:
        torch.empty(next(sizes))
        return logits(*given)

    monkeypatch.setattr(ReadyModel, "logits", hungry)
    assert predict(model, tmp_path / "large.nii.gz", tmp_path / "small.nii.gz", "--out", out) == 1
    printed = capsys.readouterr()
    assert f"{tmp_path / 'large.nii.gz'}: memory ran out" in printed.err
    assert (out / "small_mask.nii.gz").is_file() and not (out / "large_mask.nii.gz").exists()


def test_an_unfinished_call_lets_nobody_elses_file_be_replaced(tmp_path: Path, refused: Refused) -> None:
    model, out = brightness_model(tmp_path / "model.pt"), tmp_path / "out"
    both = [tmp_path / "a.nii.gz", tmp_path / "b.nii.gz"]
    write_ball(both[0])
    assert predict(model, *both, "--out", out) == 1
    write_ball(both[1])
    (out / "b_mask.nii.gz").write_text("drawn by hand", encoding="utf-8")
    refused("predict", model, *both, "--out", out, code="output-exists", naming="b_mask.nii.gz")


def test_nothing_that_is_there_is_replaced_unless_it_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = brightness_model(tmp_path / "model.pt")
    write_ball(tmp_path / "a" / "scan.nii.gz")
    write_ball(tmp_path / "b" / "scan.nii.gz")
    mine = tmp_path / "a" / "scan_mask.nii.gz"
    mine.write_text("drawn by hand", encoding="utf-8")
    assert predict(model, tmp_path / "a" / "scan.nii.gz", "--out", tmp_path / "a") == 2
    assert mine.read_text(encoding="utf-8") == "drawn by hand" and not (tmp_path / "a" / "predictions.csv").exists()
    assert "[output-exists]" in capsys.readouterr().err
    both = [tmp_path / name / "scan.nii.gz" for name in "ab"]
    assert predict(model, *both, "--out", tmp_path / "out") == 2
    assert "[same-output]" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert predict(model, both[1], "--out", tmp_path / "out") == 0
    assert predict(model, both[1], "--out", tmp_path / "out") == 2
    assert predict(model, both[1], both[1], "--out", tmp_path / "out", "--force") == 0
    assert len(rows(tmp_path / "out")) == 1


def test_no_two_images_share_a_file_and_no_image_is_written_over(tmp_path: Path, refused: Refused) -> None:
    model = brightness_model(tmp_path / "model.pt")
    for name in ("scan.nii", "scan.nii.gz", "m.mhd", "s.nii.gz", "s_mask.nii.gz"):
        write_ball(tmp_path / name)
    same = [tmp_path / "scan.nii", tmp_path / "scan.nii.gz"]
    refused("predict", model, *same, "--out", tmp_path / "o", "--overlay", code="same-output")
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "m_mask.zraw").write_text("drawn by hand", encoding="utf-8")
    refused("predict", model, tmp_path / "m.mhd", "--out", tmp_path / "p", code="output-exists", naming="m_mask.zraw")
    before = (tmp_path / "s_mask.nii.gz").read_bytes()
    both = [tmp_path / "s.nii.gz", tmp_path / "s_mask.nii.gz"]
    refused("predict", model, *both, "--out", tmp_path, "--force", code="overwrites-image", naming="s_mask.nii.gz")
    assert (tmp_path / "s_mask.nii.gz").read_bytes() == before


def test_statistics_are_asked_for_named_and_estimated(
    trained: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = trained("fedfa+fedrdn")
    for name in "ab":
        write_ball(tmp_path / f"{name}.nii.gz")
    scans, out = [tmp_path / "a.nii.gz", tmp_path / "b.nii.gz"], tmp_path / "out"
    assert predict(path, *scans, "--out", out) == 2
    assert "--site" in capsys.readouterr().err and not out.exists()
    for words, statistics in (
        (("--site", "HK"), "site HK"),
        (("--statistics", "UCL"), "site UCL"),
        (("--statistics", "own"), "own, of 26 slices"),
    ):
        assert predict(path, *scans, "--out", out, "--force", *words) == 0
        assert f"statistics: {statistics}" in capsys.readouterr().out
        assert {row["statistics"] for row in rows(out)} == {statistics}
    with pytest.raises(SystemExit) as ended:
        predict(path, *scans, "--out", out, "--site", "HK", "--statistics", "own")
    assert ended.value.code == 2


def test_own_statistics_of_scans_none_of_which_can_be_read(
    trained: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = trained("fedfa+fedrdn")
    assert predict(path, tmp_path / "none.nii.gz", "--out", tmp_path / "out", "--statistics", "own") == 2
    assert "none.nii.gz does not exist" in capsys.readouterr().err


def test_pictures_get_a_class_and_its_probability(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = {site: make_image_site(tmp_path / "data", site, images=36) for site in "AB"}
    job = small_image_job("fedavg", "schedule.rounds=2", "data.mean=[0.4,0.5,0.6]", sites=("A", "B"))
    run_in_process(job, data, tmp_path / "run")
    arrays = open_images(data["A"], size=16, channels=3)
    files = []
    for number in range(6):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(np.ascontiguousarray(arrays.images[number].transpose(1, 2, 0))).save(files[-1])
    (tmp_path / "bad.png").write_text("no picture", encoding="utf-8")
    out = tmp_path / "out"
    path = tmp_path / "run" / BEST
    assert predict(path, *files[:3], tmp_path / "bad.png", *files[3:], "--out", out) == 1
    told = capsys.readouterr()
    assert "bad.png cannot be read" in told.err
    table = [row for row in rows(out, PARTIAL) if not row["error"]]
    model = open_model(path)
    x = build_task(job).open(data["A"], "A").images(np.arange(6))
    wanted = make_ready(model, Choice(), device="cpu").predictor(x).softmax(1).max(1)
    for row, probability, number in zip(table, wanted.values.tolist(), wanted.indices.tolist(), strict=True):
        assert row["class"] == SHAPE_CLASSES[number]
        assert float(row["probability"]) == pytest.approx(probability, abs=1e-3)
        assert f"{row['file']}: {row['class']} ({float(row['probability']):.0%})" in told.out
    assert predict(path, files[0], files[0], "--out", tmp_path / "other", "--overlay") == 0
    with Image.open(tmp_path / "other" / "0_saliency.png") as picture:
        assert picture.width > 2 * picture.height * 0.8 and len(picture.getcolors(10**6) or ()) > 50
    assert predict(path, files[0], "--out", tmp_path / "third", "--volume", "1") == 2


def test_a_classifier_says_that_a_scan_is_no_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model(tmp_path / "model.pt", small_image_job("fedavg"))
    write_ball(tmp_path / "scan.nii.gz")
    assert predict(model, tmp_path / "scan.nii.gz", "--out", tmp_path / "out") == 1
    printed = capsys.readouterr().err
    assert "scan.nii.gz" in printed and "model.pt" in printed


def test_a_name_that_is_no_text_is_refused_and_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = brightness_model(tmp_path / "model.pt")
    write_ball(tmp_path / "scan.nii.gz")
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xe9.nii.gz"))
    (tmp_path / "scan.nii.gz").rename(odd)
    assert predict(model, odd, "--out", tmp_path / "out") == 2
    assert "UTF-8" in capsys.readouterr().err


def test_a_grey_classifier_takes_pictures_in_colour(tmp_path: Path) -> None:
    job = small_image_job("fedavg", "data.channels=1", sites=("A", "B"))
    model = open_model(save_model(tmp_path / "model.pt", job))
    Image.new("RGB", (40, 30), (100, 100, 100)).save(tmp_path / "grey.jpg")
    x = read_input(tmp_path / "grey.jpg", model, depth_of([])).x
    assert x.shape == (1, 16, 16) and float(x.mean()) == pytest.approx(100 / 255, abs=0.01)
