from __future__ import annotations

import gzip
import json
import re
import shutil
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk
from errors import raises
from forbidding import forbid
from scanfiles import prepare_prostate, rotation, volume, write_described, write_dicom, write_pair

from data_prep.msd import plan_volumes
from data_prep.own_scans import prepare_own
from data_prep.prostate import GLAND
from data_prep.prostate import plan_volumes as plan_prostate
from data_prep.volumes import CaseFiles, SitePlan, write_site, write_volumes
from fedshift.cli import data, main
from fedshift.cli.arguments import Parser
from fedshift.data.blocks import write_hashes
from fedshift.data.check import check
from fedshift.data.scan_file import Finding
from fedshift.data.scans import file_of
from fedshift.schema.errors import DataError, FedshiftError
from fedshift.schema.manifest import FILE_NAME, read_manifest


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    folder = tmp_path / "raw" / "HK"
    for k in range(3):
        write_pair(folder, f"Case{k:02d}", seed=k)
    return folder


def prepare(scans: Path, root: Path) -> Path:
    cases = [
        CaseFiles(f"Case{k:02d}", (scans / f"Case{k:02d}.nii.gz",), scans / f"Case{k:02d}_segmentation.nii.gz")
        for k in range(3)
    ]
    return write_site(planned("HK", cases), root, dataset="prostate", labels=GLAND, matrices=[16])


def planned(site: str, cases: Sequence[CaseFiles]) -> SitePlan:
    return SitePlan(site=site, cases=tuple(cases), source="tests", licence="none", citation="none")


def edit(path: Path, change: Callable[[np.ndarray], np.ndarray], *, dtype: type | None = None) -> None:
    """Change the voxels of a NIfTI file and keep its header's geometry."""
    image = nibabel.load(path)
    voxels = change(np.asarray(image.dataobj).copy())
    nibabel.save(nibabel.Nifti1Image(voxels.astype(dtype or voxels.dtype), image.affine), path)


def put(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(voxels: np.ndarray) -> np.ndarray:
        voxels[5, 5, 5] = value
        return voxels

    return change


def geometry(path: Path, change: Callable[[sitk.Image], object]) -> None:
    image = sitk.ReadImage(str(path))
    change(image)
    sitk.WriteImage(image, str(path))


def four_d(path: Path) -> None:
    image = sitk.ReadImage(str(path))
    sitk.WriteImage(sitk.JoinSeries([image, image]), str(path))


def colour(path: Path) -> None:
    image = sitk.ReadImage(str(path))
    sitk.WriteImage(sitk.Compose(image, image, image), str(path))


def cut(path: Path, keep: float) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])


def shorten(folder: Path, suffix: str, data: str) -> None:
    """Save a scan as MetaImage, and cut off the end of its voxels."""
    image = folder / IMAGE
    sitk.WriteImage(sitk.ReadImage(str(image)), str(folder / f"Case01{suffix}"))
    image.unlink()
    cut(folder / f"Case01{data}", 0.9)


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def shear(path: Path) -> None:
    image = nibabel.load(path)
    affine = image.affine.copy()
    affine[0, 1] += 0.3
    nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), affine), path)


def remake(path: Path, **options: object) -> None:
    image, mask = volume(1, **options)  # type: ignore[arg-type]
    sitk.WriteImage(image, str(path))
    sitk.WriteImage(mask, str(path.with_name("Case01_segmentation.nii.gz")))


def header(path: Path, at: int, value: float) -> None:
    """Write a number into the header of a NIfTI file: the affine's rows begin at byte 280."""
    content = bytearray(gzip.decompress(path.read_bytes()))
    struct.pack_into("<f", content, at, value)
    path.write_bytes(gzip.compress(content))


def positions(path: Path, change: Callable[[Any], object]) -> None:
    """Change what a NIfTI header says of places."""
    image = nibabel.load(path)
    change(image.header)
    nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), None, image.header), path)


def without_qform(said: Any) -> None:
    said.set_sform(said.get_best_affine(), 2)
    said["qform_code"], said["pixdim"][1:4] = 0, 2.0


def without_codes(said: Any) -> None:
    said["qform_code"] = said["sform_code"] = 0


def sform_elsewhere(said: Any) -> None:
    sform = said.get_best_affine().copy()
    sform[1, 3] += 5
    said.set_sform(sform, 2)


def dangle(path: Path) -> None:
    path.unlink()
    path.symlink_to("../.git/annex/objects/not-fetched.nii.gz")


def claim(path: Path, *shape: int) -> None:
    """Leave a file's voxels as they are, and give its header another shape."""
    content = bytearray(gzip.decompress(path.read_bytes()))
    struct.pack_into("<4h", content, 40, 3, *shape)
    path.write_bytes(gzip.compress(content))


IMAGE, MASK = "Case01.nii.gz", "Case01_segmentation.nii.gz"
ERRORS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "missing mask": (lambda d: (d / MASK).unlink(), IMAGE, "mask-missing"),
    "extra mask": (lambda d: (d / IMAGE).unlink(), MASK, "image-missing Case01"),
    "empty mask": (lambda d: edit(d / MASK, np.zeros_like), MASK, "mask-empty"),
    "negative label": (lambda d: edit(d / MASK, lambda v: put(-1)(v.astype(np.int16))), MASK, "mask-values -1"),
    "fractional label": (lambda d: edit(d / MASK, lambda v: v * 0.5, dtype=np.float32), MASK, "mask-values 0.5"),
    "a few bytes that stand for many gigabytes": (
        lambda d: claim(d / IMAGE, 2000, 2000, 2000),
        IMAGE,
        "too-large 2000 x 2000 x 2000",
    ),
    "NaN in the mask": (
        lambda d: edit(d / MASK, lambda v: np.where(v > 0, np.nan, 0.0), dtype=np.float32),
        MASK,
        "not-finite",
    ),
    "one row less": (
        lambda d: edit(d / MASK, lambda v: v[:, 1:]),
        MASK,
        "mask-grid 24 x 19 x 9 voxels, its image 24 x 20 x 9",
    ),
    "one slice more": (
        lambda d: edit(d / MASK, lambda v: np.concatenate([v, v[:, :, :1]], axis=2)),
        MASK,
        "mask-grid 24 x 20 x 10",
    ),
    "spacing": (
        lambda d: geometry(d / MASK, lambda i: i.SetSpacing((0.7, 0.8, 3.1))),
        MASK,
        "mask-grid spacing by up to 0.1 mm",
    ),
    "origin off by one voxel": (
        lambda d: geometry(d / MASK, lambda i: i.SetOrigin(i.TransformIndexToPhysicalPoint((1, 0, 0)))),
        MASK,
        "mask-grid origin by up to 0.7 mm",
    ),
    "direction": (lambda d: geometry(d / MASK, lambda i: i.SetDirection(rotation(5, 2))), MASK, "mask-grid direction"),
    "mirrored header": (
        lambda d: geometry(d / MASK, lambda i: i.SetDirection((-1, 0, 0, 0, 1, 0, 0, 0, 1))),
        MASK,
        "mask-grid LPS and RPS",
    ),
    "sheared": (lambda d: shear(d / IMAGE), IMAGE, "sheared"),
    "NaN in the affine": (lambda d: header(d / IMAGE, 280, np.nan), IMAGE, "affine"),
    "NaN in the origin": (lambda d: header(d / IMAGE, 292, np.nan), IMAGE, "affine"),
    "NaN in the mask's affine": (lambda d: header(d / MASK, 280, np.nan), MASK, "affine"),
    "singular affine": (lambda d: header(d / IMAGE, 280, 0), IMAGE, "affine"),
    "voxel size of 0": (lambda d: header(d / IMAGE, 88, 0), IMAGE, "affine 1 mm"),
    "negative voxel size": (lambda d: header(d / MASK, 80, -0.7), MASK, "affine -0.7 x 0.8 x 3"),
    "4D image": (lambda d: four_d(d / IMAGE), IMAGE, "several-volumes 24 x 20 x 9 x 2"),
    "4D mask": (lambda d: four_d(d / MASK), MASK, "several-volumes 24 x 20 x 9 x 2"),
    "colour": (lambda d: colour(d / IMAGE), IMAGE, "colour-voxels 3"),
    "two slices": (lambda d: edit(d / IMAGE, lambda v: v[:, :, 3:5]), IMAGE, "too-few-slices 2"),
    "2D": (
        lambda d: sitk.WriteImage(sitk.ReadImage(str(d / IMAGE))[:, :, 4], str(d / IMAGE)),
        IMAGE,
        "too-few-slices 1",
    ),
    "complex": (lambda d: edit(d / IMAGE, np.array, dtype=np.complex64), IMAGE, "complex-voxels"),
    "two voxel sizes": (lambda d: positions(d / IMAGE, without_qform), IMAGE, "voxel-size 0.7 x 0.8 x 3"),
    "mask of two voxel sizes": (lambda d: positions(d / MASK, without_qform), MASK, "voxel-size 2 x 2 x 2"),
    "image not fetched": (lambda d: dangle(d / IMAGE), IMAGE, "file-missing"),
    "mask not fetched": (lambda d: dangle(d / MASK), MASK, "file-missing"),
    "truncated image": (lambda d: cut(d / IMAGE, 0.6), IMAGE, "file-damaged"),
    "checksum cut off": (lambda d: cut(d / MASK, 0.98), MASK, "file-damaged"),
    "damaged byte": (lambda d: flip_byte(d / IMAGE), IMAGE, "file-damaged"),
    "not compressed": (
        lambda d: (d / IMAGE).write_bytes(gzip.decompress((d / IMAGE).read_bytes())),
        IMAGE,
        "compression-name",
    ),
    "compressed": (lambda d: (d / MASK).rename(d / MASK.removesuffix(".gz")), MASK[:-3], "compression-name"),
    "short raw data": (lambda d: shorten(d, ".mhd", ".raw"), "Case01.mhd", "file-damaged 7776 of 8640"),
    "short raw data in the same file": (lambda d: shorten(d, ".mha", ".mha"), "Case01.mha", "file-damaged 8640"),
    "empty file": (lambda d: (d / IMAGE).write_bytes(b""), IMAGE, "file-empty"),
    "not an image": (lambda d: (d / IMAGE).write_text("<html>404</html>", encoding="utf-8"), IMAGE, "file-damaged"),
    "NaN": (lambda d: edit(d / IMAGE, lambda v: put(np.nan)(v.astype(np.float32))), IMAGE, "not-finite 1"),
    "infinite": (
        lambda d: edit(d / IMAGE, lambda v: np.where(v > 900, np.inf, v), dtype=np.float32),
        IMAGE,
        "not-finite",
    ),
    "NaN in another format": (
        lambda d: (
            sitk.WriteImage(
                sitk.Log(sitk.Cast(sitk.ReadImage(str(d / IMAGE)), sitk.sitkFloat32) - 5.0), str(d / "Case01.mha")
            ),
            (d / IMAGE).unlink(),
        ),
        "Case01.mha",
        "not-finite",
    ),
    "constant": (lambda d: edit(d / IMAGE, np.ones_like), IMAGE, "scan-empty (1)"),
    "same content under another name": (
        lambda d: shutil.copy(d / "Case00.nii.gz", d / IMAGE),
        IMAGE,
        "same-content Case00",
    ),
    "same content in another format and number type": (
        lambda d: (
            sitk.WriteImage(
                sitk.Cast(sitk.ReadImage(str(d / "Case00.nii.gz")), sitk.sitkFloat32), str(d / "Case01.nrrd")
            ),
            (d / IMAGE).unlink(),
        ),
        "Case01.nrrd",
        "same-content Case00",
    ),
    "doubled id": (
        lambda d: sitk.WriteImage(sitk.ReadImage(str(d / IMAGE)), str(d / "case01.nrrd")),
        "case01.nrrd",
        "case-twice Case01.nii.gz",
    ),
}
"""What is done to a folder of three sound cases -> the file that must be named; the code, and figures or names."""


def said(finding: Finding, wanted: str) -> bool:
    code, _, figures = wanted.partition(" ")
    return finding.code == code and figures in finding.message


@pytest.mark.parametrize("fault", ERRORS)
def test_errors_name_the_file(scans: Path, fault: str) -> None:
    spoil, file, words = ERRORS[fault]
    spoil(scans)
    errors = [finding for finding in check(scans) if finding.level == "error"]
    assert [finding.file.name for finding in errors] == [file], errors
    assert said(errors[0], words)
    assert len(errors[0].remedy) > 10 and "\n" not in errors[0].sentence()


@pytest.mark.parametrize("fault", ERRORS)
def test_preparation_refuses_what_check_calls_an_error(scans: Path, tmp_path: Path, fault: str) -> None:
    """… and an existing site stays as it was, with nothing left beside it."""
    site = prepare(scans, tmp_path / "out")
    before = {file: file.read_bytes() for file in site.rglob("*") if file.is_file()}
    spoil, file, _ = ERRORS[fault]
    spoil(scans)
    with pytest.raises(DataError, match=file.replace(".", r"\.")):
        prepare_prostate(scans.parent, tmp_path / "out")
    assert {file: file.read_bytes() for file in site.rglob("*") if file.is_file()} == before
    assert [entry.name for entry in site.parent.iterdir()] == ["HK"]


def test_a_file_is_unpacked_in_small_pieces(scans: Path) -> None:
    """What follows the voxels may be compressed a thousandfold."""
    path = scans / IMAGE
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + bytes(96 << 20)))
    tracemalloc.start()
    assert file_of(path).damage() is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size < 1 << 20 and peak < 48 << 20


@pytest.mark.parametrize("file", [IMAGE, MASK, "Case01.nii", "Case01.mhd", "Case01.raw"])
def test_a_file_that_may_not_be_read_is_named(
    scans: Path, tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not (scans / file).exists():
        other = scans / (file if file.endswith(".nii") else "Case01.mhd")
        sitk.WriteImage(sitk.ReadImage(str(scans / IMAGE)), str(other))
        (scans / IMAGE).unlink()
    forbid(scans / file, monkeypatch)
    (finding,) = check(scans)
    assert finding.file == scans / file and finding.message == "cannot be read (Permission denied)"
    with pytest.raises(DataError, match=rf"{re.escape(file)} cannot .*denied") as error:
        prepare_prostate(scans.parent, tmp_path / "out")
    assert "--out" not in str(error.value)
    plan = plan_prostate(scans.parent)
    (site,) = write_volumes(plan, tmp_path / "out", skip_damaged=True)
    assert len(read_manifest(site).cases) == 2 and f"left out: {scans / file} cannot be read" in caplog.text


@pytest.mark.parametrize("where", ["images", "images/Case01", "images/Case01/series1_slice004.dcm", "images/Case01/4"])
def test_a_dicom_folder_or_slice_that_may_not_be_read_is_named(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, masks = tmp_path / "images", tmp_path / "masks"
    masks.mkdir()
    for k in range(3):
        image, mask = volume(k)
        write_dicom(images / f"Case{k:02d}", image)
        sitk.WriteImage(mask, str(masks / f"Case{k:02d}.nii.gz"))
    (images / "Case01" / "series1_slice008.dcm").rename(images / "Case01" / "4")
    forbid(tmp_path / where, monkeypatch)
    (finding,) = check(images, masks=masks)
    assert finding.file == tmp_path / where and finding.message == "cannot be read (Permission denied)"
    with pytest.raises(DataError, match=rf"{where} cannot .*denied"):
        prepare_own(images, masks, "A", tmp_path / "out", dataset="d", labels={"ball": [1]})


WARNINGS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "mask on every slice": (lambda d: edit(d / MASK, np.ones_like), MASK, "mask-covers-all 9"),
    "zones without names": (lambda d: edit(d / MASK, put(2)), "HK", "labels-missing 1, 2 (2 in Case01"),
    "dummy geometry": (lambda d: remake(d / IMAGE, spacing=(1.0, 1.0, 1.0), radius=3), "HK", "dummy-geometry 1 of 3"),
    "no orientation": (
        lambda d: (positions(d / IMAGE, without_codes), positions(d / MASK, without_codes)),
        IMAGE,
        "orientation-missing LPS",
    ),
    "two places": (
        lambda d: (positions(d / IMAGE, sform_elsewhere), positions(d / MASK, sform_elsewhere)),
        IMAGE,
        "forms-differ 5 mm",
    ),
    "same mask twice": (lambda d: shutil.copy(d / "Case00_segmentation.nii.gz", d / MASK), MASK, "same-mask Case00"),
    "sagittal series": (
        lambda d: remake(d / IMAGE, spacing=(0.7, 0.8, 3.0), direction=(0, 0, 1, 1, 0, 0, 0, 1, 0)),
        IMAGE,
        "not-axial",
    ),
}


@pytest.mark.parametrize("fault", WARNINGS)
def test_warnings(scans: Path, tmp_path: Path, fault: str) -> None:
    spoil, file, words = WARNINGS[fault]
    spoil(scans)
    findings = check(scans)
    assert [(finding.level, finding.file.name) for finding in findings] == [("warning", file)], findings
    assert said(findings[0], words)
    assert prepare(scans, tmp_path / "out").is_dir()


SOUND: dict[str, Callable[[Path], object]] = {
    "nothing": lambda d: None,
    "trailing axis of one": lambda d: edit(d / IMAGE, lambda v: v[..., None]),
    "mask stored in another orientation": lambda d: sitk.WriteImage(
        sitk.DICOMOrient(sitk.ReadImage(str(d / MASK)), "SRA"), str(d / MASK)
    ),
    "rounding of a header": lambda d: geometry(d / MASK, lambda i: i.SetSpacing((0.7004, 0.8, 3.0))),
    "files of macOS": lambda d: (d / f"._{IMAGE}").write_bytes(b"\0"),
    "other files": lambda d: (d / "notes.csv").write_text("a,b", encoding="utf-8"),
}


@pytest.mark.parametrize("change", SOUND)
def test_sound_scans_give_no_finding(scans: Path, tmp_path: Path, change: str) -> None:
    SOUND[change](scans)
    assert check(scans) == []
    assert prepare(scans, tmp_path / "out").is_dir()


def test_several_faults_are_all_reported(scans: Path) -> None:
    for spoil in ("empty file", "empty mask"):
        ERRORS[spoil][0](scans)
    cut(scans / "Case02.nii.gz", 0.5)
    assert {finding.file.name for finding in check(scans)} == {IMAGE, MASK, "Case02.nii.gz"}


@pytest.mark.parametrize("suffix", [".mhd", ".mha", ".nrrd", ".nii"])
def test_truncation_in_every_format(tmp_path: Path, suffix: str) -> None:
    image, _ = write_pair(tmp_path / "A", "Case00", suffix=suffix)
    data = image.with_suffix(".raw") if suffix == ".mhd" else image
    cut(data, 0.7)
    findings = check(tmp_path / "A")
    assert [(finding.level, finding.file) for finding in findings] == [("error", image)]
    assert "cannot be read" in findings[0].message


def test_missing_raw_file_is_named(tmp_path: Path) -> None:
    image, _ = write_pair(tmp_path / "A", "Case00", suffix=".mhd")
    image.with_suffix(".raw").unlink()
    assert "Case00.raw" in check(tmp_path / "A")[0].message


def test_damaged_compressed_meta_image(tmp_path: Path) -> None:
    image, _ = write_pair(tmp_path / "A", "Case00", suffix=".mha")
    sitk.WriteImage(sitk.ReadImage(str(image)), str(image), useCompression=True)
    assert [f.level for f in check(tmp_path / "A")] == []
    flip_byte(image)
    assert check(tmp_path / "A")[0].code == "file-damaged"


def test_images_and_masks_in_folders(tmp_path: Path) -> None:
    for k in range(2):
        image, mask = volume(k)
        write_dicom(tmp_path / "images" / f"Case{k:02d}", image)
        (tmp_path / "masks").mkdir(exist_ok=True)
        sitk.WriteImage(mask, str(tmp_path / "masks" / f"Case{k:02d}.nrrd"))
    assert check(tmp_path) == check(tmp_path / "images", masks=tmp_path / "masks") == []
    (tmp_path / "images" / "Case01" / "series1_slice004.dcm").unlink()
    (finding,) = check(tmp_path)
    assert finding.file == tmp_path / "images" / "Case01" and finding.code == "slices-missing"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda d: write_dicom(d, volume(5)[0], series=2), "holds 2 DICOM series"),
        (lambda d: [file.unlink() for file in sorted(d.iterdir())[2:]], "has 2 slice(s)"),
        (lambda d: [file.write_text("x", encoding="utf-8") for file in d.iterdir()], "holds 9 DICOM file(s), none of"),
    ],
)
def test_dicom_faults(tmp_path: Path, spoil: Callable[[Path], object], words: str) -> None:
    image, mask = volume()
    write_dicom(tmp_path / "images" / "Case00", image)
    (tmp_path / "masks").mkdir()
    sitk.WriteImage(mask, str(tmp_path / "masks" / "Case00.nii.gz"))
    spoil(tmp_path / "images" / "Case00")
    (finding,) = check(tmp_path)
    assert finding.level == "error" and words in finding.message


def test_same_patient_at_two_sites(tmp_path: Path) -> None:
    write_pair(tmp_path / "HK", "Case00", seed=1)
    write_pair(tmp_path / "UCL", "Case17", seed=1)
    (finding,) = check(tmp_path)
    assert finding.level == "error" and finding.file == tmp_path / "UCL" / "Case17.nii.gz"
    assert f"case Case00 in {tmp_path / 'HK'}" in finding.message


def test_a_copy_is_removed_and_split_only_once_it_is_prepared(scans: Path) -> None:
    shutil.copy(scans / "Case00.nii.gz", scans / IMAGE)
    (finding,) = check(scans)
    assert "split" not in finding.remedy


def test_unknown_layout(tmp_path: Path) -> None:
    (tmp_path / "data.zip").write_bytes(b"PK")
    (finding,) = check(tmp_path)
    assert finding.level == "error" and "found data.zip" in finding.message and "CaseXX" in finding.remedy


# Prepared sites


def change_manifest(site: Path, change: Callable[[dict], object]) -> None:
    content = json.loads((site / FILE_NAME).read_text(encoding="utf-8"))
    change(content)
    (site / FILE_NAME).write_text(json.dumps(content), encoding="utf-8")


PREPARED: dict[str, tuple[Callable[[Path], object], str, str, str]] = {
    "volume gone": (lambda s: (s / "volumes" / "Case01.nii.gz").unlink(), "error", "Case01.nii.gz", "file-missing"),
    "volume truncated": (
        lambda s: cut(s / "volumes" / "Case01_mask.nii.gz", 0.5),
        "error",
        "Case01_mask.nii.gz",
        "file-damaged",
    ),
    "voxels changed": (
        lambda s: edit(s / "volumes" / "Case01.nii.gz", put(77)),
        "error",
        "Case01.nii.gz",
        "files-changed",
    ),
    "arrays truncated": (
        lambda s: cut(s / "arrays" / "16" / "images.npy", 0.5),
        "error",
        "16",
        "arrays-damaged images.npy",
    ),
    "arrays overwritten": (
        lambda s: flip_byte(s / "arrays" / "16" / "images.npy"),
        "error",
        "16",
        "arrays-damaged images.npy",
    ),
    "arrays overwritten, with their hashes": (
        lambda s: (flip_byte(s / "arrays" / "16" / "images.npy"), write_hashes(s / "arrays" / "16")),
        "error",
        "16",
        "arrays-damaged hashes.json",
    ),
    "manifest broken": (lambda s: cut(s / FILE_NAME, 0.5), "error", FILE_NAME, "manifest-broken"),
    "unknown key": (
        lambda s: change_manifest(s, lambda m: m.update(licens="x")),
        "error",
        FILE_NAME,
        "manifest-broken 'licence'",
    ),
    "unlisted volume": (
        lambda s: shutil.copy(s / "volumes" / "Case01.nii.gz", s / "volumes" / "Case09.nii.gz"),
        "warning",
        "Case09.nii.gz",
        "file-unlisted",
    ),
    "no test case": (
        lambda s: change_manifest(s, lambda m: [case.update(split="train") for case in m["cases"]]),
        "warning",
        "HK",
        "split-empty val",
    ),
    "left over": (lambda s: (s.parent / ".HK.partial-0123abcd").mkdir(), "warning", ".HK.partial-0123abcd", "leftover"),
}


@pytest.mark.parametrize("fault", PREPARED)
def test_prepared_site(scans: Path, tmp_path: Path, fault: str) -> None:
    site = prepare(scans, tmp_path / "out")
    assert check(site) == check(tmp_path / "out") == []
    spoil, level, file, words = PREPARED[fault]
    spoil(site)
    finding = check(site)[0]
    assert (finding.level, finding.file.name) == (level, file) and said(finding, words)


def test_same_content_in_two_splits(scans: Path, tmp_path: Path) -> None:
    """As a careless merge of two prepared folders would do it."""
    site = prepare(scans, tmp_path / "out")

    def copy_case(manifest: dict) -> None:
        first, second = manifest["cases"][:2]
        for end in (".nii.gz", "_mask.nii.gz"):
            shutil.copy(site / "volumes" / f"{first['id']}{end}", site / "volumes" / f"{second['id']}{end}")
        second.update({key: first[key] for key in ("sha256_image", "sha256_label")})

    change_manifest(site, copy_case)
    stale, finding = check(site)
    assert stale.file.parent.name == "arrays" and stale.code == "arrays-changed" and "Case01" in stale.message
    splits = {case["id"]: case["split"] for case in json.loads((site / FILE_NAME).read_text(encoding="utf-8"))["cases"]}
    assert f"one for {splits['Case00']} and one for {splits['Case01']}" in finding.message


def test_a_subject_in_several_splits(tmp_path: Path) -> None:
    """As preparation dealt the sessions of a subject, one by one."""
    ids = ["sub-1_ses-1", "sub-1_ses-2", "sub-1_ses-3", "sub-2", "sub-3", "sub-4"]
    cases = []
    for seed, case in enumerate(ids):
        image, mask = write_pair(tmp_path / "raw", case, seed=seed)
        cases.append(CaseFiles(case, (image,), mask))
    site = write_site(planned("A", cases), tmp_path, dataset="d", labels=GLAND)
    assert check(site) == []
    old = dict(zip(ids, ["val", "test", "val", "train", "train", "test"], strict=True))
    change_manifest(site, lambda m: [case.update(split=old[case["id"]]) for case in m["cases"]])
    (finding,) = check(site)
    assert (finding.level, finding.file) == ("error", site / FILE_NAME)
    assert finding.code == "subject-divided" and "sub-1_ses-1 (val), sub-1_ses-2 (test)" in finding.message
    assert "withdraw sub-1_ses-2" in finding.remedy and finding.remedy.endswith("val")


# The command


def run(*arguments: object) -> int:
    parser = Parser()
    data.add_arguments(parser)
    args = parser.parse_args([str(argument) for argument in arguments])
    return int(args.func(args))


def test_exit_codes(scans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", scans) == 0
    WARNINGS["mask on every slice"][0](scans)
    assert run("check", scans) == 0
    (scans / "Case02.nii.gz").write_bytes(b"")
    assert run("check", scans) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].startswith("warning ") and "Case01_segmentation.nii.gz covers every" in lines[-3]
    assert lines[-2].startswith("error ") and "Case02.nii.gz" in lines[-2]
    assert lines[-1].endswith("1 error(s), 1 warning(s)")
    with pytest.raises(DataError, match="does not exist"):  # the command line turns these into exit code 2
        run("check", scans / "nowhere")


def test_sentence() -> None:
    finding = Finding("error", "scan-empty", Path("a.nii.gz"), "is empty", "copy it")
    assert finding.sentence().endswith("is empty: copy it")


def test_a_value_that_nothing_names_is_an_error_if_others_are_named(scans: Path, tmp_path: Path) -> None:
    edit(scans / MASK, put(3))
    (finding,) = check(scans, labels={"gland": [1, 2]})
    assert (
        finding.level == "error"
        and finding.file.name == MASK
        and finding.code == "mask-values"
        and "3" in finding.message
    )
    assert "0 outside, 1 or 2 gland" in finding.remedy and "--label gland=1,2,3 to merge it" in finding.remedy
    assert "--label background=0,3 " in finding.remedy
    with pytest.raises(DataError, match=r"Case01_segmentation\.nii\.gz has unknown label\(s\) 3"):
        prepare(scans, tmp_path / "out")


def test_findings_speak_of_the_classes_that_a_site_has(scans: Path, tmp_path: Path) -> None:
    edit(scans / MASK, np.zeros_like)
    (raw,) = check(scans)
    assert "0 outside, 1 structure" in raw.remedy
    (named,) = check(scans, labels={"spleen": [1]})
    assert "0 outside, 1 spleen" in named.remedy
    edit(scans / MASK, put(1))
    site = prepare(scans, tmp_path / "out")
    edit(site / "volumes" / "Case01_mask.nii.gz", put(7))
    assert "0 outside, 1 prostate" in check(site)[0].remedy
    change_manifest(site, lambda content: content.update(classes=["background", "left kidney", "right kidney"]))
    remedy = check(site)[0].remedy
    assert "1 left kidney" in remedy and "2 right kidney" in remedy and "prostate" not in remedy


def test_sites_of_a_data_set_that_differ_are_told(scans: Path, tmp_path: Path) -> None:
    site = prepare(scans, tmp_path / "out")
    other = site.with_name("UCL")
    shutil.copytree(site, other)
    for file in (other / "volumes").glob("*.nii.gz"):
        if "mask" not in file.name:
            edit(file, lambda v: v + 1)
    change_manifest(other, lambda content: content.update(site="UCL", classes=["background", "gland"]))
    findings = check(tmp_path / "out")
    classes = f"has the classes background, gland, {site} background, prostate"
    assert [finding.level for finding in findings if finding.message == classes] == ["error"], "no job takes both"


def test_sites_may_have_their_sequences_in_another_order(tmp_path: Path) -> None:
    """A job picks them by name; the same classes in another order are others."""
    for number, (site, order) in enumerate((("A", "T2,ADC"), ("B", "ADC,T2"), ("C", "T2"))):
        source = write_described(
            tmp_path / site, sequences=("T2", "ADC"), classes=("PZ", "TZ"), style="nnunet", seed=10 * number
        )
        sequences = {name: "" for name in order.split(",")}
        prepare_own(None, None, site, tmp_path / "out", dataset="d", source=source, sequences=sequences)
    (finding,) = check(tmp_path / "out")
    assert finding.level == "warning" and finding.file.parent.name == "C"
    assert finding.message == f"has the sequences T2, {tmp_path / 'out' / 'd' / 'A'} T2, ADC"
    site = tmp_path / "out" / "d" / "B"
    change_manifest(site, lambda content: content.update(classes=["background", "TZ", "PZ"]))
    assert [finding.file.parent.name for finding in check(tmp_path / "out") if finding.level == "error"] == ["B"]
    with raises("other-classes", naming="background, TZ, PZ"):
        read_manifest(site).check_is(site, dataset="d", site="B", classes=("background", "PZ", "TZ"))


def test_three_patients_are_the_least_and_not_three_scans(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cases = []
    for seed, case in enumerate(("sub-1_ses-1", "sub-1_ses-2", "sub-2_ses-1", "sub-2_ses-2")):
        image, mask = write_pair(tmp_path / "raw", case, seed=seed)
        cases.append(CaseFiles(case, (image,), mask))
    site = write_site(planned("A", cases), tmp_path, dataset="d", labels=GLAND)
    (finding,) = check(site)
    assert finding.code == "split-empty"
    assert finding.code == "split-empty" and finding.remedy.endswith("2")
    assert finding.sentence() in caplog.text, "also when it is prepared"


def hounsfield(path: Path) -> None:
    edit(path, lambda voxels: voxels - 1000)


def test_scans_that_look_like_ct_are_to_be_called_so(
    scans: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = sorted(scans.glob("Case??.nii.gz"))
    hounsfield(files[0])
    assert check(scans) == [], "one of three"
    hounsfield(files[1])
    (finding,) = check(scans)
    assert finding.level == "warning" and finding.code == "looks-like-ct" and "-1000" in finding.message
    assert finding.code == "looks-like-ct" and "--sequence CT" in finding.remedy
    options: dict[str, Any] = {"dataset": "d", "source": scans, "labels": {"gland": [1]}}
    site = prepare_own(None, None, "A", tmp_path / "out", **options)
    assert "-1000" in caplog.text and len(check(site)) == 1
    prepare_own(None, None, "A", tmp_path / "out", sequences={"CT": ""}, **options)
    assert read_manifest(site).sequences == ("CT",) and check(site) == check(scans, sequences={"CT": ""}) == []
    for number, file in enumerate(files):
        (tmp_path / "cases" / f"P{number}").mkdir(parents=True)
        shutil.copy(file, tmp_path / "cases" / f"P{number}" / "liver.nii.gz")
        shutil.copy(scans / f"Case{number:02d}_segmentation.nii.gz", tmp_path / "cases" / f"P{number}" / "mask.nii.gz")
    (finding,) = check(tmp_path / "cases")
    assert finding.code == "looks-like-ct" and "liver" in finding.remedy


@pytest.mark.parametrize("labels", [{}, {"gland": [1]}])
def test_images_and_masks_that_are_swapped(scans: Path, tmp_path: Path, labels: dict[str, list[int]]) -> None:
    for number in range(3):
        for folder, ending in (("masks", ""), ("images", "_segmentation")):
            (tmp_path / folder).mkdir(exist_ok=True)
            shutil.copy(scans / f"Case{number:02d}{ending}.nii.gz", tmp_path / folder / f"Case{number:02d}.nii.gz")
    findings = check(tmp_path / "images", masks=tmp_path / "masks", labels=labels)
    assert [finding.level for finding in findings] == ["error"] * 3
    assert all(finding.remedy.endswith("are --images and --masks swapped?") for finding in findings)
    with pytest.raises(FedshiftError, match="are --images and --masks swapped"):
        prepare_own(tmp_path / "images", tmp_path / "masks", "A", tmp_path / "out", dataset="d", labels=labels)


def test_a_folder_of_masks_that_is_not_there_is_named(scans: Path) -> None:
    (finding,) = check(scans, masks=scans / "maks")
    assert (finding.code, finding.file) == ("not-a-folder", scans / "maks")


def test_loose_slices_in_a_folder_below_are_named(tmp_path: Path) -> None:
    write_dicom(tmp_path / "images", volume()[0])
    (tmp_path / "masks").mkdir()
    (finding,) = check(tmp_path)
    assert finding.file == tmp_path / "images" and finding.code == "loose-slices"


@pytest.mark.parametrize("given", ["image", "mask"])
def test_a_scan_that_is_its_own_mask(scans: Path, given: str) -> None:
    wrong, right = (IMAGE, MASK) if given == "mask" else (MASK, IMAGE)
    shutil.copy(scans / right, scans / wrong)
    (finding,) = check(scans, labels={"gland": [1]})
    assert finding.level == "error" and finding.file.name == IMAGE
    assert finding.code == "same-content"


def test_a_mask_among_the_sequences(tmp_path: Path) -> None:
    """… under a name that does not say so, of another reader or a copy."""
    folder = write_described(tmp_path / "set", sequences=("T2", "ADC"), style="nnunet") / "imagesTr"
    for k in range(2):
        mask = folder.parent / "labelsTr" / f"case_{k}.nii.gz"
        shutil.copy(mask, folder / f"case_{k}_0001.nii.gz")
    edit(folder / "case_0_0001.nii.gz", lambda v: np.roll(v, 1, axis=0))
    second, copy = check(folder.parent)
    assert (second.level, second.file.name) == ("warning", "case_0_0001.nii.gz")
    assert second.code == "looks-like-mask" and "ADC of case case_0" in second.message
    assert (copy.level, copy.file.name) == ("error", "case_1_0001.nii.gz")
    assert copy.code == "same-content" and "ADC of case case_1" in copy.message


def test_a_4d_mask_has_a_mend_of_its_own(scans: Path, tmp_path: Path) -> None:
    four_d(scans / MASK)
    (finding,) = check(scans)
    assert finding.code == "several-volumes" and "3D mask" in finding.remedy
    with pytest.raises(DataError, match="3D mask"):
        prepare_own(None, None, "A", tmp_path / "out", dataset="d", source=scans)


# Several sequences

ADC = "case_1_0001.nii.gz"
SEQUENCES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "missing": (lambda d: (d / ADC).unlink(), "case_1_0000.nii.gz", "sequence-missing ADC (case_1_0001)"),
    "one too many": (
        lambda d: shutil.copy(d / ADC, d / "case_1_0002.nii.gz"),
        "case_1_0002.nii.gz",
        "sequence-unknown 0002",
    ),
    "another grid": (
        lambda d: edit(d / ADC, lambda v: v[:, 1:]),
        ADC,
        "sequence-grid (ADC of case case_1) has 24 x 19 x 9",
    ),
    "misregistered": (
        lambda d: geometry(d / ADC, lambda i: i.SetOrigin(i.TransformIndexToPhysicalPoint((2, 0, 0)))),
        ADC,
        "sequence-grid 1.4 mm",
    ),
    "a copy": (lambda d: shutil.copy(d / "case_1_0000.nii.gz", d / ADC), ADC, "same-content T2 of case case_1"),
    "another patient's": (lambda d: shutil.copy(d / "case_0_0001.nii.gz", d / ADC), ADC, "same-content case_0"),
    "empty": (lambda d: edit(d / ADC, np.ones_like), ADC, "scan-empty (ADC of case case_1)"),
    "damaged": (lambda d: cut(d / ADC, 0.5), ADC, "file-damaged (ADC of case case_1)"),
}


@pytest.mark.parametrize("fault", SEQUENCES)
def test_faults_of_a_sequence_name_it_and_its_case(tmp_path: Path, fault: str) -> None:
    folder = write_described(tmp_path / "set", sequences=("T2", "ADC"), style="nnunet")
    assert check(folder) == []
    spoil, file, words = SEQUENCES[fault]
    spoil(folder / "imagesTr")
    (finding,) = check(folder)
    assert (finding.level, finding.file.name) == ("error", file) and said(finding, words)
    with pytest.raises(DataError, match=file.replace(".", r"\.")):
        write_volumes(plan_volumes(folder), tmp_path / "out")
    (site,) = write_volumes(plan_volumes(folder), tmp_path / "out", skip_damaged=True)
    assert len(read_manifest(site).cases) == 2
    assert read_manifest(site).preparation["cases_left_out_as_damaged"] == 1


def test_volumes_of_a_4d_file_are_sequences(tmp_path: Path) -> None:
    folder = write_described(tmp_path / "set", sequences=("T2", "ADC"))
    assert check(folder) == []
    image = folder / "imagesTr" / "case_1.nii.gz"
    sitk.WriteImage(sitk.ReadImage(str(image))[:, :, :, 0], str(image))
    (finding,) = check(folder)
    assert finding.file == image and finding.code == "volume-missing"


@pytest.mark.parametrize("name", ["Case@01", "Case01_mask.v1_mask"])
def test_a_name_that_cannot_be_a_file_is_found_before_preparation(scans: Path, tmp_path: Path, name: str) -> None:
    for file, ending in ((IMAGE, ""), (MASK, "_segmentation")):
        folder = scans.parent / ("masks" if ending else "images")
        folder.mkdir()
        shutil.copy(scans / file, folder / f"{name}.nii.gz")
    (finding,) = check(scans.parent / "images", masks=scans.parent / "masks")
    assert finding.level == "error" and finding.code == "case-name" and repr(name) in finding.message
    with pytest.raises(DataError, match=re.escape(finding.remedy)):
        prepare_own(
            scans.parent / "images",
            scans.parent / "masks",
            "A",
            tmp_path / "out",
            dataset="x",
            labels={"prostate": (1,)},
        )


LESIONS = """name: lesions
kind: segmentation
dataset: lesions
sites: [HK]
classes: [background, lesion]
codes:
  lesion: {category: [49755003, SCT, Morphologically Abnormal Structure], type: [52988006, SCT, Lesion]}
"""


@pytest.mark.reads("mask: no voxel of any class")
@pytest.mark.reads("mask: no voxel of any class, where the task has data.empty, is of lesions, or with --empty")
@pytest.mark.parametrize(
    ("labels", "value"), [({}, 0), ({"lesion": [1]}, 0), ({"lesion": [1], "background": [7]}, 7)], ids=str
)
def test_an_empty_mask_is_an_error_unless_cases_may_lack_the_structure(
    labels: dict[str, list[int | str]], value: int, scans: Path
) -> None:
    for mask in (MASK, "Case02_segmentation.nii.gz"):  # two of the same content, which are no copies of each other
        edit(scans / mask, lambda voxels: np.full_like(voxels, value))
    findings = check(scans, labels=labels)
    errors = [finding.sentence() for finding in findings if finding.level == "error"]
    assert len(errors) == 2 and all("add --empty" in error for error in errors)
    (taken,) = check(scans, labels=labels, empty=True)
    assert taken.level == "warning" and taken.code == "mask-empty" and "Case01, Case02" in taken.message


def test_a_site_with_empty_masks_is_prepared_checked_and_added_to(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, out = tmp_path / "lesions.yaml", tmp_path / "out"
    task.write_text(LESIONS, encoding="utf-8")
    edit(scans / MASK, np.zeros_like)
    words = ["data", "prepare", "own", "--source", str(scans), "--site", "HK", "--out", str(out)]
    assert main([*words, "--dataset", "lesions", "--label", "lesion=1"]) == 2
    assert "empty mask" in capsys.readouterr().err
    assert main([*words, "--task", str(task)]) == 0
    site = out / "lesions" / "HK"
    assert read_manifest(site).preparation["cases_without_structure"] == 1
    assert [finding.level for finding in check(site)] == ["warning"]
    more = tmp_path / "more"
    write_pair(more, "Case07", seed=7)
    again = [str(more) if word == str(scans) else word for word in words]
    assert main([*again, "--dataset", "lesions", "--label", "lesion=1"]) == 0
    assert read_manifest(site).preparation["cases_without_structure"] == 1 and len(read_manifest(site).cases) == 4
    assert main([*words[:3], "--site", "HK", "--out", str(out), "--task", str(task), "--withdraw", "Case01"]) == 0
    assert "cases_without_structure" not in read_manifest(site).preparation
