"""Data sets in nnU-Net's layout as sites: names, folds, and prepared volumes that are not of these plans."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from errors import raises
from maskedpictures import write
from nnunetfiles import write_plans
from scanfiles import write_described

from data_prep.nnunet import plan_volumes
from data_prep.volumes import write_volumes
from fedshift.cli.prepared import print_site
from fedshift.data.prepared import read_labels
from fedshift.data.resampled import Preparation, open_volumes
from fedshift.schema.manifest import read_manifest

NAME = "Dataset004_Hippocampus"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    write_described(tmp_path / "nnUNet_raw" / NAME, classes=("left", "right"), style="nnunet", cases=5)
    return tmp_path / "nnUNet_raw"


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    folder = tmp_path / "nnUNet_preprocessed" / NAME
    (folder / "nnUNetPlans_3d_fullres").mkdir(parents=True)
    write_plans(folder / "nnUNetPlans.json")
    return folder


def test_a_data_set_is_a_site_and_a_fold_its_test_part(raw: Path, tmp_path: Path) -> None:
    folds = [{"train": [f"case_{k}" for k in range(4)], "val": ["case_4"]}]
    (raw / NAME / "splits_final.json").write_text(json.dumps(folds))
    plan = plan_volumes(raw, site="A", fold=0)
    assert plan.dataset == "hippocampus" and plan.labels.classes == ("background", "left", "right")
    (folder,) = write_volumes(plan, tmp_path / "out")
    manifest = read_manifest(folder)
    assert [case.id for case in manifest.by_split("test")] == ["case_4"]
    assert manifest.has_true_spacing and manifest.by_split("val")
    with raises("folds-missing", naming="splits_final.json"):
        plan_volumes(raw, fold=1)
    folds[0]["val"] = ["case_9"]
    (raw / NAME / "splits_final.json").write_text(json.dumps(folds))
    with raises("folds-other-data", naming="case_9"):
        plan_volumes(raw, fold=0)


def test_voxels_of_1_mm_are_taken_as_nnunet_takes_them_and_warned_of(
    raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_volumes(plan_volumes(raw, site="A"), tmp_path / "out")
    assert "1 x 1 x 1 mm" not in caplog.text
    for file in (raw / NAME).glob("*Tr/case_[12]*"):
        image = sitk.ReadImage(str(file))
        image.SetSpacing((1, 1, 1))
        sitk.WriteImage(image, str(file))
    (folder,) = write_volumes(plan_volumes(raw, site="B"), tmp_path / "out")
    assert not read_manifest(folder).has_unknown_spacing
    assert "1 x 1 x 1 mm" in caplog.text and "in 2 of 5 header(s)" in caplog.text


def test_a_case_that_a_fold_trained_on_is_no_test_case(tmp_path: Path) -> None:
    """A checkpoint of the fold has seen it. What is in neither part of the fold is named."""
    source = write_described(tmp_path / "raw" / NAME, classes=("left", "right"), style="nnunet", cases=15)
    held_out = ["case_2", "case_5"]
    train = [f"case_{k}" for k in range(14) if f"case_{k}" not in held_out]
    (source / "splits_final.json").write_text(json.dumps([{"train": train, "val": held_out}]))
    plan = plan_volumes(source.parent, site="A", fold=0)
    (folder,) = write_volumes(plan, tmp_path / "out")
    manifest = read_manifest(folder)
    assert [case.id for case in manifest.by_split("test")] == held_out
    assert len(manifest.by_split("val")) == 3 and len(manifest.by_split("train")) == 9
    assert [finding.code for finding in plan.sites[0].findings] == ["folds-incomplete"]
    assert "case_14" in plan.sites[0].findings[0].message


def test_a_case_may_be_called_as_masks_elsewhere_are(raw: Path) -> None:
    for place, end in (("imagesTr", "_0000"), ("labelsTr", "")):
        for file in (raw / NAME / place).iterdir():
            number = file.name.removeprefix("case_")[0]
            file.rename(file.with_name(f"P{number}_seg{end}.nii.gz"))
    plan = plan_volumes(raw)
    assert [case.id for case in plan.sites[0].cases] == [f"P{k}_seg" for k in range(5)]
    assert not plan.sites[0].findings


def test_channels_of_one_name_have_numbers_and_that_is_said(tmp_path: Path) -> None:
    """Two of ``noNorm`` cannot be told by name, by which a plan would know how nnU-Net normalises them."""
    source = write_described(tmp_path / NAME, sequences=("noNorm", "NONORM"), style="nnunet")
    plan = plan_volumes(source)
    assert plan.sequences == ("0000", "0001")
    (finding,) = plan.sites[0].findings
    assert (finding.level, finding.code) == ("warning", "sequence-twice") and "data.normalise" in finding.remedy


def test_pictures_have_no_voxel_size(tmp_path: Path) -> None:
    source = tmp_path / "raw" / "Dataset120_Roads"
    for number in range(3):
        write(source / "imagesTr" / f"{number}_0000.png", source / "labelsTr" / f"{number}.png", number)
    described = {"channel_names": {"0": "R", "1": "G", "2": "B"}, "labels": {"background": 0, "road": 255}}
    (source / "dataset.json").write_text(json.dumps(described | {"numTraining": 3, "file_ending": ".png"}))
    (folder,) = write_volumes(plan_volumes(source), tmp_path / "out")
    manifest = read_manifest(folder)
    assert manifest.sequences == ("red", "green", "blue")
    assert manifest.known_spacing(manifest.cases[0]) is None


def test_variables_in_the_table_of_cases_are_filled_in(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As nnU-Net does."""
    described = raw / NAME / "dataset.json"
    content = json.loads(described.read_text())
    content["dataset"] = {
        f"case_{k}": {
            "images": [f"${{THEIR_RAW}}/imagesTr/case_{k}_0000.nii.gz"],
            "label": f"$THEIR_RAW/labelsTr/case_{k}.nii.gz",
        }
        for k in range(5)
    }
    described.write_text(json.dumps(content))
    monkeypatch.setenv("THEIR_RAW", str(raw / NAME))
    plan = plan_volumes(raw)
    assert len(plan.sites[0].cases) == 5 and not plan.sites[0].findings


def test_classes_are_in_the_order_of_other_sites(raw: Path, tmp_path: Path) -> None:
    by_number, asked = plan_volumes(raw), plan_volumes(raw, classes=["right", "left"])
    assert asked.labels.classes == ("background", "right", "left") and asked.labels.values == by_number.labels.values
    first, second = (
        read_labels(folder, read_manifest(folder).cases[0])
        for plan, out in ((by_number, "a"), (asked, "b"))
        for folder in write_volumes(plan, tmp_path / out)
    )
    assert {1, 2} <= {*np.unique(first)} and (second == np.array([0, 2, 1])[first]).all()
    for names in (["right"], ["right", "lefd"], ["left", "left", "right"]):
        with raises("class-unknown", naming=("--classes", "left, right", "dataset.json")):
            plan_volumes(raw, classes=names)
    described = raw / NAME / "dataset.json"
    table = json.loads(described.read_text())
    table |= {"labels": {"background": 0, "both": [1, 2], "left": 1}, "regions_class_order": [2, 1]}
    described.write_text(json.dumps(table))
    with raises("options-clash", naming="--classes"):
        plan_volumes(raw, classes=["left", "both"])


def test_a_data_set_may_be_named_by_its_number(raw: Path) -> None:
    (raw / "Dataset005_Other").mkdir()
    (raw / "Dataset005_Other" / "dataset.json").write_text("{}")
    assert plan_volumes(raw, dataset="4").dataset == "hippocampus"


def test_another_data_set_is_refused(raw: Path) -> None:
    with raises("dataset-name", naming="Dataset005_Heart"):
        plan_volumes(raw, dataset="Dataset005_Heart")
    with raises("dataset-name", naming="Dataset004_Hippocampus"):
        plan_volumes(raw, dataset="5")
    for wrong, right in ((raw.parent, raw), (raw / NAME / "imagesTr", raw / NAME)):
        with raises("dataset-name", naming=f"give {right} as --source"):
            plan_volumes(wrong)
    with raises("no-effect", naming="--plans"):
        plan_volumes(raw, plans="others")


def test_prepared_volumes_of_other_plans_are_refused(raw: Path, prepared: Path, tmp_path: Path) -> None:
    with raises("nnunet-plans", naming="nnUNetResEncUNetMPlans"):
        plan_volumes(raw, preprocessed=prepared.parent, plans="nnUNetResEncUNetMPlans")
    write_plans(prepared / "nnUNetPlans.json", data_identifier="nnUNetPlans_3d_lowres")
    with raises("nnunet-other-plans", naming=("nnUNetPlans_3d_fullres", "nnUNetPlans_3d_lowres")):
        plan_volumes(raw, preprocessed=prepared.parent)
    write_plans(prepared / "nnUNetPlans.json")
    (prepared / "dataset.json").write_text(json.dumps({"labels": {"background": 0}}))
    with raises("nnunet-other-plans", naming="channel_names"):
        plan_volumes(raw, preprocessed=prepared.parent)
    (prepared / "dataset.json").unlink()
    plan = plan_volumes(raw, preprocessed=prepared.parent)
    with raises("nnunet-incomplete", naming="case_"):
        write_volumes(plan, tmp_path / "out")
    for k in range(5):
        file = prepared / "nnUNetPlans_3d_fullres" / f"case_{k}.npz"
        np.savez(file, data=np.zeros((1, 4, 4, 4), np.float32), seg=np.zeros((1, 4, 4, 4), np.int8))
    with raises("nnunet-other-plans", naming=("4 x 4 x 4", "nnUNetPlans")):
        write_volumes(plan, tmp_path / "out")
    assert not (tmp_path / "out" / "hippocampus" / "nnunet").exists()


def test_prepared_intensities_that_no_task_takes_are_refused(raw: Path, prepared: Path, tmp_path: Path) -> None:
    """Those of nnU-Net's noNorm are as the scans have them."""
    how = {"spacing": (2.5, 1.0, 1.2), "reader": "SimpleITKIOWithReorient", "scheme": "NoNormalization"}
    write_plans(prepared / "nnUNetPlans.json", **how)
    (ours,) = write_volumes(plan_volumes(raw, site="ours"), tmp_path / "out")
    manifest = read_manifest(ours)
    preparation = Preparation(spacing=(2.5, 1.0, 1.2), sequences=manifest.sequences, convention="nnunet")
    volumes = open_volumes(ours, preparation)
    for number, case in enumerate(manifest.cases):
        images, seg = volumes.images(number).astype(np.float32) * 1000, volumes.labels(number)[None].astype(np.int8)
        np.savez(prepared / "nnUNetPlans_3d_fullres" / f"{case.id}.npz", data=images, seg=seg)
    with raises("intensities", naming=("nnUNetPlans_3d_fullres", "255")):
        write_volumes(plan_volumes(raw, preprocessed=prepared.parent), tmp_path / "again")


def test_masks_that_were_corrected_after_preprocessing_are_refused(
    raw: Path, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plans(prepared / "nnUNetPlans.json", spacing=(2.5, 1.0, 1.2), reader="SimpleITKIOWithReorient")
    (ours,) = write_volumes(plan_volumes(raw, site="ours"), tmp_path / "out")
    manifest = read_manifest(ours)
    preparation = Preparation(spacing=(2.5, 1.0, 1.2), sequences=manifest.sequences, convention="nnunet")
    volumes = open_volumes(ours, preparation)
    for number, case in enumerate(manifest.cases):
        images, seg = volumes.images(number).astype(np.float32), volumes.labels(number)[None].astype(np.int8)
        seg[:, 0] = -1  # outside the body
        np.savez(prepared / "nnUNetPlans_3d_fullres" / f"{case.id}.npz", data=images, seg=seg)
    plan = plan_volumes(raw, preprocessed=prepared.parent)
    (theirs,) = write_volumes(plan, tmp_path / "out")
    print_site(ours)
    assert "nnUNetPlans" not in capsys.readouterr().out
    print_site(theirs)
    assert "nnUNetPlans, 3d_fullres" in " ".join(capsys.readouterr().out.split())
    assert np.array_equal(open_volumes(theirs, preparation).labels(2)[1:], volumes.labels(2)[1:])

    mask = raw / NAME / "labelsTr" / "case_2.nii.gz"
    image = sitk.ReadImage(str(mask))
    voxels = sitk.GetArrayFromImage(image)
    voxels[voxels == 2] = 1
    corrected = sitk.GetImageFromArray(voxels)
    corrected.CopyInformation(image)
    sitk.WriteImage(corrected, str(mask))
    with raises("nnunet-other-masks", naming=("case_2", "--preprocessed")):
        write_volumes(plan_volumes(raw, preprocessed=prepared.parent), tmp_path / "again")
