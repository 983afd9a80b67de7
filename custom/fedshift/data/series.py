"""The series of a DICOM folder, and the files of one in the order of its slices.

A series is named by its folder, or, in a folder with several, by the folder and its UID: ``FOLDER/1.2.840.1``; an
enhanced image, which is a volume in one file, by that file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.dicom import Identity, identify, looks_like_dicom
from fedshift.data.dicom_classes import CT_IMAGES
from fedshift.data.scan_file import FETCH, is_broken_link, suffix_of
from fedshift.schema.names import few_names

_DESCRIPTION = "0008|103e"
_UID = re.compile(r"[0-9][0-9.]{0,63}")


class NoSeries(Exception):
    """Why a folder is not one series: ``what`` is wrong with it, and how to fix it (``mend``)."""

    def __init__(self, what: str, mend: str) -> None:
        """``what`` is wrong with the folder, as the rest of a sentence, and how to fix it."""
        super().__init__(what)
        self.what, self.mend = what, mend


@dataclass(frozen=True)
class Listed:
    """The files of a series as GDCM sorts them, and those of the folder's other series."""

    folder: Path
    files: tuple[Path, ...]
    others: tuple[Path, ...]


def folder_and_uid(path: Path) -> tuple[Path, str | None]:
    """The folder of a series, and its UID where the path names that too."""
    if not path.is_dir() and not path.exists() and _UID.fullmatch(path.name) and path.parent.is_dir():
        return path.parent, path.name
    return path, None


def is_series(path: Path) -> bool:
    """Whether a path names a folder, or a series in it: no file."""
    return folder_and_uid(path)[0].is_dir()


def is_multiframe_file(path: Path) -> bool:
    """Whether a file is an enhanced DICOM image."""
    found = identify(path)
    return found is not None and found.is_multiframe


def is_dicom(path: Path) -> bool:
    """Whether a scan is read from DICOM."""
    return is_series(path) or is_multiframe_file(path)


def is_ct(path: Path) -> bool:
    """Whether a scan is read from DICOM, and from CT by what its files say."""
    folder, uid = folder_and_uid(path)
    files = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    for found in filter(None, map(identify, files)):
        if found.is_scan and uid in (None, found.series):
            return found.sop_class in CT_IMAGES
    return False


def series_in(folder: Path) -> list[Path]:
    """The scans among the DICOM files directly in a folder, as paths; masks, reports and plans are left out."""
    return [path for paths in series_by_uid(folder).values() for path in paths]


def series_by_uid(folder: Path) -> dict[str, list[Path]]:
    """`series_in` by the UID of the series; enhanced images, each a path, may be several of a series.

    A folder whose files cannot be told apart stands for one series, with the UID "", and whoever reads it says what is
    wrong.
    """
    found: dict[str, list[tuple[Path, Identity]]] = {}
    for file in sorted(entry for entry in folder.iterdir() if looks_like_dicom(entry)):
        identity = identify(file)
        if identity is None or (identity.is_scan and not _UID.fullmatch(identity.series)):
            return {"": [folder]}
        if identity.is_scan:
            found.setdefault(identity.series, []).append((file, identity))
    paths: dict[str, list[Path]] = {}
    for uid, files in sorted(found.items()):
        whole = all(identity.is_multiframe for _, identity in files)
        paths[uid] = [file for file, _ in files] if whole else [folder / uid]
    if len(paths) == 1 and not next(iter(paths.values()))[0].exists():
        return {uid: [folder] for uid in paths}
    return paths


def list_series(path: Path) -> Listed:
    """The files of the series that a path names, in GDCM's order.

    Raises:
        NoSeries: it names none, or several.
        RuntimeError: GDCM cannot read the folder.
    """
    folder, wanted = folder_and_uid(path)
    files = {
        uid: tuple(map(Path, sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(folder), uid)))
        for uid in sitk.ImageSeriesReader.GetGDCMSeriesIDs(str(folder))
    }
    if not files:
        lost = sorted(entry.name for entry in folder.iterdir() if is_broken_link(entry))
        if lost:  # GDCM then lists nothing of the folder
            raise NoSeries(f"holds {len(lost)} link(s) such as {lost[0]} to a file that does not exist", FETCH)
        unread = sum(map(looks_like_dicom, folder.iterdir()))
        if unread:
            what = f"holds {unread} DICOM file(s), none of which can be read"
            raise NoSeries(what, "export the series again")
        if volumes := sorted(entry.name for entry in folder.iterdir() if suffix_of(entry)):
            pattern = folder.parent / "*" / f"*{suffix_of(Path(volumes[0]))}"
            mend = f"move the scan up, or name images and masks by patterns, such as '{pattern}'"
            raise NoSeries(f"holds {few_names(volumes)} and no DICOM series", mend)
        raise NoSeries("holds no DICOM series", "put the slices of one series there")
    scans = {uid: names for uid, names in files.items() if (found := identify(names[0])) is None or found.is_scan}
    scans = scans or files
    if wanted is not None and wanted not in scans:
        raise NoSeries("is no series of its folder", "name the folder, or a series that is there")
    if wanted is None and len(scans) > 1:
        shown = few_names([f"{uid}{_described(names[0])}" for uid, names in scans.items()])
        raise NoSeries(
            f"holds {len(scans)} DICOM series ({shown})",
            "leave only the one that is used; if several are, move each into a sub-folder of its own, such as P1/T2 "
            "and P1/ADC beside P1/mask.nii.gz",
        )
    chosen = wanted if wanted is not None else next(iter(scans))
    known = {name for names in files.values() for name in names}
    others = {entry for entry in folder.iterdir() if _is_other(entry)} | known
    return Listed(folder, scans[chosen], tuple(sorted(others - set(scans[chosen]))))


def _described(file: Path) -> str:
    """What a series is called, in quotes, by one of its files; nothing where it does not say so."""
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(file))
    try:
        reader.ReadImageInformation()
        return f" {reader.GetMetaData(_DESCRIPTION).strip()!r}" if reader.HasMetaDataKey(_DESCRIPTION) else ""
    except RuntimeError:
        return ""


def _is_other(file: Path) -> bool:
    """Whether a file is a mask, report or plan, which GDCM does not always list."""
    found = identify(file)
    return found is not None and bool(found.series) and not found.is_scan
