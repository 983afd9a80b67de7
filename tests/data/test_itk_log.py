"""ITK's messages: in the log, not on the terminal."""

from __future__ import annotations

import logging
from pathlib import Path

import nibabel
import numpy as np
import pytest

from fedshift.data.scan_file import ScanError
from fedshift.data.scans import read_scan


def test_what_itk_warns_of_is_logged_for_debugging_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    image = nibabel.Nifti1Image(np.random.default_rng(0).random((8, 8, 5), np.float32), None)
    image.header.set_sform(np.array([[1, 0.3, 0, 0], [0, 1, 0, 0], [0, 0, 3, 0], [0, 0, 0, 1]]), 1)
    nibabel.save(image, tmp_path / "sheared.nii")
    with caplog.at_level(logging.DEBUG, logger="fedshift.itk"), pytest.raises(ScanError, match="sheared"):
        read_scan(tmp_path / "sheared.nii", direction=(1, 0, 0, 0, 1, 0, 0, 0, 1))  # so its header is left to ITK
    assert "unexpected scales in sform" in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    assert capfd.readouterr() == ("", "")
