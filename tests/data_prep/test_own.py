from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from scanfiles import volume, write_dicom, write_pair

from data_prep import volumes
from data_prep.own import prepare_own
from data_prep.prostate import prepare_prostate
from fedshift.cli import data
from fedshift.data.arrays import open_arrays
from fedshift.data.check import check
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import read_manifest


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
    return prepare_own(folder / "images", folder / "masks", "clinic", folder / "out", **options)  # type: ignore[arg-type]


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
    site = prepare_own(tmp_path / "scans", tmp_path / "scans", "clinic", tmp_path / "out")
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
    prepare_own(tmp_path / "later" / "images", tmp_path / "later" / "masks", "clinic", hospital / "out")
    assert {case: splits(site)[case] for case in before} == before and len(splits(site)) == 8


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
    prepare_own(None, None, "clinic", hospital / "out", withdraw=["P2"])
    assert splits(site) == {other: split for other, split in before.items() if other != "P2"}
    slices = open_arrays(site, matrix=24)
    assert len(slices.images) == 5 * 9
    assert not any(np.array_equal(slices.images[k], gone[4]) for k in range(len(slices.images)))
    assert not [file for file in (hospital / "out").rglob("*") if "P2" in file.name]
    assert "P2" not in (site / "manifest.json").read_text(encoding="utf-8")
    assert [entry.name for entry in site.parent.iterdir()] == ["clinic"]
    assert check(site) == []


def test_withdrawn_case_that_would_come_back(hospital: Path) -> None:
    prepare(hospital)
    with pytest.raises(DataError, match=r"P2 is to be withdrawn but is still in .*images"):
        prepare(hospital, withdraw=["P2"])
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
    "missing mask": (lambda d: (d / "masks" / "P1.nrrd").unlink(), {}, r"P1\.nrrd has no mask: add P1 in the folder"),
    "extra mask": (lambda d: (d / "images" / "P1.nrrd").unlink(), {}, r"P1\.nrrd is a mask without an image P1"),
    "another patient under a known id": (
        lambda d: sitk.WriteImage(volume(99)[0], str(d / "images" / "P1.nrrd")),
        {},
        r"P1\.nrrd differs from the image that the site has as P1",
    ),
    "same patient under a new id": (lambda d: scan(d, "P9", 0), {}, r"P9\.nii\.gz has the same voxels as case P0"),
    "unknown id": (lambda d: None, {"withdraw": ["P77"]}, "has no case 'P77' to withdraw.*Known: P0"),
    "damaged scan": (
        lambda d: scan(d, "P9", 9) or (d / "images" / "P9.nii.gz").write_bytes(b"x" * 400),
        {},
        r"P9\.nii\.gz cannot be read",
    ),
    "loose DICOM": (
        lambda d: (d / "images" / "slice.dcm").write_bytes(b"x"),
        {},
        r"1 loose DICOM file\(s\) such as slice\.dcm: put the slices of each series into a sub-folder",
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
    with pytest.raises(DataError, match=r"cannot be written .No space left on device."):
        prepare(hospital)
    assert [entry.name for entry in site.parent.iterdir()] == ["clinic"] and "P9" not in splits(site)


def test_last_case_cannot_be_withdrawn(tmp_path: Path) -> None:
    scan(tmp_path, "P0", 0)
    prepare(tmp_path)
    with pytest.raises(DataError, match="would be left without a case"):
        prepare_own(None, None, "clinic", tmp_path / "out", withdraw=["P0"])


def test_nothing_given(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="left without a case"):
        prepare_own(None, None, "clinic", tmp_path / "out")
    with pytest.raises(DataError, match="--images and --masks go together"):
        prepare_own(tmp_path, None, "clinic", tmp_path / "out")
    with pytest.raises(DataError, match="nowhere is not a folder"):
        prepare_own(tmp_path / "nowhere", tmp_path, "clinic", tmp_path / "out")


def test_site_of_a_public_set_is_not_mixed_with_own_scans(hospital: Path, tmp_path: Path) -> None:
    for k in range(3):
        write_pair(tmp_path / "raw" / "HK", f"Case{k:02d}", seed=50 + k)
    prepare_prostate(tmp_path / "raw", tmp_path / "out")
    with pytest.raises(DataError, match=r"HK was prepared from .*Liu.*"):
        prepare_own(hospital / "images", hospital / "masks", "HK", tmp_path / "out")


def test_command(hospital: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    data.add_parsers(parser.add_subparsers())

    def run(line: str) -> int:
        args = parser.parse_args(f"data prepare own --site clinic --out {hospital / 'out'} {line}".split())
        return int(args.func(args))

    assert run(f"--images {hospital / 'images'} --masks {hospital / 'masks'} --matrix 16") == 0
    assert "clinic: 6 case(s) (4 train, 1 val, 1 test)" in capsys.readouterr().out
    assert run("--withdraw P1 P3") == 0
    assert "clinic: 4 case(s)" in capsys.readouterr().out
