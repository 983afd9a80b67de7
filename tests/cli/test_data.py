"""What ``fedshift data prepare`` and ``check`` print."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
import SimpleITK as sitk
from conftest import make_image_site
from scanfiles import write_described, write_pair

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
    return main(
        [
            "data",
            "prepare",
            "own",
            "--images",
            str(images),
            "--masks",
            str(masks),
            "--site",
            "HK",
            "--dataset",
            "prostate",
            *words,
        ]
    )


def test_preparation_ends_with_the_line_that_makes_its_data_found(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.delenv("FEDSHIFT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert prepare(scans, "--out", "my data") == 0
    command, assignment = shlex.split(capsys.readouterr().out.splitlines()[-1])
    name, _, value = assignment.partition("=")
    assert command == "export"
    found = find_site("prostate", "HK", local=None, simulator=False, environ={name: value})
    assert found == tmp_path / "my data" / "prostate" / "HK"
    assert prepare(scans) == 0
    assert "export" not in capsys.readouterr().out, "they are found without"
    monkeypatch.setenv(name, value)
    assert prepare(scans, "--out", "my data") == 0
    assert "export" not in capsys.readouterr().out, "it is set already"


def test_check_says_how_much_it_has_looked_at(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_task_names_data_set_and_classes(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file, from `apps/`, or by the data set of a task there; without any of them it is asked."""
    words = ["data", "prepare", "own", "--source", str(scans), "--site", "A", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "give --task, the task that the site takes part in, or --dataset" in capsys.readouterr().err
    (tmp_path / "spleens.yaml").write_text("dataset: spleens\nclasses: [background, spleen]\n", encoding="utf-8")
    for choice, dataset, classes in (
        (["--task", str(tmp_path / "spleens.yaml")], "spleens", ("background", "spleen")),
        (["--task", "prostate"], "prostate", ("background", "prostate")),
        (["--dataset", "prostate"], "prostate", ("background", "prostate")),
        (["--dataset", "livers", "--label", "liver=1"], "livers", ("background", "liver")),
    ):
        assert main([*words, *choice]) == 0
        assert read_manifest(tmp_path / "out" / dataset / "A").classes == classes
    assert main([*words, "--dataset", "kidneys"]) == 2
    assert "nothing says what they are: name them, as in --label NAME=1" in capsys.readouterr().err
    assert main([*words, "--task", "prostat"]) == 2
    assert "there is no task 'prostat'; did you mean 'prostate'" in capsys.readouterr().err


def test_a_site_that_the_task_does_not_have_is_told(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tmp_path / "spleens.yaml"
    task.write_text("dataset: spleens\nclasses: [background, spleen]\nsites: [NORTH]\nheld_out: [EAST]\n", "utf-8")
    words = ["data", "prepare", "own", "--source", str(scans), "--out", str(tmp_path / "out"), "--task", str(task)]
    for site, told in (("NORTH", False), ("EAST", False), ("NROTH", True)):
        assert main([*words, "--site", site]) == 0
        assert ("no site 'NROTH' yet; did you mean 'NORTH'" in capsys.readouterr().out) == told


def test_prepared_sites_are_checked_against_the_task(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tmp_path / "spleens.yaml"
    task.write_text("dataset: spleens\nclasses: [background, spleen]\n", encoding="utf-8")
    other = tmp_path / "other.yaml"
    other.write_text("dataset: spleens\nclasses: [background, spleen, tumour]\n", encoding="utf-8")
    words = ["--site", "A", "--out", str(tmp_path / "out"), "--task", str(task)]
    assert main(["data", "prepare", "own", "--source", str(scans), *words]) == 0
    for name, code, said in (
        (str(task), 0, ""),
        ("prostate", 1, "is of data set spleens, and the task is of prostate"),
        (str(other), 1, "has the classes background, spleen, and the task background, spleen, tumour"),
    ):
        capsys.readouterr()
        assert main(["data", "check", str(tmp_path / "out"), "--task", name]) == code
        assert said in " ".join(capsys.readouterr().out.split())


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
        assert ("and the task takes one: choose it" in capsys.readouterr().err) == bool(code)
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
    told = " ".join(capsys.readouterr().out.split())
    assert "--label NAME=1 --label NAME=2, or merge" in told
    assert told.endswith("0 error(s), 1 warning(s); prepare will ask for --label")
    assert main(["data", "check", str(scans), "--task", str(task)]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "name them, as in --label 'inner zone'=1 --label outer=2" in told and "merge" not in told


def test_what_was_prepared_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_described(tmp_path / "set", sequences=("T2", "ADC"), classes=("PZ", "TZ"), cases=4)
    (source / "imagesTr" / "case_3.nii.gz").write_bytes(b"")
    words = ["data", "prepare", "msd", "--source", str(source), "--out", str(tmp_path / "out"), "--skip-damaged"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "MSD: 3 case(s) (1 train, 1 val, 1 test)" in said
    assert "  classes PZ, TZ; sequences T2, ADC; 1 left out, see above" in said


def test_check_takes_names_of_labels(scans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(scans), "--label", "gland=2"]) == 1
    assert "0 outside, 2 gland" in capsys.readouterr().out
    assert main(["data", "check", str(scans), "--label", "gland"]) == 2
    assert "--label takes a name and values" in capsys.readouterr().err
