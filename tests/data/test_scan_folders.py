"""Which scans a folder stands for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from dicomstudies import draw_segmentation, write_enhanced, write_slices
from scanfiles import volume, write_dicom

from fedshift.data.scan_file import ScanError
from fedshift.data.scan_folders import scans_in
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
    found = [str(path.relative_to(tmp_path / "study")) for path in scans_in([tmp_path / "study"])]
    assert found == ["P1/study/adc", "P1/study/t2", "P2/t2"]
    series = tmp_path / "study" / "P2" / "t2"
    assert scans_in([series, files / "a.mha", files]) == [series, files / "a.mha", files / "b.nii.gz"]


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
    found = scans_in([folder])
    assert enhanced in found and len(found) == 3
    for path in found:
        scan = read_scan(path)
        np.testing.assert_array_equal(scan.voxels, sitk.GetArrayFromImage(sitk.DICOMOrient(image, "RAS")))
    with pytest.raises(ScanError, match=r"holds 3 DICOM series: keep the one that is used, or name it"):
        read_scan(folder)
    with pytest.raises(ScanError, match=r"does not exist|is no series of its folder"):
        read_scan(folder / "1.2.3")
