"""Which scans a folder stands for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from dicomstudies import draw_segmentation, write_enhanced, write_slices
from errors import raises
from scanfiles import volume, write_dicom

from fedshift.data.scan_file import ScanError
from fedshift.data.scan_folders import not_read, scans_in
from fedshift.data.scans import read_scan
from fedshift.schema.errors import DataError


def test_a_folder_stands_for_its_files_without_masks_and_a_study_for_its_series(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for name in ("b.nii.gz", "a.mha", "a_mask.mha", "notes.txt", ".hidden.nii.gz"):
        (files / name).write_bytes(b"")
    image, _ = volume(size=(8, 8, 4))
    for series in ("P1/study/t2", "P1/study/adc", "P2/t2"):
        write_dicom(tmp_path / "study" / series, image)
    assert scans_in([files]) == [files / "a.mha", files / "b.nii.gz"]
    scans = [str(path.relative_to(tmp_path / "study")) for path in scans_in([tmp_path / "study"])]
    assert scans == ["P1/study/adc", "P1/study/t2", "P2/t2"]
    series = tmp_path / "study" / "P2" / "t2"
    assert scans_in([series, files / "a.mha", files]) == [series, files / "a.mha", files / "b.nii.gz"]


def test_scans_in_formats_that_are_not_read_are_named(tmp_path: Path) -> None:
    for name in ("a.nii.gz", "k.hdr", "k.img", "l.gipl", "notes.txt", "below/m.MGZ", ".n.hdr"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    message = (
        "not read: k.hdr, l.gipl, m.MGZ: convert with nibabel, `nib-convert IN OUT.nii.gz` (k.hdr, m.MGZ); open in 3D "
        "Slicer or ITK-SNAP, and save as NIfTI (.nii.gz) (l.gipl)"
    )
    assert list(not_read([tmp_path, tmp_path / "a.nii.gz"])) == [message] and not list(
        not_read([tmp_path / "below" / "m.MGZ"])
    )
    assert scans_in([tmp_path]) == [tmp_path / "a.nii.gz"]


def test_a_folder_without_scans_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("none", encoding="utf-8")
    with pytest.raises(DataError, match="holds no scan"):
        scans_in([tmp_path])


def test_series_of_one_folder_are_told_apart_and_masks_left_out(tmp_path: Path) -> None:
    image, mask = volume()
    folder = write_slices(tmp_path / "export", image, seed="1")
    for file in write_slices(tmp_path / "second", image, seed="2", reverse=True).iterdir():
        file.rename(folder / f"b{file.name}")
    alone = write_slices(tmp_path / "alone", image, seed="1")
    draw_segmentation(folder / "seg.dcm", alone, {"prostate": sitk.GetArrayFromImage(mask) > 0})
    (alone / "seg.dcm").write_bytes((folder / "seg.dcm").read_bytes())
    assert scans_in([alone]) == [alone] and read_scan(alone).voxels.any(), "a mask beside the slices is none of them"
    enhanced = write_enhanced(folder / "whole.dcm", image, seed="3")
    scans = scans_in([folder])
    assert enhanced in scans and len(scans) == 3
    for path in scans:
        scan = read_scan(path)
        np.testing.assert_array_equal(scan.voxels, sitk.GetArrayFromImage(sitk.DICOMOrient(image, "RAS")))
    with raises("several-series", naming="'t2_tse_tra'"):
        read_scan(folder)
    with pytest.raises(ScanError, match=r"not exist|no series"):
        read_scan(folder / "1.2.3")


def test_a_scan_that_was_not_fetched_is_said_to_be_missing(tmp_path: Path) -> None:
    (tmp_path / "P1.nii.gz").symlink_to(tmp_path / "annex" / "P1.nii.gz")
    (scans,) = scans_in([tmp_path])
    with raises("file-missing", naming="P1.nii.gz"):
        read_scan(scans)


@pytest.mark.parametrize(
    "sop_class", ["12.1.1", "7.3", "4", "66.4", "481.2"], ids=["XA", "secondary", "MR", "SEG", "dose"]
)
@pytest.mark.parametrize("name", ["whole.dcm", "IM1"])
def test_frames_whose_places_are_not_read_are_refused(name: str, sop_class: str, tmp_path: Path) -> None:
    image, _ = volume()
    path = write_enhanced(tmp_path / name, image, order=[5, 0, 8, 1, 2, 3, 4, 6, 7])
    assert read_scan(path).voxels.shape == (9, 20, 24)
    dataset = pydicom.dcmread(path)
    dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = f"1.2.840.10008.5.1.4.1.1.{sop_class}"
    dataset.save_as(path, enforce_file_format=True)
    with raises("multiframe-class", naming="9 frames"):
        read_scan(path)
    content = path.read_bytes()[132:]  # ITK reads it without its preamble, too
    (tmp_path / "bare").write_bytes(content)
    with pytest.raises(ScanError, match=r"9 frames|damaged"):
        read_scan(tmp_path / "bare")
