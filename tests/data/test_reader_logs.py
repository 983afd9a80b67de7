"""Messages of ITK and nibabel: in the log, not on the terminal."""

from __future__ import annotations

import logging
from pathlib import Path

import nibabel
import numpy as np
import pytest
from errors import raises

from fedshift.data.scan_file import ScanError
from fedshift.data.scans import read_scan


def test_what_itk_and_nibabel_warn_of_is_logged_for_debugging_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    image = nibabel.Nifti1Image(np.random.default_rng(0).random((8, 8, 5), np.float32), None)
    image.header.set_sform(np.array([[1, 0.3, 0, 0], [0, 1, 0, 0], [0, 0, 3, 0], [0, 0, 0, 1]]), 1)
    nibabel.save(image, tmp_path / "sheared.nii")
    content = bytearray((tmp_path / "sheared.nii").read_bytes())
    content[80:84] = np.float32(-1).tobytes()  # a voxel size of -1 mm
    (tmp_path / "negative.nii").write_bytes(content)
    with caplog.at_level(logging.DEBUG, logger="fedshift.readers"):
        with pytest.raises(ScanError, match="sheared"):
            read_scan(tmp_path / "sheared.nii", direction=(1, 0, 0, 0, 1, 0, 0, 0, 1))  # so its header is left to ITK
        with raises("affine", naming="-1"):
            read_scan(tmp_path / "negative.nii")
    ours = [record for record in caplog.records if record.name == "fedshift.readers"]
    assert {record.levelno for record in ours} == {logging.DEBUG}
    told = " ".join(record.getMessage() for record in ours)
    assert "unexpected scales in sform" in told and "should be positive" in told
    assert capfd.readouterr() == ("", "")
