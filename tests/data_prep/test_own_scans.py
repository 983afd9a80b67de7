from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk
from errors import raises
from scanfiles import prepare_prostate, volume, write_described, write_dicom, write_pair, zones

from data_prep import volumes
from data_prep.own_scans import prepare_own
from data_prep.phantom import make_phantom
from fedshift.cli import data
from fedshift.cli.arguments import Parser
from fedshift.data.arrays import open_arrays
from fedshift.data.check import check
from fedshift.data.prepared import read_images, read_labels
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.manifest import FILE_NAME, read_manifest


def scan(folder: Path, case: str, seed: int, *, suffix: str = ".nii.gz") -> None:
    """One case in ``images`` and ``masks``; ``dicom`` as suffix gives a folder with a series."""
    image, mask = volume(seed)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    (folder / "masks").mkdir(exist_ok=True)
    if suffix == "dicom":
        write_dicom(folder / "images" / case, image)
    else:
        sitk.WriteImage(image, str(folder / "images" / f"{case}{suffix}"))
    sitk.WriteImage(mask, str(folder / "masks" / f"{case}{'.nii.gz' if suffix == 'dicom' else suffix}"))


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    for k, suffix in enumerate([".nii.gz", ".nrrd", ".mha", ".mhd", "dicom", ".nii"]):
        scan(tmp_path, f"P{k}", k, suffix=suffix)
    return tmp_path


def prepare(folder: Path, **options: object) -> Path:
    return own(folder / "images", folder / "masks", folder / "out", **options)


def own(images: Path | None, masks: Path | None, out: Path, site: str = "clinic", **options: object) -> Path:
    """Own scans for the prostate task."""
    defaults: dict[str, object] = {"dataset": "prostate", "classes": ("background", "prostate"), **options}
    return prepare_own(images, masks, site, out, **defaults)  # type: ignore[arg-type]


def splits(site: Path) -> dict[str, str]:
    return {case.id: case.split for case in read_manifest(site).cases}


def test_every_format(hospital: Path) -> None:
    site = prepare(hospital, matrices=[24])
    manifest = read_manifest(site)
    assert site == hospital / "out" / "prostate" / "clinic"
    assert [case.id for case in manifest.cases] == [f"P{k}" for k in range(6)]
    assert [list(splits(site).values()).count(split) for split in ("train", "val", "test")] == [4, 1, 1]
    assert manifest.kind == "patients"
    slices = open_arrays(site, matrix=24)
    for case in manifest.cases:
        part = slice(case.offset, case.offset + case.shape[0])
        assert case.shape == (9, 20, 24) and case.spacing == (3.0, 0.8, 0.7)
        assert slices.images[part][slices.labels[part] > 0].min() > 200, case.id
    assert check(site) == []
    assert str(hospital) not in (site / "manifest.json").read_text(encoding="utf-8")


def test_masks_beside_the_images_and_with_endings(tmp_path: Path) -> None:
    for k in range(3):
        write_pair(tmp_path / "scans", f"P{k}", seed=k, ending="_seg")
    site = own(tmp_path / "scans", tmp_path / "scans", tmp_path / "out")
    assert sorted(splits(site)) == ["P0", "P1", "P2"]


def test_later_cases_leave_the_others_in_their_splits(hospital: Path) -> None:
    site = prepare(hospital, matrices=[24])
    before = splits(site)
    old = open_arrays(site, matrix=24).images.copy()
    for k in range(6, 10):
        scan(hospital, f"A{k}", k)
    prepare(hospital)
    after = splits(site)
    assert {case: after[case] for case in before} == before and len(after) == 10
    assert [list(after.values()).count(split) for split in ("train", "val", "test")] == [6, 2, 2]
    # cached sizes are kept up to date, and the old slices are where they were
    assert (site / "arrays" / "24").is_dir()
    np.testing.assert_array_equal(open_arrays(site, matrix=24).images[: len(old)], old)
    assert check(site) == []


def test_new_folder_with_new_cases_only(hospital: Path, tmp_path: Path) -> None:
    site = prepare(hospital)
    before = splits(site)
    for k in (20, 21):
        scan(tmp_path / "later", f"N{k}", k)
    own(tmp_path / "later" / "images", tmp_path / "later" / "masks", hospital / "out")
    assert {case: splits(site)[case] for case in before} == before and len(splits(site)) == 8


@pytest.mark.slow
def test_sessions_of_a_subject_stay_together(tmp_path: Path) -> None:
    """Also where a site that has them in two splits is mended, as ``data check`` says."""
    for k in range(8):
        scan(tmp_path, f"sub-{k}_ses-1", k)
    site = prepare(tmp_path)
    before = splits(site)
    for k in range(8):
        scan(tmp_path, f"sub-{k}_ses-2", 10 + k)
    prepare(tmp_path)
    together = splits(site)
    assert {case: together[case] for case in before} == before
    assert all(together[f"sub-{k}_ses-2"] == before[f"sub-{k}_ses-1"] for k in range(8))
    assert {*together.values()} == {"train", "val", "test"} and check(site) == []

    case = next(case for case in before if before[case] == "train").replace("ses-1", "ses-2")
    text = (site / FILE_NAME).read_text(encoding="utf-8")
    manifest = json.loads(text)
    next(each for each in manifest["cases"] if each["id"] == case)["split"] = "test"
    (site / FILE_NAME).write_text(json.dumps(manifest), encoding="utf-8")
    (finding,) = check(site)
    assert finding.level == "error" and f"withdraw {case} and add" in finding.remedy
    own(None, None, tmp_path / "out", withdraw=[case])
    prepare(tmp_path)
    assert splits(site) == together and check(site) == []


def test_repeating_changes_nothing(hospital: Path) -> None:
    site = prepare(hospital, matrices=[16])
    before = {file: file.read_bytes() for file in site.rglob("*") if file.is_file()}
    prepare(hospital)
    assert {file: file.read_bytes() for file in site.rglob("*") if file.is_file()} == before


def test_withdrawn_case_is_gone(hospital: Path) -> None:
    site = prepare(hospital, matrices=[24])
    before = splits(site)
    case = read_manifest(site).cases[2]
    gone = open_arrays(site, matrix=24).images[case.offset : case.offset + case.shape[0]].copy()
    own(None, None, hospital / "out", withdraw=["P2"])
    assert splits(site) == {other: split for other, split in before.items() if other != "P2"}
    slices = open_arrays(site, matrix=24)
    assert len(slices.images) == 5 * 9
    assert not any(np.array_equal(slices.images[k], gone[4]) for k in range(len(slices.images)))
    assert not [file for file in (hospital / "out").rglob("*") if "P2" in file.name]
    assert "P2" not in (site / "manifest.json").read_text(encoding="utf-8")
    assert [entry.name for entry in site.parent.iterdir()] == ["clinic"]
    assert check(site) == []


def test_a_case_can_be_taken_out_of_the_folders_and_withdrawn(hospital: Path) -> None:
    prepare(hospital)
    (hospital / "images" / "P2.mha").unlink()
    (hospital / "masks" / "P2.mha").unlink()
    assert "P2" not in splits(prepare(hospital, withdraw=["P2"]))


def test_corrected_mask_replaces_the_former(hospital: Path) -> None:
    site = prepare(hospital, matrices=[24])
    before, offset = splits(site), read_manifest(site).cases[1].offset
    path = hospital / "masks" / "P1.nrrd"
    mask = sitk.ReadImage(str(path))
    mask[:, :, 0] = 1
    sitk.WriteImage(mask, str(path))
    assert not open_arrays(site, matrix=24).labels[offset].any()
    prepare(hospital)
    assert open_arrays(site, matrix=24).labels[offset].any()
    assert splits(site) == before


FAULTS: dict[str, tuple[Callable[[Path], object], dict[str, object], str]] = {
    "missing mask": (lambda d: (d / "masks" / "P1.nrrd").unlink(), {}, r"P1\.nrrd has no mask: add P1 "),
    "extra mask": (lambda d: (d / "images" / "P1.nrrd").unlink(), {}, r"P1\.nrrd is a mask without an image P1"),
    "another patient under a known id": (
        lambda d: sitk.WriteImage(volume(99)[0], str(d / "images" / "P1.nrrd")),
        {},
        r"P1\.nrrd differs from the image that the site has as P1",
    ),
    "same patient under a new id": (lambda d: scan(d, "P9", 0), {}, r"P9\.nii\.gz has the same voxels as case P0"),
    "unknown id": (lambda d: None, {"withdraw": ["P77"]}, "has no case 'P77' to withdraw.*Known: P0"),
    "withdrawn but still there": (lambda d: None, {"withdraw": ["P2"]}, r"P2 is to be withdrawn .*images"),
    "damaged scan": (
        lambda d: scan(d, "P9", 9) or (d / "images" / "P9.nii.gz").write_bytes(b"x" * 400),
        {},
        r"P9\.nii\.gz cannot be read",
    ),
    "loose DICOM": (
        lambda d: (d / "images" / "slice.dcm").write_bytes(b"x"),
        {},
        r"1 loose DICOM .*slice\.dcm: .* sub-folder",
    ),
    "bad name": (
        lambda d: [
            (f.rename(f.with_name("~P0.nii.gz"))) for f in (d / "images" / "P0.nii.gz", d / "masks" / "P0.nii.gz")
        ],
        {},
        "case name '~P0' cannot be a file name",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_leave_the_site_as_it_was(hospital: Path, fault: str) -> None:
    site = prepare(hospital, matrices=[16])
    before = {file: file.read_bytes() for file in site.rglob("*") if file.is_file()}
    spoil, options, words = FAULTS[fault]
    spoil(hospital)
    with pytest.raises(DataError, match=words):
        prepare(hospital, **options)
    assert {file: file.read_bytes() for file in site.rglob("*") if file.is_file()} == before
    assert [entry.name for entry in site.parent.iterdir()] == ["clinic"]


@pytest.mark.parametrize("name", ["Köln", "Bad Ems", "-A", "A/B", ""])
@pytest.mark.parametrize("kind", ["site", "dataset"])
def test_a_name_that_no_job_takes_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    scan(tmp_path, "P0", 0)
    with raises("site-name", naming=(kind, repr(name))):
        prepare(tmp_path, **{kind: name})
    assert not (tmp_path / "out").exists()


def test_interruption_leaves_nothing_half_finished(hospital: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = prepare(hospital)
    scan(hospital, "P9", 9)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(volumes, "build_arrays", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare(hospital, matrices=[16])
    assert [entry.name for entry in site.parent.iterdir()] == ["clinic"] and "P9" not in splits(site)


def test_rename_that_fails_puts_the_former_site_back(hospital: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = prepare(hospital)
    scan(hospital, "P9", 9)
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name.startswith(".clinic.partial"):
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with raises("folder-unwritable", naming="No space left"):
        prepare(hospital)
    assert [entry.name for entry in site.parent.iterdir()] == ["clinic"] and "P9" not in splits(site)


def one_damaged(folder: Path) -> None:
    scan(folder, "P0", 0)
    (folder / "images" / "P0.nii.gz").write_bytes(b"")


def one_prepared(folder: Path) -> None:
    scan(folder, "P0", 0)
    prepare(folder)


def one_beside_simulated(folder: Path) -> None:
    scan(folder, "P0", 0)
    make_phantom(folder / "out", sites=["UCL"], cases=1, matrices=())


REFUSED: dict[str, tuple[Callable[[Path], object], Callable[[Path], object], type[Exception], str]] = {
    "nothing given": (lambda d: None, lambda d: own(None, None, d / "out"), DataError, "left without a case"),
    "no masks": (lambda d: None, lambda d: own(d, None, d / "out"), ConfigError, "--images and --masks"),
    "no such folder": (
        lambda d: None,
        lambda d: own(d / "nowhere", d, d / "out"),
        DataError,
        "nowhere is not a folder",
    ),
    "its last case withdrawn": (
        one_prepared,
        lambda d: own(None, None, d / "out", withdraw=["P0"]),
        DataError,
        "left without a case",
    ),
    "no sound case": (one_damaged, lambda d: prepare(d, skip_damaged=True), DataError, r"1 error\(s\) in its scans"),
    "simulated scans there": (
        one_beside_simulated,
        lambda d: own(d / "images", d / "masks", d / "out", "UCL"),
        DataError,
        "UCL holds simulated scans",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_no_site_is_made_of(fault: str, tmp_path: Path) -> None:
    before, call, error, words = REFUSED[fault]
    before(tmp_path)
    with pytest.raises(error, match=words):
        call(tmp_path)


def test_own_scans_join_the_cases_of_a_public_set(hospital: Path, tmp_path: Path) -> None:
    for k in range(3):
        write_pair(tmp_path / "raw" / "HK", f"Case{k:02d}", seed=50 + k)
    (site,) = prepare_prostate(tmp_path / "raw", tmp_path / "out")
    public, before = read_manifest(site), splits(site)
    for _ in range(2):
        own(hospital / "images", hospital / "masks", tmp_path / "out", "HK", licence="ours")
        manifest = read_manifest(site)
        assert len(manifest.cases) == 9 and {case: splits(site)[case] for case in before} == before
        assert manifest.preparation["source"] == f"{public.preparation['source']}, and own scans"
        assert manifest.licence == f"{public.licence}; own scans: ours"
        assert manifest.citation == public.citation and manifest.classes == public.classes
    assert check(site) == []
    with raises("folder-in-use", naming="HK"):
        prepare_prostate(tmp_path / "raw", tmp_path / "out")
    own(None, None, tmp_path / "out", "HK", withdraw=["P0"])
    assert read_manifest(site).licence.endswith("ours")


# Classes


def zoned(folder: Path, *, values: tuple[int, int] = (1, 2), cases: int = 3) -> Path:
    """Scans whose masks have two zones."""
    (folder / "images").mkdir(parents=True)
    (folder / "masks").mkdir()
    for k in range(cases):
        image, mask = volume(k)
        sitk.WriteImage(image, str(folder / "images" / f"P{k}.nii.gz"))
        sitk.WriteImage(zones(mask, values), str(folder / "masks" / f"P{k}.nii.gz"))
    return folder


def two(folder: Path, **options: object) -> Path:
    defaults: dict[str, object] = {"dataset": "pelvis", "classes": None, **options}
    return own(folder / "images", folder / "masks", folder / "out", **defaults)


def test_values_get_the_classes_that_are_named(tmp_path: Path) -> None:
    site = two(zoned(tmp_path, values=(4, 7)), labels={"outer": [7], "inner": [4]})
    manifest = read_manifest(site)
    assert manifest.classes == ("background", "outer", "inner") and manifest.dataset == "pelvis"
    assert manifest.preparation["labels"] == {"outer": [7], "inner": [4]}
    stored = sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / "masks" / "P0.nii.gz")))
    prepared = read_labels(site, manifest.cases[0])
    assert (prepared == 1).sum() == (stored == 7).sum() > 0 and (prepared == 2).sum() == (stored == 4).sum() > 0
    assert check(site) == []


def test_values_that_had_another_meaning_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = zoned(tmp_path, values=(4, 7))
    two(folder, labels={"outer": [7], "inner": [4]})
    two(folder, labels={"inner": [4], "outer": [7]})
    assert "another meaning" not in caplog.text
    two(folder, labels={"outer": [4], "inner": [7]})
    assert "4 was inner and is outer, 7 was outer and is inner" in caplog.text


def test_a_site_that_keeps_its_order_of_classes_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = zoned(tmp_path, values=(4, 7))
    site = two(folder, labels={"outer": [7], "inner": [4]})
    two(folder, labels={"outer": [7], "inner": [4]})
    assert "order" not in caplog.text
    two(folder, labels={"inner": [4], "outer": [7]})
    assert read_manifest(site).classes == ("background", "outer", "inner")
    assert str(site) in caplog.text and "inner, outer" in caplog.text


def test_later_cases_need_no_names_again(tmp_path: Path) -> None:
    site = two(zoned(tmp_path, values=(4, 7)), labels={"outer": [7], "inner": [4]})
    zoned(tmp_path / "more", values=(4, 7), cases=5)
    for k in range(3):
        (tmp_path / "more" / "images" / f"P{k}.nii.gz").unlink()
        (tmp_path / "more" / "masks" / f"P{k}.nii.gz").unlink()
    own(tmp_path / "more" / "images", tmp_path / "more" / "masks", tmp_path / "out", dataset="pelvis", classes=None)
    manifest = read_manifest(site)
    assert len(manifest.cases) == 5 and set(np.unique(read_labels(site, manifest.cases[4]))) == {0, 1, 2}
    assert manifest.preparation["labels"] == {"outer": [7], "inner": [4]}
    with raises("other-classes", naming="clinic"):
        own(None, None, tmp_path / "out", dataset="pelvis", withdraw=["P0"])
        own(tmp_path / "images", tmp_path / "masks", tmp_path / "out", dataset="pelvis")


def test_zones_are_merged_if_it_is_asked_for(tmp_path: Path) -> None:
    zoned(tmp_path)
    site = own(tmp_path / "images", tmp_path / "masks", tmp_path / "out", labels={"prostate": [1, 2]})
    assert set(np.unique(read_labels(site, read_manifest(site).cases[0]))) == {0, 1}


def test_a_site_that_outlines_some_of_the_classes(tmp_path: Path) -> None:
    zoned(tmp_path, values=(1, 1))
    site = two(tmp_path, labels={"outer": [1]}, classes=("background", "inner", "outer"), annotated=["outer"])
    manifest = read_manifest(site)
    assert manifest.classes == ("background", "inner", "outer") and manifest.annotated == ("outer",)
    assert set(np.unique(read_labels(site, manifest.cases[0]))) == {0, 2}
    assert check(site) == []
    mask = site / "volumes" / "P1_mask.nii.gz"
    sitk.WriteImage(sitk.Cast(sitk.ReadImage(str(mask)) > 0, sitk.sitkUInt8), str(mask))
    (finding,) = check(site)
    assert finding.code == "mask-values" and "2 outer" in finding.remedy


def test_the_classes_that_masks_outline_are_corrected_by_giving_all_cases_again(tmp_path: Path) -> None:
    zoned(tmp_path, values=(1, 1))
    classes = ("background", "outer", "inner zone")
    site = two(tmp_path, labels={"outer": [1], "inner zone": [2]}, classes=classes)
    before = splits(site)
    given: dict[str, object] = {"classes": classes, "labels": {"outer": [1]}, "annotated": ["outer"]}
    masks = tmp_path / "masks" / "P1.nii.gz"
    masks.rename(tmp_path / "P1.nii.gz")
    (tmp_path / "images" / "P1.nii.gz").rename(tmp_path / "image.nii.gz")
    with raises("other-classes", naming="--annotated"):
        two(tmp_path, **given)
    assert read_manifest(site).annotated is None
    (tmp_path / "P1.nii.gz").rename(masks)
    (tmp_path / "image.nii.gz").rename(tmp_path / "images" / "P1.nii.gz")
    two(tmp_path, **given)
    assert read_manifest(site).annotated == ("outer",) and splits(site) == before and check(site) == []
    two(tmp_path)
    assert read_manifest(site).annotated == ("outer",), "a later call need not say it again"
    two(tmp_path, labels={"outer": [1], "inner zone": [2]}, annotated=["outer", "inner zone"])
    assert read_manifest(site).annotated == ("outer", "inner zone")


WRONG_LABELS: dict[str, tuple[dict[str, object], type[Exception], str]] = {
    "nothing said": ({}, ConfigError, r"/masks have the value\(s\) 1, 2, .*--label NAME=1 .*merge .*NAME=1,2"),
    "not in the task": (
        {"labels": {"otter": [1]}, "classes": ("background", "outer")},
        ConfigError,
        "--label has 'otter', which is none of the classes outer",
    ),
    "two zones of one class": (
        {"dataset": "prostate", "classes": ("background", "prostate")},
        DataError,
        r"P0\.nii\.gz has unknown label\(s\) 2: .*--label prostate=1,2",
    ),
    "a class without a value": (
        {"labels": {"outer": [1]}, "classes": ("background", "inner", "outer")},
        ConfigError,
        "no value .*for inner: .*--annotated",
    ),
    "one value twice": ({"labels": {"a": [1], "b": [1, 2]}}, ConfigError, "value 1 stands for a and for b"),
    "background": ({"labels": {"a": [0]}}, ConfigError, "0 cannot stand for a"),
    "no name": ({"labels": {"=cmd": [1]}}, ConfigError, "cannot be the name of a class"),
    "annotated": ({"labels": {"a": [1, 2]}, "annotated": ["b"]}, ConfigError, "--annotated names 'b'"),
    "cached slices": ({"labels": {"a": [1], "b": [2]}, "matrices": [16]}, DataError, "leave out --matrix"),
}


@pytest.mark.parametrize("fault", WRONG_LABELS)
def test_labels_that_do_not_fit(tmp_path: Path, fault: str) -> None:
    options, error, words = WRONG_LABELS[fault]
    zoned(tmp_path)
    with pytest.raises(error, match=words):
        two(tmp_path, **options)
    assert not list(tmp_path.glob("out/*/clinic"))


def test_a_class_that_no_case_has_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = two(zoned(tmp_path, values=(1, 1)), labels={"outer": [1], "inner": [2]})
    assert "inner" in caplog.text
    (finding,) = check(site)
    assert finding.level == "warning" and finding.code == "class-missing" and "inner" in finding.message


# Cases with an error


def test_damaged_cases_are_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for k in range(5):
        scan(tmp_path, f"P{k}", k)
    (tmp_path / "images" / "P1.nii.gz").write_bytes(b"x" * 400)
    (tmp_path / "masks" / "P3.nii.gz").unlink()
    with pytest.raises(DataError, match="P3"):
        prepare(tmp_path)
    site = prepare(tmp_path, skip_damaged=True)
    assert sorted(splits(site)) == ["P0", "P2", "P4"]
    assert set(splits(site).values()) == {"train", "val", "test"}
    assert read_manifest(site).preparation["cases_left_out_as_damaged"] == 2
    assert (
        "left out: " in caplog.text
        and "P1.nii.gz cannot be read" in caplog.text
        and "P3.nii.gz has no mask" in caplog.text
    )
    assert not list(site.rglob("P1*")) and check(site) == []
    for k in (1, 3):
        scan(tmp_path, f"P{k}", k)
    assert len(splits(prepare(tmp_path))) == 5
    assert "cases_left_out_as_damaged" not in read_manifest(site).preparation


def two_masks_in_two_folders(folder: Path) -> dict[str, Path]:
    scan(folder, "P0_seg", 9)
    (folder / "images" / "P0_seg.nii.gz").unlink()
    return {"images": folder / "images", "masks": folder / "masks"}


def two_scans_in_two_folders(folder: Path) -> dict[str, Path]:
    sitk.WriteImage(volume(9)[0], str(folder / "images" / "P0.nrrd"))
    return {"images": folder / "images", "masks": folder / "masks"}


def two_masks_by_pattern(folder: Path) -> dict[str, Path]:
    (folder / "masks" / "more").mkdir()
    sitk.WriteImage(volume(9)[1], str(folder / "masks" / "more" / "P0.nii.gz"))
    return {"source": folder, "images": Path("images/*.nii.gz"), "masks": Path("masks/**/*.nii.gz")}


def two_scans_by_pattern(folder: Path) -> dict[str, Path]:
    return {**two_scans_in_two_folders(folder), "source": folder, "images": Path("images/*"), "masks": Path("masks/*")}


def two_masks_in_a_case_folder(folder: Path) -> dict[str, Path]:
    for k in range(4):
        (folder / "cases" / f"P{k}").mkdir(parents=True)
        (folder / "images" / f"P{k}.nii.gz").rename(folder / "cases" / f"P{k}" / "T2.nii.gz")
        (folder / "masks" / f"P{k}.nii.gz").rename(folder / "cases" / f"P{k}" / "mask.nii.gz")
    sitk.WriteImage(volume(9)[1], str(folder / "cases" / "P0" / "label.nii.gz"))
    return {"source": folder / "cases"}


@pytest.mark.parametrize(
    "lay",
    [
        two_masks_in_two_folders,
        two_scans_in_two_folders,
        two_masks_by_pattern,
        two_scans_by_pattern,
        two_masks_in_a_case_folder,
    ],
)
def test_a_case_with_two_scans_or_masks_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lay: Callable[[Path], dict[str, Path]]
) -> None:
    """… and is not prepared with whichever file comes first."""
    for k in range(4):
        scan(tmp_path, f"P{k}", k)
    given: dict[str, Any] = {"images": None, "masks": None} | lay(tmp_path)
    site = prepare_own(**given, site="A", root=tmp_path / "out", dataset="d", labels={"a": [1]}, skip_damaged=True)
    assert sorted(splits(site)) == ["P1", "P2", "P3"] and caplog.text.count("left out: ") == 1
    assert read_manifest(site).preparation["cases_left_out_as_damaged"] == 1


def test_a_case_that_two_parts_of_a_download_have_is_left_out_once(tmp_path: Path) -> None:
    for part, cases in (("Part1", ("P0", "P1")), ("Part2", ("P0", "P2"))):
        for number, case in enumerate(cases):
            write_pair(tmp_path / "raw" / f"Data_{part}", case, seed=len(part) + number + 7 * (part == "Part2"))
    options: dict[str, Any] = {"dataset": "d", "labels": {"a": [1]}, "source": tmp_path / "raw", "skip_damaged": True}
    site = prepare_own(None, None, "A", tmp_path / "out", **options)
    assert sorted(splits(site)) == ["P1", "P2"]
    assert read_manifest(site).preparation["cases_left_out_as_damaged"] == 1


def test_a_case_that_the_site_has_is_not_lost_as_damaged(hospital: Path) -> None:
    site = prepare(hospital)
    (hospital / "images" / "P1.nrrd").write_bytes(b"x" * 400)
    with raises("scans-damaged", naming=("the site has P1", "P1.nrrd")):
        prepare(hospital, skip_damaged=True)
    (hospital / "images" / "P1.nrrd").unlink()
    (hospital / "masks" / "P1.nrrd").unlink()
    assert prepare(hospital) == site and "P1" in splits(site)


@pytest.mark.parametrize("skip_damaged", [False, True])
@pytest.mark.parametrize("options", [{}, {"dataset": "pelvis", "classes": None}], ids=["task", "no labels"])
def test_names_that_do_not_match_are_listed(tmp_path: Path, options: dict[str, object], skip_damaged: bool) -> None:
    for k in range(2):
        scan(tmp_path, f"P{k}", k)
        (tmp_path / "masks" / f"P{k}.nii.gz").rename(tmp_path / "masks" / f"P{k}-roi.nii.gz")
    with raises("cases-unmatched", naming=("P0.nii.gz", "P1-roi.nii.gz")):
        prepare(tmp_path, skip_damaged=skip_damaged, **options)


# Sequences


def test_repeating_with_trusted_voxels_changes_nothing(tmp_path: Path) -> None:
    """… where the header of the second sequence is mirrored, so that its voxels alone would be turned otherwise."""
    source = write_described(tmp_path / "set", sequences=("T2", "ADC"), style="nnunet")
    for file in (source / "imagesTr").glob("*_0001.nii.gz"):
        image = sitk.ReadImage(str(file))
        image.SetDirection((1, 0, 0, 0, -1, 0, 0, 0, 1))
        sitk.WriteImage(image, str(file))
    options: dict[str, object] = {"dataset": "d", "classes": None, "source": source, "trust_voxels": True}
    site = own(None, None, tmp_path / "out", **options)
    before = {file: file.read_bytes() for file in site.rglob("*") if file.is_file()}
    own(None, None, tmp_path / "out", **options)
    assert {file: file.read_bytes() for file in site.rglob("*") if file.is_file()} == before
    image = source / "imagesTr" / "case_1_0001.nii.gz"
    sitk.WriteImage(sitk.ReadImage(str(image)) + 1, str(image))
    with raises("case-changed", naming="case_1_0000.nii.gz"):
        own(None, None, tmp_path / "out", **options)


def test_sequences_are_kept_side_by_side(tmp_path: Path) -> None:
    write_described(tmp_path / "set", sequences=("T2", "ADC"), classes=("outer", "inner"), style="nnunet")
    site = own(None, None, tmp_path / "out", dataset="pelvis", classes=None, source=tmp_path / "set")
    manifest = read_manifest(site)
    assert manifest.sequences == ("T2", "ADC") and manifest.classes == ("background", "outer", "inner")
    assert sorted(file.name for file in (site / "volumes").glob("case_0*")) == [
        "case_0_0000.nii.gz",
        "case_0_0001.nii.gz",
        "case_0_mask.nii.gz",
    ]
    t2, adc = read_images(site, manifest, manifest.cases[0])
    assert t2.shape == adc.shape == manifest.cases[0].shape and np.corrcoef(t2.ravel(), adc.ravel())[0, 1] < -0.9
    assert check(site) == []
    own(None, None, tmp_path / "out", dataset="pelvis", classes=None, withdraw=["case_0"])
    assert not list((site / "volumes").glob("case_0_*")) and {finding.code for finding in check(site)} == {
        "split-empty"
    }
    with raises("other-sequences", naming="ADC"):
        own(
            None,
            None,
            tmp_path / "out",
            dataset="pelvis",
            classes=None,
            source=tmp_path / "set",
            sequences={"T2": ""},
        )


def test_a_changed_or_swapped_sequence_is_found(tmp_path: Path) -> None:
    write_described(tmp_path / "set", sequences=("T2", "ADC"), style="nnunet")
    site = own(None, None, tmp_path / "out", dataset="pelvis", classes=None, source=tmp_path / "set")
    first, second = (site / "volumes" / f"case_1_000{number}.nii.gz" for number in range(2))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    (finding,) = check(site)
    assert finding.file == first and finding.code == "files-changed"
    second.unlink()
    (finding,) = check(site)
    assert finding.file == second and finding.code == "file-missing" and "ADC of case case_1" in finding.message


TAKEN: dict[str, tuple[tuple[str, ...], list[str], str]] = {
    "one of several": (
        (),
        [],
        r"has the sequence\(s\) T2, ADC, and the task takes one: choose it, as in --sequence T2",
    ),
    "another": (("DWI",), [], r"has the sequence\(s\) T2, ADC, and the task takes DWI: prepare it with --sequence DWI"),
    "one more": (("T2", "ADC"), ["T2"], r"and the task takes T2, ADC: prepare it with --sequence T2 --sequence ADC"),
}


@pytest.mark.parametrize("case", TAKEN)
def test_sequences_that_the_task_cannot_take_are_refused(tmp_path: Path, case: str) -> None:
    wanted, chosen, words = TAKEN[case]
    source = write_described(tmp_path / "set", sequences=("T2", "ADC"), style="nnunet")
    given: dict[str, object] = {"source": source, "wanted": wanted, "sequences": dict.fromkeys(chosen, "")}
    with pytest.raises(DataError, match=words):
        own(None, None, tmp_path / "out", labels={"prostate": [1]}, **given)
    assert not (tmp_path / "out").exists()
    (finding,) = check(source, wanted=wanted, sequences=dict.fromkeys(chosen, ""))
    assert finding.level == "error" and re.search(words, finding.sentence())


def test_sequences_are_spelled_as_the_task_does(tmp_path: Path) -> None:
    source = write_described(tmp_path / "set", sequences=("t2", "adc"), style="nnunet")
    given: dict[str, object] = {"source": source, "labels": {"prostate": [1]}}
    assert check(source, wanted=("T2",)) == []
    site = own(None, None, tmp_path / "out", wanted=("T2",), **given)
    assert read_manifest(site).sequences == ("T2", "adc")
    assert check(site, wanted=("T2",)) == []
    (finding,) = check(site, wanted=("ADC",))
    assert finding.level == "error" and finding.code == "other-sequences" and "T2, adc" in finding.message
    own(None, None, tmp_path / "out", **given)
    assert read_manifest(site).sequences == ("T2", "adc")
    own(None, None, tmp_path / "out", wanted=("ADC", "T2"), **given)
    assert read_manifest(site).sequences == ("T2", "ADC"), "also of a site that is there already"


def test_a_sequence_without_a_name_is_named_later(hospital: Path) -> None:
    with raises("other-sequences", naming="--seq"):
        prepare(hospital, wanted=("T2",))
    site = prepare(hospital)
    prepare(hospital, sequences={"T2": ""}, wanted=("T2",))
    assert read_manifest(site).sequences == ("T2",) and check(site) == []
    with raises("other-sequences", naming="ADC"):
        prepare(hospital, sequences={"ADC": ""})


def test_command(hospital: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser()
    data.add_arguments(parser)

    def run(line: str) -> int:
        args = parser.parse_args(
            f"prepare own --dataset prostate --site clinic --out {hospital / 'out'} {line}".split()
        )
        return int(args.func(args))

    assert run(f"--images {hospital / 'images'} --masks {hospital / 'masks'} --matrix 16") == 0
    assert "clinic: 6 case(s) (4 train, 1 val, 1 test)" in capsys.readouterr().out
    assert run("--withdraw P1 P3") == 0
    assert "clinic: 4 case(s)" in capsys.readouterr().out
