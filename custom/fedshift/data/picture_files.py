"""Which files are pictures to segment, and not volumes or slices of one."""

from __future__ import annotations

from pathlib import Path

from fedshift.data.dicom import identify
from fedshift.data.dicom_objects import PICTURES
from fedshift.data.scan_file import has_picture_name


def is_picture(path: Path) -> bool:
    """Whether a file is a picture by its name, or a DICOM image of a kind that is no slice, such as a radiograph."""
    return has_picture_name(path) or is_dicom_picture(path)


def is_dicom_picture(path: Path) -> bool:
    """Whether a file is a DICOM image of such a kind."""
    identity = identify(path)
    return identity is not None and identity.sop_class in PICTURES
