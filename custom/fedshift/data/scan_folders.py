"""The scans in a folder that somebody names: files, DICOM series in sub-folders, or the folder itself as a series."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from fedshift.data.dicom import looks_like_dicom
from fedshift.data.other_formats import how_to_convert, passed_over
from fedshift.data.scan_file import is_broken_link, suffix_of
from fedshift.data.series import series_in
from fedshift.schema.errors import DataError
from fedshift.schema.names import few_names

MASK = "_mask"
"""How the stems of masks end that `fedshift predict` writes."""
DEEPEST = 4
"""Levels of folders in a DICOM study: patient, study, series, and one to spare."""


def scans_in(paths: Iterable[Path]) -> list[Path]:
    """Files as they are; of a folder its scans, in order of their names.

    A folder with DICOM slices stands for its series (`fedshift.data.series`), without masks and reports. Any other
    folder stands for the scan files directly in it, without masks that `fedshift predict` wrote, and for the series in
    its sub-folders, as in a DICOM study.

    Raises:
        DataError: a folder without either.
    """
    found: list[Path] = []
    for path in paths:
        inside = _inside(path, DEEPEST)[0] if path.is_dir() else [path]
        if not inside:
            others = list(passed_over(path, DEEPEST))
            if others:
                shown = few_names([file.name for file in others])
                raise DataError(
                    "format-not-read", f"{path} holds no scan that is read, only {shown}: {how_to_convert(others)}"
                )
            raise DataError(
                "scans-missing",
                f"{path} holds no scan: name a folder with NIfTI, NRRD or MetaImage files, or with DICOM series",
            )
        found += inside
    return list(dict.fromkeys(found))


def not_read(paths: Iterable[Path]) -> Iterator[str]:
    """A line that names the scans in formats that are not read, in the folders in which `scans_in` looks, if any."""
    if files := [file for path in paths if path.is_dir() for file in passed_over(path, DEEPEST)]:
        yield f"not read: {few_names([file.name for file in files])}: {how_to_convert(files)}"


def _inside(folder: Path, levels: int) -> tuple[list[Path], list[Path]]:
    """The scans in a folder, and those of them that are DICOM."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    series = series_in(folder) if any(looks_like_dicom(entry) for entry in entries) else []
    found = [
        entry
        for entry in entries
        if (entry.is_file() or is_broken_link(entry)) and (suffix := suffix_of(entry)) and not _is_mask(entry, suffix)
    ]
    if series:
        found = []  # of a series, in whatever form somebody keeps it beside its slices
    for entry in entries:
        if entry.is_dir() and levels:
            series += _inside(entry, levels - 1)[1]
    return [*found, *series], series


def _is_mask(file: Path, suffix: str) -> bool:
    return file.name[: -len(suffix)].endswith(MASK)
