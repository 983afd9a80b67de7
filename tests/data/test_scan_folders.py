"""Which scans a folder stands for."""

from __future__ import annotations

from pathlib import Path

import pytest
from scanfiles import volume, write_dicom

from fedshift.data.scan_folders import scans_in
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
