"""M&Ms: 4D images of which two phases are outlined, and a table that says which, and where they are from."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from errors import raises
from heartfiles import PATIENTS, frames, write_hearts

from data_prep.mms import plan_volumes
from data_prep.volumes import write_volumes
from fedshift.data.prepared import read_images, read_labels
from fedshift.data.splits import subject_of
from fedshift.federation.resolve import resolve
from fedshift.schema.manifest import read_manifest


def table(source: Path) -> Path:
    (path,) = source.glob("*opendataset.csv")
    return path


def test_each_phase_is_a_case_with_its_own_frame_and_both_are_in_one_part(tmp_path: Path) -> None:
    source = write_hearts(tmp_path / "in")
    folders = write_volumes(plan_volumes(source), tmp_path / "out")
    assert [folder.name for folder in folders] == [f"centre_{number}" for number in range(1, 6)]
    task = resolve("mms", "fedavg", checked=False).task
    for folder in folders:
        manifest = read_manifest(folder)
        assert len(manifest.cases) == 6 and manifest.classes == task.classes
        for case in manifest.cases:
            code, phase = case.id.split("_")
            image, mask = frames(code, phase)
            assert np.array_equal(
                np.bincount(read_labels(folder, case).ravel(), minlength=4), np.bincount(mask.ravel())
            )
            assert np.allclose(np.sort(read_images(folder, manifest, case).ravel()), np.sort(image.ravel()), atol=1e-3)
            assert {other.split for other in manifest.cases if subject_of(other) == code} == {case.split}
        assert {case.split for case in manifest.cases} == {"train", "val", "test"}


def test_a_vendor_may_be_the_site(tmp_path: Path) -> None:
    plan = plan_volumes(write_hearts(tmp_path), by="vendor")
    job = resolve("mms", "fedavg", protocol="vendors", checked=False)
    assert plan.dataset == job.task.dataset and [site.site for site in plan.sites] == list(job.task.sites)
    assert [len(site.cases) for site in plan.sites] == [6, 12, 6, 6]


def test_patients_without_a_mask_are_counted_or_are_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = write_hearts(tmp_path / "in")
    unlabelled = next((source / "Training" / "Unlabeled").iterdir())
    (unlabelled / f"{unlabelled.name}_sa_gt.nii.gz").unlink()
    write_volumes(plan_volumes(source), tmp_path / "out")
    assert any("1 patient(s) without a mask" in record.getMessage() for record in caplog.records)
    tested = next((source / "Testing").iterdir())
    (tested / f"{tested.name}_sa_gt.nii.gz").unlink()
    with raises("cases-unmatched", naming=tested.name):
        write_volumes(plan_volumes(source), tmp_path / "other")


@pytest.mark.parametrize(
    ("old", "new", "code", "named"),
    [
        ("External code", "Code", "list-form", "External code"),
        (f"{PATIENTS[0]},", "X9X9X9,", "list-incomplete", PATIENTS[0]),
        (f"{PATIENTS[1]},", f"{PATIENTS[0]},", "list-twice", PATIENTS[0]),
        (",1,0,3\n", ",1,,3\n", "list-form", "line 2"),
        (",1,0,3\n", ",,0,3\n", "list-form", "line 2"),
    ],
)
def test_a_table_of_another_form_is_refused(tmp_path: Path, old: str, new: str, code: str, named: str) -> None:
    source = write_hearts(tmp_path)
    text = table(source).read_text(encoding="utf-8")
    assert old in text
    table(source).write_text(text.replace(old, new, 1), encoding="utf-8")
    with raises(code, naming=named):
        plan_volumes(source)


def test_frames_counted_from_1_and_frames_that_are_not_there_are_refused(tmp_path: Path) -> None:
    source = write_hearts(tmp_path / "in")
    text = table(source).read_text(encoding="utf-8")
    for wrong in (",1,3\n", ",0,4\n"):
        table(source).write_text(text.replace(",0,3\n", wrong), encoding="utf-8")
        with raises("scans-damaged", naming=f"{PATIENTS[0]}_sa"):
            write_volumes(plan_volumes(source), tmp_path / "out")
    table(source).write_text(text.replace(",0,3\n", ",1,3\n"), encoding="utf-8")
    with raises("mask-empty", naming="_ED"):
        write_volumes(plan_volumes(source), tmp_path / "out", empty=True)


def test_what_is_no_such_download_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    source = write_hearts(tmp_path / "in")
    shutil.copy(table(source), source / "Training" / table(source).name)
    with raises("other-data", naming="2 table(s)"):
        plan_volumes(source)
    with raises("other-data", naming="A0A1A0"):
        plan_volumes(source / "Validation")
