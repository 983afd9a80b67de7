"""``fedshift evaluate``: labelled scans score as in a site's evaluation, and what fails is said."""

from __future__ import annotations

import csv
import functools
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from inference.conftest import brightness_model, write_ball
from inference.test_patches import IN_3D, Trained, train

from cli.conftest import Refused
from fedshift.cli import main
from fedshift.cli.evaluate import SUMMARY, TABLE
from fedshift.data.layouts.find import gather
from fedshift.inference.ready import ReadyModel
from fedshift.inference.scoring import subjects_of
from fedshift.schema.manifest import read_manifest
from fedshift.schema.protocol_results import LabelledScans
from fedshift.tasks.evaluation.by_class import dice_by_class


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / TABLE).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def evaluate(*words: object) -> int:
    return main(["evaluate", *map(str, words)])


def given(folder: Path) -> list[Path | str]:
    """A model of brightness, and scans and masks below a folder."""
    model = brightness_model(folder / "model.pt")
    return [model, "--images", folder / "images", "--masks", folder / "masks", "--out", folder / "out"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """A model of two classes and sequences by these methods, trained once; tests change nothing of it."""
    return functools.cache(lambda methods: train(tmp_path_factory.mktemp("trained"), IN_3D, methods))


@pytest.fixture
def balls(tmp_path: Path) -> Path:
    """Three scans with masks, ``images`` and ``masks``."""
    for number in range(3):
        mask = write_ball(tmp_path / "images" / f"case{number}.nii.gz", radius=9.0 + number)
        (tmp_path / "masks").mkdir(exist_ok=True)
        sitk.WriteImage(mask, str(tmp_path / "masks" / f"case{number}.nii.gz"))
    return tmp_path


@pytest.mark.slow
def test_several_classes_and_sequences_score_as_in_the_results(
    trained: Callable[[str], Trained], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites, model, results = trained("fedavg")
    (case,) = read_manifest(sites["B"]).by_split("test")
    named = ["--sequence", "ADC=case*_0001.nii.gz", "--sequence", "T2=case*_0000.nii.gz"]
    labels = ["--label", "left=1", "--label", "right=2"]
    volumes = ["--source", sites["B"] / "volumes", "--masks", "case*_mask.nii.gz"]
    assert evaluate(model, *volumes, *named, *labels, "--out", tmp_path / "out") == 0
    assert results.final is not None
    told = results.final.last.sites["B"]["test"]
    number = case.id.removeprefix("case")
    for row in rows(tmp_path / "out"):
        if row["case"].removeprefix("case") == number:
            for score in ("dice", "hd95", "surface_dice", "volume_difference"):
                assert float(row[score]) == pytest.approx(told[f"{score} {row['class']}"], rel=1e-5), (score, row)
    summary: dict[str, Any] = json.loads((tmp_path / "out" / SUMMARY).read_text(encoding="utf-8"))
    each = [float(row["dice"]) for row in rows(tmp_path / "out")]
    assert summary["scores"]["dice"]["mean"] == pytest.approx(sum(each) / len(each), rel=1e-5)
    assert summary["scores"]["dice"]["n"] == len(summary["cases"]) == len(each) / 2
    assert set(summary["reading"]) == set(summary["cases"])
    assert {name for printed in summary["reading"].values() for name in printed} == {"T2", "ADC", "mask"}
    printed = capsys.readouterr().out
    assert "left" in printed and "right" in printed and "no interval" in printed


@pytest.mark.slow
def test_statistics_of_the_scored_scans_are_taken_whatever_their_files_are_called(
    trained: Callable[[str], Trained], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites, model, _ = trained("fedrdn")
    (tmp_path / "scans").mkdir()
    for file in (sites["B"] / "volumes").iterdir():
        name = file.name.replace("_0000", "_T2").replace("_0001", "_ADC")
        shutil.copyfile(file, tmp_path / "scans" / name)
    named = ["--sequence", "T2=case*_T2.nii.gz", "--sequence", "ADC=case*_ADC.nii.gz", "--masks", "case*_mask.nii.gz"]
    words = [model, "--source", tmp_path / "scans", *named, "--label", "left=1", "--label", "right=2"]
    assert evaluate(*words, "--statistics", "own", "--out", tmp_path / "own") == 0
    assert "statistics: own, of " in capsys.readouterr().out
    assert evaluate(*words, "--site", "A", "--out", tmp_path / "other") == 0
    scores, other = ([row["dice"] for row in rows(tmp_path / out)] for out in ("own", "other"))
    assert len(scores) == len(other) and scores != other


def test_sequences_go_by_name_in_any_case_and_by_number_where_they_have_none(
    trained: Callable[[str], Trained], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites, model, _ = trained("fedavg")

    def score(layout: str, *names: str) -> int:
        """Evaluate cases whose T2, ADC and mask are called so, below a folder for each."""
        for file in (sites["B"] / "volumes").glob("case*_mask.nii.gz"):
            case = file.name.removesuffix("_mask.nii.gz")
            for part, name in zip(("0000", "0001", "mask"), (*names, "mask"), strict=True):
                copy = tmp_path / layout / "cases" / case / f"{name}.nii.gz"
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.with_name(f"{case}_{part}.nii.gz"), copy)
        labels = ["--label", "left=1", "--label", "right=2"]
        return evaluate(model, "--source", tmp_path / layout / "cases", *labels, "--out", tmp_path / layout / "out")

    assert score("named", "T2", "ADC") == 0
    assert score("lower", "t2", "adc") == 0
    assert score("numbers", "0000", "0001") == 0
    assert score("swapped", "adc", "t2") == 0
    named, lower, numbers, swapped = (
        [(row["case"], row["dice"]) for row in rows(tmp_path / layout / "out")]
        for layout in ("named", "lower", "numbers", "swapped")
    )
    assert named == lower == numbers != swapped
    capsys.readouterr()
    assert score("others", "T2w", "ADC") == 2
    printed = capsys.readouterr().err
    assert "ADC, T2w" in printed and "--sequence T2=PATTERN" in printed and "[sequence-names]" in printed


def test_4d_files_score_as_their_predicted_masks(trained: Callable[[str], Trained], tmp_path: Path) -> None:
    sites, model, _ = trained("fedavg")
    images, labels = tmp_path / "Task" / "imagesTr", tmp_path / "Task" / "labelsTr"
    for folder in (images, labels):
        folder.mkdir(parents=True)
    for mask in (sites["B"] / "volumes").glob("case*_mask.nii.gz"):
        name = mask.name.replace("_mask", "")
        shutil.copyfile(mask, labels / name)
        adc, t2 = (sitk.ReadImage(str(mask).replace("mask", number)) for number in ("0001", "0000"))
        sitk.WriteImage(sitk.JoinSeries([adc, t2]), str(images / name))
    named = {"modality": {"0": "ADC", "1": "T2"}, "labels": {"0": "background", "1": "left", "2": "right"}}
    (tmp_path / "Task" / "dataset.json").write_text(json.dumps(named), encoding="utf-8")
    assert evaluate(model, "--source", tmp_path / "Task", "--out", tmp_path / "scores") == 0
    assert main(["predict", str(model), str(images), "--out", str(tmp_path / "masks")]) == 0
    told = rows(tmp_path / "scores")
    assert any(float(row["dice"]) for row in told), "or there would be nothing to compare"
    for row in told:
        files = (tmp_path / "masks" / f"{row['case']}_mask.nii.gz", labels / f"{row['case']}.nii.gz")
        predicted, truth = (sitk.GetArrayFromImage(sitk.ReadImage(str(file))) for file in files)
        number = ("left", "right").index(row["class"])
        assert float(row["dice"]) == pytest.approx(dice_by_class(predicted, truth, 3)[number], rel=1e-5)


def test_a_model_of_slices_finds_balls(balls: Path) -> None:
    assert evaluate(*given(balls)) == 0
    assert [float(row["dice"]) > 0.9 for row in rows(balls / "out")] == [True] * 3
    assert {row["class"] for row in rows(balls / "out")} == {"prostate"}


def test_a_case_that_cannot_be_read_is_named_and_the_rest_is_scored(
    balls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (balls / "images" / "case1.nii.gz").write_bytes(b"cut")
    assert evaluate(*given(balls)) == 1
    assert "1 of 3 cases" in capsys.readouterr().out
    assert [bool(row["error"]) for row in rows(balls / "out")] == [False, True, False]


def test_a_scan_that_does_not_fit_into_memory_is_named_and_the_rest_is_scored(
    balls: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logits, sizes = ReadyModel.logits, iter((1 << 50, 1, 1))

    def hungry(*given: Any) -> torch.Tensor:
        torch.empty(next(sizes))
        return logits(*given)

    monkeypatch.setattr(ReadyModel, "logits", hungry)
    assert evaluate(*given(balls)) == 1
    assert "1 of 3 cases" in capsys.readouterr().out
    table = rows(balls / "out")
    assert [bool(row["dice"]) for row in table] == [False, True, True]
    assert "case0.nii.gz: memory ran out" in table[0]["error"]


def test_a_mask_whose_header_is_wrong_is_taken_on_trust(balls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """… by the option that the error names."""
    wrong = balls / "masks" / "case1.nii.gz"
    mask = sitk.ReadImage(str(wrong))
    mask.SetOrigin((0.5, *mask.GetOrigin()[1:]))
    sitk.WriteImage(mask, str(wrong))
    words = given(balls)
    assert evaluate(*words) == 1 and "add --trust-voxels" in capsys.readouterr().out
    assert evaluate(*words, "--force", "--trust-voxels") == 0
    assert main(["data", "check", str(balls / "images"), "--masks", str(balls / "masks")]) == 1
    assert "add --trust-voxels" in capsys.readouterr().out
    assert main(["data", "check", str(balls / "images"), "--masks", str(balls / "masks"), "--trust-voxels"]) == 0


def test_warnings_of_reading_a_mask_stand_beside_its_scores(balls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """… here of a mask that was drawn on every second slice."""
    striped = balls / "masks" / "case1.nii.gz"
    mask = sitk.ReadImage(str(striped))
    for number in range(0, mask.GetDepth(), 2):
        mask[:, :, number] = 0
    sitk.WriteImage(mask, str(striped))
    assert evaluate(*given(balls)) == 0
    assert f"warning: {striped}" in capsys.readouterr().out


def many(folder: Path, names: list[str]) -> list[str]:
    """Scans of these names with masks below a folder, each other than the rest; what `evaluate` is to be given."""
    for number, name in enumerate(names):
        mask = write_ball(folder / "images" / name, seed=number, radius=8.0 + number / 2)
        (folder / "masks").mkdir(exist_ok=True)
        sitk.WriteImage(mask, str(folder / "masks" / name))
    return list(map(str, given(folder)))


def summary_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "out" / SUMMARY).read_text(encoding="utf-8"))
    return content


def test_a_class_that_one_mask_only_has_is_said_and_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = many(tmp_path, [f"case{number}.nii.gz" for number in range(6)])
    dark, mask = (np.zeros((13, 180, 200), np.uint8) for _ in range(2))
    dark[0, 0, 0], mask[4:9, 60:120, 60:120] = 200, 1  # one bright voxel, which the network's grid averages away
    for folder, array in (("images", dark), ("masks", mask)):
        sitk.WriteImage(sitk.GetImageFromArray(array), str(tmp_path / folder / "case0.nii.gz"))
    assert evaluate(*words) == 0
    printed = capsys.readouterr().out
    assert "prostate: 1 of 6 cases" in printed and "1 missed" in printed
    assert [row["one_sided"] for row in rows(tmp_path / "out")] == ["missed", *[""] * 5]
    assert summary_of(tmp_path)["one_sided"] == {"prostate": {"missed": 1, "invented": 0}}
    assert summary_of(tmp_path)["one_sided_cases"] == {"case0": {"prostate": "missed"}}


def test_the_scores_are_reported_as_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = many(tmp_path, [f"case{number}.nii.gz" for number in range(6)])
    shutil.copyfile(tmp_path / "images" / "case0.nii.gz", tmp_path / "images" / "case6.nii.gz")
    shutil.copyfile(tmp_path / "masks" / "case0.nii.gz", tmp_path / "masks" / "case6.nii.gz")
    assert evaluate(*words) == 1
    assert f"fedshift report {tmp_path / 'out'}\n" in capsys.readouterr().out
    told, model = LabelledScans.read(tmp_path / "out"), Path(str(words[0]))
    assert told.not_scored == ["case6"] and told.without_spacing == [] and told.classes == ["prostate"]
    assert told.sha256 == hashlib.sha256(model.read_bytes()).hexdigest() and told.model == model.name
    assert (told.kind, told.round, told.sites) == ("phantom", 1, ["BIDMC", "HK", "UCL"])
    assert main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "page.html")]) == 0
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(text in html for text in (told.sha256, "PHANTOM", "95 % interval", "Not scored", *told.cases))
    assert str(tmp_path) not in html


def test_a_copy_of_a_scan_is_refused_and_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = many(tmp_path, ["a.nii.gz", "b.nii.gz"])
    for folder in ("images", "masks"):
        copy = sitk.ReadImage(tmp_path / folder / "a.nii.gz")
        sitk.WriteImage(copy, str(tmp_path / folder / "c.nrrd"))
    assert evaluate(*words) == 1
    images = tmp_path / "images"
    printed = capsys.readouterr().out
    assert f"{images / 'c.nrrd'} has" in printed and f"{images / 'a.nii.gz'}: " in printed
    assert summary_of(tmp_path)["cases"] == ["a", "b"] and summary_of(tmp_path)["scores"]["dice"]["n"] == 2


def test_intervals_are_over_subjects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"sub-0{subject}_ses-{session}.nii.gz" for subject in (1, 2) for session in (1, 2, 3)]
    assert evaluate(*many(tmp_path / "two", names)) == 0
    assert "6 scans of 2 subjects" in capsys.readouterr().out
    two = summary_of(tmp_path / "two")
    assert two["subjects"] == 2 and two["scores"]["dice"]["n"] == 6 and two["scores"]["dice"]["interval"] is None
    assert evaluate(*many(tmp_path / "six", [f"sub-0{subject}.nii.gz" for subject in range(6)])) == 0
    six = summary_of(tmp_path / "six")
    assert "(95 % interval)" in capsys.readouterr().out
    assert six["subjects"] == 6 and six["scores"]["dice"]["interval"] is not None


def test_subjects_of_the_same_name_in_two_folders_are_two(tmp_path: Path) -> None:
    for site in ("A", "B"):
        for session in (1, 2):
            mask = write_ball(tmp_path / "sites" / site / f"sub-1_ses-{session}.nii.gz", radius=6.0 + session)
            sitk.WriteImage(mask, str(tmp_path / "sites" / site / f"sub-1_ses-{session}_mask.nii.gz"))
    assert subjects_of(gather(tmp_path / "sites")) == ["0 sub-1", "0 sub-1", "1 sub-1", "1 sub-1"]


def test_scans_that_are_not_read_are_named(balls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (balls / "images" / "k.hdr").write_bytes(b"")
    assert evaluate(*given(balls)) == 0
    printed = capsys.readouterr().out
    assert f"warning: {balls / 'images'} " in printed and "k.hdr" in printed


@pytest.mark.parametrize(
    ("words", "code", "naming"),
    [
        ("--images images", "options-clash", "--masks"),
        ("--images images --masks masks --label liver=1", "class-unknown", "prostate"),
        ("--images images --masks masks --sequence T2=*.nii.gz", "options-clash", "--images"),
        ("--images images --masks empty", "pairing", "case0"),
        ("--images images --masks masks --tolerance -5", "invalid-value", "tolerance"),
        ("--images images --masks masks --tolerance nan", "invalid-value", "--tolerance nan"),
    ],
)
def test_mistakes_get_a_sentence(
    words: str, code: str, naming: str, balls: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(balls)
    (balls / "empty").mkdir()
    model = brightness_model(balls / "model.pt")
    refused("evaluate", model, *words.split(), "--out", "out", code=code, naming=naming)
    assert not (balls / "out").exists()


def test_an_output_folder_that_cannot_be_is_refused_before_a_case_is_scored(balls: Path, refused: Refused) -> None:
    (balls / "file").write_text("", encoding="utf-8")
    for out in (balls / "file", balls / "file" / "below"):
        refused("evaluate", *given(balls)[:-1], out, code="folder-unwritable", naming=str(out))


def test_what_is_there_is_replaced_with_force_only(balls: Path, refused: Refused) -> None:
    words = given(balls)
    assert evaluate(*words) == 0
    refused("evaluate", *words, code="output-exists", naming=TABLE)
    assert evaluate(*words, "--force") == 0


def test_cases_without_the_structure_have_false_positives_and_no_dice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = many(tmp_path, [f"case{number}.nii.gz" for number in range(6)])
    dark = np.zeros((13, 180, 200), np.uint8)
    dark[0, 0, 0] = 200  # one bright voxel, which the network's grid averages away
    sitk.WriteImage(sitk.GetImageFromArray(dark), str(tmp_path / "images" / "case0.nii.gz"))
    for case, grid in (("case0", sitk.GetImageFromArray(dark)), ("case1", None)):
        mask = tmp_path / "masks" / f"{case}.nii.gz"
        stored = sitk.ReadImage(str(mask)) if grid is None else grid
        volume = float(sitk.GetArrayFromImage(stored).sum() * np.prod(stored.GetSpacing()) / 1000)
        sitk.WriteImage(sitk.Cast(stored * 0, sitk.sitkUInt8), str(mask))
    assert evaluate(*words) == 1 and "2 of 6 cases" in capsys.readouterr().out
    assert evaluate(*words, "--force", "--empty") == 0
    printed = capsys.readouterr().out
    assert "case0: no prostate, 0.00 ml" in printed and "prostate: 2 cases without" in printed
    table = rows(tmp_path / "out")
    assert [row["dice"] == "" for row in table] == [True, True, *[False] * 4]
    assert [row["false_positives"] == "" for row in table] == [False, False, *[True] * 4]
    assert float(table[0]["false_positives"]) == 0
    assert float(table[1]["false_positives"]) == pytest.approx(volume, rel=0.1), "the ball, which nobody has drawn"
    record = LabelledScans.read(tmp_path / "out")
    assert record.lacking == {"prostate": ["case0", "case1"]}
    assert record.scores["dice"].n == 4 and record.scores["false_positives"].n == 2
    assert record.cases_of("dice") == [f"case{number}" for number in range(2, 6)]
    assert record.cases_of("false_positives") == ["case0", "case1"]
    assert main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "over 4 of 6" in page and "2 cases without" in page


def test_scans_that_all_lack_the_structure_are_scored_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = many(tmp_path, ["case0.nii.gz", "case1.nii.gz"])
    for mask in (tmp_path / "masks").iterdir():
        sitk.WriteImage(sitk.ReadImage(str(mask)) * 0, str(mask))
    assert evaluate(*words, "--empty") == 0
    assert LabelledScans.read(tmp_path / "out").scores.keys() == {"false_positives"}
    assert main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "page.html")]) == 0
    assert "none of 2 cases" in (tmp_path / "page.html").read_text(encoding="utf-8")
