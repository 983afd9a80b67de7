"""What ``fedshift data prepare`` and ``check`` print."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
import SimpleITK as sitk
from conftest import make_image_site
from scanfiles import write_described, write_pair

from cli.conftest import Refused
from fedshift.cli import main
from fedshift.data.locate import find_site
from fedshift.schema.manifest import read_manifest


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    folder = tmp_path / "my scans" / "HK"
    for number in range(3):
        write_pair(folder, f"Case{number:02d}", seed=number)
    return folder


def prepare(scans: Path, *words: str) -> int:
    images, masks = (scans.parent / name for name in ("images", "masks"))
    for number in range(3):
        for folder, ending in ((images, ""), (masks, "_segmentation")):
            folder.mkdir(exist_ok=True)
            shutil.copyfile(scans / f"Case{number:02d}{ending}.nii.gz", folder / f"Case{number:02d}.nii.gz")
    words_of_scans = ["--images", str(images), "--masks", str(masks), "--site", "HK", "--dataset", "prostate"]
    return main(["data", "prepare", "own", *words_of_scans, *words])


def test_preparation_ends_with_the_line_that_makes_its_data_found(
    scans: Path, bare: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prepare(scans, "--out", "my data") == 0
    command, assignment = shlex.split(capsys.readouterr().out.splitlines()[-1])
    name, _, value = assignment.partition("=")
    assert command == "export"
    place = find_site("prostate", "HK", local=None, simulator=False, environ={name: value})
    assert place == bare / "my data" / "prostate" / "HK"
    assert prepare(scans) == 0
    assert "export" not in capsys.readouterr().out, "they are found without"
    monkeypatch.setenv(name, value)
    assert prepare(scans, "--out", "my data") == 0
    assert "export" not in capsys.readouterr().out, "it is set already"


def test_check_says_how_much_it_has_looked_at(scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def last_line(folder: Path) -> str:
        main(["data", "check", str(folder)])
        return capsys.readouterr().out.splitlines()[-1].removeprefix(f"{folder}: ")

    assert last_line(scans) == "3 cases in 1 folder: 0 error(s), 0 warning(s)"
    for name in ("A", "B"):
        make_image_site(tmp_path / "pictures", name)
    assert last_line(tmp_path / "pictures").startswith("96 pictures at 2 sites: ")
    prepare(scans, "--out", str(tmp_path / "out"))
    capsys.readouterr()
    assert last_line(tmp_path / "out") == "3 cases at 1 site: 0 error(s), 0 warning(s)"
    (scans / "Case01.nii.gz").write_bytes(b"")
    assert last_line(scans).startswith("3 cases in 1 folder: 1 error(s)"), "also those that cannot be read"


def test_the_task_names_data_set_and_classes(scans: Path, tmp_path: Path, refused: Refused) -> None:
    """From a file, from `apps/`, or by the data set of a task there; without any of them it is asked."""
    words = ["data", "prepare", "own", "--source", str(scans), "--site", "A", "--out", str(tmp_path / "out")]
    refused(*words, code="dataset-missing", naming=("--task", "--dataset"))
    (tmp_path / "spleens.yaml").write_text("dataset: spleens\nclasses: [background, spleen]\n", encoding="utf-8")
    for choice, dataset, classes in (
        (["--task", str(tmp_path / "spleens.yaml")], "spleens", ("background", "spleen")),
        (["--task", "prostate"], "prostate", ("background", "prostate")),
        (["--dataset", "prostate"], "prostate", ("background", "prostate")),
        (["--dataset", "livers", "--label", "liver=1"], "livers", ("background", "liver")),
    ):
        assert main([*words, *choice]) == 0
        assert read_manifest(tmp_path / "out" / dataset / "A").classes == classes
    refused(*words, "--dataset", "kidneys", code="labels-missing", naming="--label NAME=1")
    refused(*words, "--task", "prostat", code="task-unknown", naming=("'prostat'", "'prostate'"))


def test_a_site_that_the_task_does_not_have_is_told(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tmp_path / "spleens.yaml"
    task.write_text("dataset: spleens\nclasses: [background, spleen]\nsites: [NORTH]\nheld_out: [EAST]\n", "utf-8")
    words = ["data", "prepare", "own", "--source", str(scans), "--out", str(tmp_path / "out"), "--task", str(task)]
    for site, noted in (("NORTH", False), ("EAST", False), ("NROTH", True)):
        assert main([*words, "--site", site]) == 0
        assert (f"'{site}' yet; did you mean 'NORTH'" in capsys.readouterr().out) == noted


def test_prepared_sites_are_checked_against_the_task(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tmp_path / "spleens.yaml"
    task.write_text("dataset: spleens\nclasses: [background, spleen]\n", encoding="utf-8")
    other = tmp_path / "other.yaml"
    other.write_text("dataset: spleens\nclasses: [background, spleen, tumour]\n", encoding="utf-8")
    words = ["--site", "A", "--out", str(tmp_path / "out"), "--task", str(task)]
    assert main(["data", "prepare", "own", "--source", str(scans), *words]) == 0
    for name, code, named in (
        (str(task), 0, ()),
        ("prostate", 1, ("spleens", "prostate", "[other-data")),
        (str(other), 1, ("background, spleen, tumour", "[other-classes")),
    ):
        capsys.readouterr()
        assert main(["data", "check", str(tmp_path / "out"), "--task", name]) == code
        printed = " ".join(capsys.readouterr().out.split())
        assert all(word in printed for word in named), printed


def test_a_task_names_the_sequences_that_it_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_described(tmp_path / "set", sequences=("T2", "ADC"), style="nnunet")
    text = "dataset: balls\nclasses: [background, ball]\n"
    for name, data in (("one", "data: {dims: 3}\n"), ("both", "data: {sequences: [ADC, T2]}\n"), ("none", "")):
        (tmp_path / f"{name}.yaml").write_text(text + data, encoding="utf-8")
    for task, code in (("one", 2), ("both", 0), ("none", 0)):
        words = ["--task", str(tmp_path / f"{task}.yaml")]
        assert main(["data", "check", str(source), *words]) == bool(code)
        into = ["--source", str(source), "--site", "A", "--out", str(tmp_path / task)]
        assert main(["data", "prepare", "own", *into, *words]) == code
        assert ("[other-sequences]" in capsys.readouterr().err) == bool(code)
    one = ["--task", str(tmp_path / "one.yaml")]
    assert main(["data", "check", str(tmp_path / "both"), *one]) == 1, "prepared for another task"


def test_values_that_nothing_names_are_an_error_once_the_task_is_known(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in scans.glob("*_segmentation.nii.gz"):
        mask = sitk.ReadImage(str(path))
        voxels = sitk.GetArrayFromImage(mask)
        first, *_ = voxels.nonzero()
        voxels[first.max()] *= 2
        drawn = sitk.GetImageFromArray(voxels)
        drawn.CopyInformation(mask)
        sitk.WriteImage(drawn, str(path))
    task = tmp_path / "zones.yaml"
    task.write_text("dataset: zones\nclasses: [background, inner zone, outer]\n", encoding="utf-8")
    assert main(["data", "check", str(scans)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "--label NAME=1 --label NAME=2" in printed and "0 error(s), 1 warning(s)" in printed
    assert printed.endswith("--label")
    assert main(["data", "check", str(scans), "--task", str(task)]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "--label 'inner zone'=1 --label outer=2" in printed and "merge" not in printed


def test_what_was_prepared_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_described(tmp_path / "set", sequences=("T2", "ADC"), classes=("PZ", "TZ"), cases=4)
    (source / "imagesTr" / "case_3.nii.gz").write_bytes(b"")
    words = ["data", "prepare", "msd", "--source", str(source), "--out", str(tmp_path / "out"), "--skip-damaged"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "MSD: 3 case(s) (1 train, 1 val, 1 test)" in printed
    assert all(words in printed for words in ("PZ, TZ", "T2, ADC", "1 left out"))


def test_an_option_that_a_data_sets_command_lacks_is_said_to_be_elsewhere(tmp_path: Path, refused: Refused) -> None:
    source = write_described(tmp_path / "set", classes=("PZ", "TZ"), style="nnunet")
    file, words = source / "dataset.json", ["--source", source, "--out", tmp_path / "out"]
    described = json.loads(file.read_text(encoding="utf-8"))
    unnamed, shared = {"background": 0, "PZ": 1}, {"background": 0, "PZ": 1, "TZ": 1}
    for labels, code in ((unnamed, "scans-damaged"), (shared, "labels-unusable")):
        file.write_text(json.dumps(described | {"labels": labels}), encoding="utf-8")
        message = refused("data", "prepare", "nnunet", *words, code=code, naming="--label")
        assert "'data prepare own' takes --label, and this command does not" in message
        assert "does not" not in refused("data", "prepare", "msd", *words, code=code, naming="--label")


def test_check_takes_names_of_labels(scans: Path, capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    assert main(["data", "check", str(scans), "--label", "gland=2"]) == 1
    assert "0 outside, 2 gland" in capsys.readouterr().out
    refused("data", "check", scans, "--label", "gland", code="option-form", naming="--label")
