"""The cases that dataset.json lists: which image goes with which label, and what a list cannot mean."""

from __future__ import annotations

import json
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk
from errors import raises
from scanfiles import other_sequence, volume, write_described

from data_prep.hippocampus import plan_volumes as plan_hippocampus
from data_prep.msd import plan_volumes
from data_prep.own_scans import prepare_own
from data_prep.volumes import write_volumes
from fedshift.data.check import check
from fedshift.data.layouts.dataset_json import read_description
from fedshift.data.layouts.find import find_sets, gather
from fedshift.schema.errors import DataError

CASES = 4


def save(path: Path, image: sitk.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sitk.WriteImage(image, str(path))


def write(folder: Path, *, shift: int = 0, labels: str = "labelsTr", ending: str = ".nii.gz") -> Path:
    """Images P0 to P3, and the label of image k under the name of image k + ``shift``."""
    for k in range(CASES):
        image, mask = volume(k)
        save(folder / "imagesTr" / f"P{k}{ending}", image)
        save(folder / labels / f"P{(k + shift) % CASES}{ending}", mask)
    return folder


def describe(folder: Path, **said: Any) -> Path:
    content = {"name": "Ball", "labels": {"0": "background", "1": "ball"}, **said}
    (folder / "dataset.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def pairs(shift: int = 0, labels: str = "labelsTr", cases: int = CASES) -> list[dict[str, str]]:
    return [
        {"image": f"./imagesTr/P{k}.nii.gz", "label": f"./{labels}/P{(k + shift) % CASES}.nii.gz"} for k in range(cases)
    ]


def found_in(folder: Path) -> dict[str, tuple[str, ...]]:
    """Case -> its files below the folder, the mask last."""
    (sets,) = find_sets(folder)
    return {case.id: tuple(str(f.relative_to(folder)) for f in (*case.images, case.mask)) for case in sets.cases}


def listed_otherwise(folder: Path) -> Path:
    """A second reader's labels, which the list names, and the first one's in labelsTr."""
    write(folder)
    for k in range(CASES):
        mask = volume(k)[1]
        half = sitk.GetImageFromArray(_half(mask))
        half.CopyInformation(mask)
        save(folder / "labelsTr2" / f"P{k}.nii.gz", half)
    return describe(folder, training=pairs(labels="labelsTr2"))


def _half(mask: sitk.Image) -> np.ndarray:
    voxels = sitk.GetArrayFromImage(mask)
    voxels[:, :, : voxels.shape[2] // 2] = 0
    return voxels


def nnunet(folder: Path) -> Path:
    """nnU-Net 2 with a table of cases in place of folders; relative paths begin at its file."""
    for k in range(CASES):
        image, mask = volume(k)
        save(folder / "elsewhere" / f"scan{k}.nii.gz", image)
        save(folder / "elsewhere" / f"adc{k}.nii.gz", other_sequence(image))
        save(folder / "drawn" / f"reader{k}.nii.gz", mask)
    of_case = {
        f"P{k}": {
            "images": [f"elsewhere/scan{k}.nii.gz", str(folder / f"elsewhere/adc{k}.nii.gz")],
            "label": f"drawn/reader{k}.nii.gz",
        }
        for k in range(CASES)
    }
    content = {"channel_names": {"0": "T2", "1": "ADC"}, "labels": {"background": 0, "ball": 1}, "dataset": of_case}
    (folder / "dataset.json").write_text(json.dumps({**content, "numTraining": CASES, "file_ending": ".nii.gz"}))
    return folder


def in_folders(folder: Path) -> Path:
    """Files of one name in a folder for each case."""
    entries = []
    for k in range(CASES):
        image, mask = volume(k)
        save(folder / f"sub-{k}" / "T1.nii.gz", image)
        save(folder / f"sub-{k}" / "drawn.nii.gz", mask)
        entries.append({"image": f"sub-{k}/T1.nii.gz", "label": f"sub-{k}\\drawn.nii.gz"})
    return describe(folder, training=entries)


def accented(folder: Path) -> Path:
    """Names whose letters the list writes otherwise than the disk, as after a copy from macOS."""
    write(folder)
    for part in ("imagesTr", "labelsTr"):
        name = unicodedata.normalize("NFD", "Müller.nii.gz")
        (folder / part / "P0.nii.gz").rename(folder / part / name)
    said = pairs()
    said[0] = {"image": "imagesTr/M\u00fcller.nii.gz", "label": "labelsTr/M\u00fcller.nii.gz"}
    return describe(folder, training=said)


@pytest.mark.parametrize(
    ("make", "right"),
    [
        pytest.param(
            listed_otherwise, {"P1": ("imagesTr/P1.nii.gz", "labelsTr2/P1.nii.gz")},
            marks=pytest.mark.reads("list: training in dataset.json, as of the Decathlon"),
        ),
        pytest.param(
            lambda f: describe(write(f, shift=1), training=pairs(shift=1)),
            {"P1": ("imagesTr/P1.nii.gz", "labelsTr/P2.nii.gz"), "P3": ("imagesTr/P3.nii.gz", "labelsTr/P0.nii.gz")},
            marks=pytest.mark.reads("list: labels that are called like other cases"),
        ),
        pytest.param(
            lambda f: describe(write(f), training=pairs(cases=3)), {"P2": ("imagesTr/P2.nii.gz", "labelsTr/P2.nii.gz")},
            marks=pytest.mark.reads("list: files beside those that are listed"),
        ),
        pytest.param(
            nnunet, {"P2": ("elsewhere/scan2.nii.gz", "elsewhere/adc2.nii.gz", "drawn/reader2.nii.gz")},
            marks=pytest.mark.reads("list: dataset in dataset.json, as of nnU-Net 2"),
        ),
        pytest.param(
            in_folders, {"sub-2_T1": ("sub-2/T1.nii.gz", "sub-2/drawn.nii.gz")},
            marks=pytest.mark.reads("list: files of one name in several folders"),
        ),
        pytest.param(
            accented, {"M\u00fcller": ("imagesTr/Mu\u0308ller.nii.gz", "labelsTr/Mu\u0308ller.nii.gz")}, id="accents"
        ),
        pytest.param(
            lambda f: describe(write(f), training=[{"image": f"imagesTr/P{k}.nii.gz"} for k in (1, 2)]),
            {"P2": ("imagesTr/P2.nii.gz", "labelsTr/P2.nii.gz")},
            marks=pytest.mark.reads("list: images without a label, by name"),
        ),
        pytest.param(
            lambda f: describe(write(f), training=[f"./imagesTr/P{k}.nii.gz" for k in (1, 2)]),
            {"P2": ("imagesTr/P2.nii.gz", "labelsTr/P2.nii.gz")}, id="texts",
        ),
    ],
)  # fmt: skip
def test_an_image_goes_with_its_listed_label(
    make: Callable[[Path], Path], right: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    """… for every command, and no case is taken that is not listed."""
    folder = make(tmp_path / "set")
    cases = found_in(folder)
    assert right.items() <= cases.items(), cases
    listed = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
    assert len(cases) == len(listed.get("dataset") or listed["training"])
    if "dataset" in listed:
        assert find_sets(folder)[0].sequences == ("T2", "ADC")
    (planned,) = plan_volumes(folder).sites
    assert {case.id: case.mask for case in planned.cases} == {c.id: c.mask for c in find_sets(folder)[0].cases}
    assert not [finding for finding in check(folder) if finding.level == "error"]


@pytest.mark.parametrize("make", [listed_otherwise, lambda f: describe(write(f, shift=1), training=pairs(shift=1))])
def test_prepared_masks_are_the_listed_ones(make: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = make(tmp_path / "set")
    sites = [
        prepare_own(None, None, "A", tmp_path / "own", dataset="d", source=folder),
        *write_volumes(plan_volumes(folder), tmp_path / "msd"),
    ]
    for site in sites:
        for k in range(CASES):
            image = sitk.GetArrayFromImage(sitk.ReadImage(str(site / "volumes" / f"P{k}.nii.gz")))
            mask = sitk.GetArrayFromImage(sitk.ReadImage(str(site / "volumes" / f"P{k}_mask.nii.gz"))) > 0
            ball = image > 500
            assert mask.any() and not (mask & ~ball).any(), "it lies on the ball of its own image"
            assert (mask.sum() < ball.sum()) == (folder / "labelsTr2").is_dir()


def without(folder: Path, name: str) -> Path:
    (folder / name).unlink()
    return folder


@pytest.mark.parametrize(
    ("said", "level", "code", "naming", "kept"),
    [
        pytest.param(
            {"training": pairs(shift=1)}, "warning", "list-crossed", "P0.nii.gz with P1.nii.gz", 4,
            id="crossed",
        ),
        pytest.param(
            {"training": pairs(cases=3)}, "warning", "list-incomplete", "P3.nii.gz", 3,
            id="left out",
        ),
        pytest.param(
            {"training": [*pairs(), {"image": "imagesTr/P9.nii.gz", "label": "labelsTr/P9.nii.gz"}]}, "error",
            "file-missing", "P9.nii.gz", 4,
            marks=pytest.mark.reads("list: files that are not there"),
        ),
        pytest.param(
            {"training": [*pairs(cases=3), {"image": "imagesTr/P3.nii.gz", "label": "labelsTr/P0.nii.gz"}]}, "error",
            "list-shared-label", "P0.nii.gz and of P3.nii.gz", 2,
            marks=pytest.mark.reads("list: a label of two images"),
        ),
        pytest.param(
            {"training": [*pairs(), {"image": "imagesTr/P0.nii.gz", "label": "labelsTr/P1.nii.gz"}]}, "error",
            "list-two-labels", "P0.nii.gz and P1.nii.gz", 3,
            marks=pytest.mark.reads("list: an image with two labels"),
        ),
        pytest.param(
            {"training": [*pairs(), pairs()[1]]}, "warning", "list-twice", "P1.nii.gz", 4,
            marks=pytest.mark.reads("list: a pair that is listed twice"),
        ),
        pytest.param(
            {"training": [*pairs(cases=3), {"image": "imagesTr/P3.nii.gz", "label": "./imagesTr/P3.nii.gz"}]}, "error",
            "list-own-label", "P3.nii.gz", 3, marks=pytest.mark.reads("list: an image as its own label"),
        ),
        pytest.param(
            {"training": pairs(), "numTraining": 9}, "warning", "list-count", "numTraining 9, and lists 4", 4,
            marks=pytest.mark.reads("list: another number of cases than numTraining"),
        ),
        pytest.param(
            {"numTraining": 9}, "warning", "list-count", "numTraining 9", 4, id="no list"
        ),
        pytest.param(
            {"training": pairs(), "test": ["./imagesTr/P1.nii.gz"]}, "warning",
            "list-elsewhere", "test", 4,
            marks=pytest.mark.reads("list: images for training and for test"),
        ),
        pytest.param(
            {"training": pairs(cases=2), "validation": pairs()[2:]}, "warning", "list-elsewhere", "validation", 2,
            marks=pytest.mark.reads("list: cases for validation"),
        ),
        pytest.param(
            {"file_ending": ".nrrd"}, "warning", "file-ending", ".nrrd", 4,
            marks=pytest.mark.reads("list: other files than file_ending"),
        ),
        pytest.param(
            {"training": [["a", "b"], 3]}, "error", "description-broken", "dataset.json", 0,
            marks=pytest.mark.reads("list: entries that name no image"),
        ),
    ],
)  # fmt: skip
def test_what_contradicts_a_list_is_said(
    said: dict[str, Any], level: str, code: str, naming: str, kept: int, tmp_path: Path
) -> None:
    folder = describe(write(tmp_path / "set"), **said)
    findings = check(folder)
    found = [each for each in findings if (each.level, each.code) == (level, code)]
    assert any(naming in finding.sentence() for finding in found), findings
    if level == "warning":
        assert not [finding for finding in findings if finding.level == "error"], findings
    else:
        with pytest.raises(DataError):
            prepare_own(None, None, "A", tmp_path / "out", dataset="d", source=folder)
    if kept:
        assert len(find_sets(folder)[0].cases) == kept


@pytest.mark.parametrize(("images", "level"), [(1, "error"), (3, "error"), (2, None)])
@pytest.mark.reads("list: another number of images than channel_names")
def test_a_case_with_another_number_of_images_than_the_names(images: int, level: str | None, tmp_path: Path) -> None:
    folder = nnunet(tmp_path / "set")
    content = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
    content["dataset"]["P1"]["images"] = (content["dataset"]["P1"]["images"] * 2)[:images]
    (folder / "dataset.json").write_text(json.dumps(content), encoding="utf-8")
    (sets,) = find_sets(folder)
    assert [finding.level for finding in sets.findings if finding.case == "P1"] == ([level] if level else [])
    assert len(sets.cases) == CASES - (level is not None)


@pytest.mark.parametrize("key", ["channel_names", "modality"])
def test_names_of_sequences_without_numbers_are_refused(key: str, tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_text(json.dumps({key: ["T2", "ADC"]}), encoding="utf-8")
    with raises("description-broken", naming=(f'{key} ["T2", "ADC"]', 'number them, as in {"0": "T2", "1": "ADC"}')):
        read_description(tmp_path)


@pytest.mark.reads("list: folders of images and masks beside a list that pairs them otherwise")
def test_folders_that_are_named_beside_a_list(tmp_path: Path) -> None:
    folder = describe(write(tmp_path / "set", shift=1), training=pairs(shift=1, cases=3))
    (tables,) = gather(None, images=folder / "imagesTr", masks=folder / "labelsTr")
    assert [finding.level for finding in tables.findings] == ["error"] * 3 + ["warning"]
    assert all(finding.code == "list-differs" for finding in tables.findings[:3])
    shutil.copytree(folder / "labelsTr", folder / "second")
    (other,) = gather(None, images=folder / "imagesTr", masks=folder / "second")
    assert [finding.level for finding in other.findings] == ["warning"], "whoever names another folder means it"


def test_a_description_beside_folders_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = describe(write(tmp_path / "set"), training=pairs(cases=3))
    read: list[Path] = []

    def text(file: Path, *words: Any, **options: Any) -> str:
        read.append(file)
        return opened(file, *words, **options)

    opened = Path.read_text
    monkeypatch.setattr(Path, "read_text", text)
    gather(None, images=folder / "imagesTr", masks=folder / "labelsTr")
    assert read.count(folder / "dataset.json") == 1


@pytest.mark.reads("list: folders of images and masks that are named, and lie beside dataset.json")
@pytest.mark.parametrize("style", ["msd", "nnunet"])
def test_folders_that_are_named_beside_a_description(style: str, tmp_path: Path) -> None:
    folder = write_described(tmp_path / "set", sequences=("T2", "ADC"), classes=("core", "rim"), style=style)
    for part in ("images", "labels"):
        (folder / f"{part}Tr").rename(folder / f"{part}Ts")
    (table,) = gather(None, images=folder / "imagesTs", masks=folder / "labelsTs")
    assert table.labels is not None and table.labels.classes == ("background", "core", "rim")
    assert table.sequences == ("T2", "ADC") and [case.sequences for case in table.cases] == [("T2", "ADC")] * 3
    elsewhere = (folder / "labelsTs").rename(tmp_path / "labels")
    (table,) = gather(None, images=folder / "imagesTs", masks=elsewhere)
    assert table.labels is None, "masks of another folder may have other values"


@pytest.mark.reads("list: images without the number of their sequence, as of nnU-Net 1")
def test_numbered_files_of_a_listed_case(tmp_path: Path) -> None:
    folder = write_described(tmp_path / "set", sequences=("T2", "ADC"), style="nnunet")
    content = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
    content["training"] = [
        {"image": f"imagesTr/case_{k}.nii.gz", "label": f"labelsTr/case_{k}.nii.gz"} for k in range(2)
    ]
    (folder / "dataset.json").write_text(json.dumps({**content, "numTraining": 2}), encoding="utf-8")
    images = ("imagesTr/case_1_0000.nii.gz", "imagesTr/case_1_0001.nii.gz")
    assert found_in(folder)["case_1"] == (*images, "labelsTr/case_1.nii.gz") and len(found_in(folder)) == 2
    assert [finding.level for finding in check(folder)] == ["warning"], "two files that are not listed"


def test_the_hippocampus_follows_its_list(tmp_path: Path) -> None:
    folder = write_described(tmp_path / "Task04", classes=("Anterior", "Posterior"), cases=3)
    content = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
    (folder / "labelsTr").rename(folder / "labelsTr2")
    (folder / "labelsTr").mkdir()
    content["training"] = [
        {**one, "label": one["label"].replace("labelsTr", "labelsTr2")} for one in content["training"]
    ]
    (folder / "dataset.json").write_text(json.dumps(content), encoding="utf-8")
    (site,) = plan_hippocampus(folder).sites
    assert {case.mask.parent.name for case in site.cases} == {"labelsTr2"} and len(site.cases) == 3
