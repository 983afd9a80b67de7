"""``fedshift evaluate``: labelled scans score as in a site's evaluation, and what fails is said."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import SimpleITK as sitk
from inference.conftest import brightness_model, write_ball
from inference.test_patches import IN_3D, train

from fedshift.cli import main
from fedshift.cli.evaluate import SUMMARY, TABLE
from fedshift.schema.manifest import read_manifest


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / TABLE).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def evaluate(*words: object) -> int:
    return main(["evaluate", *map(str, words)])


@pytest.fixture
def balls(tmp_path: Path) -> Path:
    """Three scans with masks, ``images`` and ``masks``."""
    for number in range(3):
        mask = write_ball(tmp_path / "images" / f"case{number}.nii.gz", radius=9.0 + number)
        (tmp_path / "masks").mkdir(exist_ok=True)
        sitk.WriteImage(mask, str(tmp_path / "masks" / f"case{number}.nii.gz"))
    return tmp_path


def test_several_classes_and_sequences_score_as_in_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites, model, results = train(tmp_path, IN_3D, "fedavg")
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
    said = capsys.readouterr().out
    assert "left" in said and "right" in said and "mean over cases (95 % interval)" in said


def test_statistics_of_the_scored_scans_are_taken_whatever_their_files_are_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites, model, _ = train(tmp_path, IN_3D, "fedrdn")
    (tmp_path / "scans").mkdir()
    for file in (sites["B"] / "volumes").iterdir():
        name = file.name.replace("_0000", "_T2").replace("_0001", "_ADC")
        shutil.copyfile(file, tmp_path / "scans" / name)
    named = ["--sequence", "T2=case*_T2.nii.gz", "--sequence", "ADC=case*_ADC.nii.gz", "--masks", "case*_mask.nii.gz"]
    words = [model, "--source", tmp_path / "scans", *named, "--label", "left=1", "--label", "right=2"]
    assert evaluate(*words, "--statistics", "own", "--out", tmp_path / "own") == 0
    assert "statistics: own, of " in capsys.readouterr().out
    assert evaluate(*words, "--site", "A", "--out", tmp_path / "other") == 0
    own, other = ([row["dice"] for row in rows(tmp_path / out)] for out in ("own", "other"))
    assert len(own) == len(other) and own != other


def test_sequences_go_by_name_in_any_case_and_by_number_where_they_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites, model, _ = train(tmp_path, IN_3D, "fedavg")

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
    said = capsys.readouterr().err
    assert "has ADC, T2w, and the model takes T2, ADC: say which files are which with --sequence T2=PATTERN" in said


def test_a_model_of_slices_finds_balls(balls: Path) -> None:
    model = brightness_model(balls / "model.pt")
    assert evaluate(model, "--images", balls / "images", "--masks", balls / "masks", "--out", balls / "out") == 0
    assert [float(row["dice"]) > 0.9 for row in rows(balls / "out")] == [True] * 3
    assert {row["class"] for row in rows(balls / "out")} == {"prostate"}


def test_a_case_that_cannot_be_read_is_named_and_the_rest_is_scored(
    balls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = brightness_model(balls / "model.pt")
    (balls / "images" / "case1.nii.gz").write_bytes(b"cut")
    assert evaluate(model, "--images", balls / "images", "--masks", balls / "masks", "--out", balls / "out") == 1
    assert "1 of 3 cases could not be scored" in capsys.readouterr().out
    assert [bool(row["error"]) for row in rows(balls / "out")] == [False, True, False]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--images", "images"], "--images and --masks go together"),
        (["--images", "images", "--masks", "masks", "--label", "liver=1"], "none of the classes prostate"),
        (["--images", "images", "--masks", "masks", "--sequence", "T2=*.nii.gz"], "takes the place of --images"),
        (["--images", "images", "--masks", "empty"], "has no mask"),
        (["--images", "images", "--masks", "masks", "--tolerance", "-5"], "should be greater than 0"),
        (["--images", "images", "--masks", "masks", "--tolerance", "nan"], "--tolerance nan: "),
    ],
)
def test_mistakes_get_a_sentence(
    words: list[str], message: str, balls: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(balls)
    (balls / "empty").mkdir()
    assert evaluate(brightness_model(balls / "model.pt"), *words, "--out", "out") == 2
    assert message in capsys.readouterr().err and not (balls / "out").exists()


def test_an_output_folder_that_cannot_be_is_refused_before_a_case_is_scored(
    balls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (balls / "file").write_text("", encoding="utf-8")
    model = brightness_model(balls / "model.pt")
    for out in (balls / "file", balls / "file" / "below"):
        assert evaluate(model, "--images", balls / "images", "--masks", balls / "masks", "--out", out) == 2
        said = capsys.readouterr()
        assert f"{out} cannot be made" in said.err and "case0" not in said.out


def test_what_is_there_is_replaced_with_force_only(balls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = brightness_model(balls / "model.pt")
    words = [model, "--images", balls / "images", "--masks", balls / "masks", "--out", balls / "out"]
    assert evaluate(*words) == 0
    assert evaluate(*words) == 2
    assert "already exists" in capsys.readouterr().err
    assert evaluate(*words, "--force") == 0
