"""The scans in a folder that somebody names: files, DICOM series in sub-folders, or the folder itself as a series."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedshift.data.dicom import looks_like_dicom
from fedshift.data.scans import suffix_of
from fedshift.schema.errors import DataError

MASK = "_mask"
"""How the stems of masks end that `fedshift predict` writes."""
DEEPEST = 4
"""Levels of folders in a DICOM study: patient, study, series, and one to spare."""


def scans_in(paths: Iterable[Path]) -> list[Path]:
    """Files as they are; of a folder its scans, in order of their names.

    A folder with DICOM slices is one series. Any other folder stands for the scan files directly in it, without masks
    that `fedshift predict` wrote, and for the series in its sub-folders, as in a DICOM study.

    Raises:
        DataError: a folder without either.
    """
    found: list[Path] = []
    for path in paths:
        inside = _inside(path, DEEPEST) if path.is_dir() else [path]
        if not inside:
            raise DataError(
                f"{path} holds no scan: name a folder with NIfTI, NRRD or MetaImage files, or with DICOM series"
            )
        found += inside
    return list(dict.fromkeys(found))


def _inside(folder: Path, levels: int) -> list[Path]:
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    if any(looks_like_dicom(entry) for entry in entries):
        return [folder]
    found = [
        entry for entry in entries if entry.is_file() and (suffix := suffix_of(entry)) and not _is_mask(entry, suffix)
    ]
    for entry in entries:
        if entry.is_dir() and levels:
            found += [path for path in _inside(entry, levels - 1) if path.is_dir()]
    return found


def _is_mask(file: Path, suffix: str) -> bool:
    return file.name[: -len(suffix)].endswith(MASK)
