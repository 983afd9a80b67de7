"""What lies in a folder: its scans, as files, DICOM series, or the folder itself as a series; masks; other formats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from fedshift.data.dicom import is_dicom_mask, looks_like_dicom
from fedshift.data.other_formats import how_to_convert, passed_over
from fedshift.data.picture_files import is_picture
from fedshift.data.scan_file import Finding, is_broken_link, reading, suffix_of
from fedshift.data.series import series_in
from fedshift.schema.errors import DataError
from fedshift.schema.names import few_names

MASK = "_mask"  # how the stems of masks end that `fedshift predict` writes
OVERLAY = "_overlay"  # and those of its pictures of them
DEEPEST = 4  # levels of folders in a DICOM study: patient, study, series, and one to spare


def visible(folder: Path) -> list[Path]:
    """Entries of a folder without hidden ones, such as the ``._`` files of macOS archives.

    Raises:
        ScanError: the folder may not be read.
    """
    with reading(folder):
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "__MACOSX")))
        for entry in entries[:1]:
            entry.is_dir()  # a folder may let its entries be listed and not be looked at
        return entries


def scan_files(folder: Path) -> list[Path]:
    """The scans in a folder, by name; also links to nowhere, so that whoever reads them says so."""
    return [entry for entry in visible(folder) if suffix_of(entry) and (entry.is_file() or is_broken_link(entry))]


def picture_files(folder: Path) -> list[Path]:
    """The pictures in a folder, by name."""
    return [entry for entry in visible(folder) if is_picture(entry) and (entry.is_file() or is_broken_link(entry))]


def mask_files(folder: Path) -> list[Path]:
    """The files in a folder that may be masks, DICOM masks among them, by name."""
    return sorted([*scan_files(folder), *(entry for entry in visible(folder) if is_dicom_mask(entry))])


def contents(folder: Path) -> str:
    """What is in a folder, in a few words."""
    names = [entry.name + ("/" if entry.is_dir() else "") for entry in visible(folder)]
    return f"found {few_names(names)}" if names else "it is empty"


def scans_in(paths: Iterable[Path]) -> list[Path]:
    """Files as they are; of a folder its scans, in order of their names.

    A folder with DICOM slices stands for its series (`fedshift.data.series`), without masks and reports. Any other
    folder stands for the scan files directly in it, without masks that `fedshift predict` wrote, and for the series in
    its sub-folders, as in a DICOM study.

    Raises:
        DataError: a folder without either.
    """
    scans: list[Path] = []
    for path in paths:
        inside = _inside(path, DEEPEST) if path.is_dir() else [path]
        if not inside and (others := list(passed_over(path, DEEPEST))):
            what = f"{path} holds no scan that is read, only {few_names([file.name for file in others])}"
            raise DataError("format-not-read", f"{what}: {how_to_convert(others)}")
        if not inside:
            remedy = "name a folder with NIfTI, NRRD or MetaImage files, or with DICOM series"
            raise DataError("scans-missing", f"{path} holds no scan: {remedy}")
        scans += inside
    return list(dict.fromkeys(scans))


def pictures_in(paths: Iterable[Path]) -> list[Path]:
    """Files as they are; of a folder the pictures directly in it, without masks and overlays of `fedshift predict`.

    Raises:
        DataError: a folder without pictures.
    """
    pictures: list[Path] = []
    for path in paths:
        inside = [path]
        if path.is_dir():
            inside = [file for file in picture_files(path) if not file.stem.endswith((MASK, OVERLAY))]
            if not inside:
                remedy = "name PNG, JPEG, TIFF, BMP or DICOM files, or a folder with such"
                raise DataError("scans-missing", f"{path} holds no picture: {remedy}")
        pictures += inside
    return list(dict.fromkeys(pictures))


def _inside(folder: Path, levels: int, *, files: bool = True) -> list[Path]:
    """The scans in a folder; without ``files`` only those that are DICOM."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    series = series_in(folder) if any(looks_like_dicom(entry) for entry in entries) else []
    scans = []
    if files and not series:  # beside slices a file is their series, in whatever form somebody keeps it
        scans = [entry for entry in entries if (entry.is_file() or is_broken_link(entry)) and _is_image(entry)]
    for entry in entries:
        if entry.is_dir() and levels:
            series += _inside(entry, levels - 1, files=False)
    return [*scans, *series]


def _is_image(file: Path) -> bool:
    suffix = suffix_of(file)
    return suffix is not None and not file.name[: -len(suffix)].endswith(MASK)


def not_read(paths: Iterable[Path]) -> Iterator[str]:
    """A line that names the scans in formats that are not read, in the folders in which `scans_in` looks, if any."""
    if files := [file for path in paths if path.is_dir() for file in passed_over(path, DEEPEST)]:
        yield f"not read: {few_names([file.name for file in files])}: {how_to_convert(files)}"


def warn_of_formats(files: Iterable[Path]) -> list[Finding]:
    """A warning for each folder that has some of these files, whose formats are not read."""
    held: dict[Path, list[Path]] = {}
    for file in files:
        held.setdefault(file.parent, []).append(file)
    findings = []
    for folder, unread in held.items():
        what = f"has scans that are not read: {few_names([file.name for file in unread])}"
        findings.append(Finding("warning", "format-not-read", folder, what, how_to_convert(unread)))
    return findings
