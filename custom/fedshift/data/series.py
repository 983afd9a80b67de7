"""The scans of a DICOM folder, and the files of each.

A series of single slices is one scan, named by its folder, or, in a folder with several, by the folder and its UID:
``FOLDER/1.2.840.1``. An enhanced image, which is a volume in one file, is named by that file. One that was split into
several files (a concatenation; or instances of one series at different places) is named like a series.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from fedshift.data.dicom import DicomFault, Identity, identify, looks_like_dicom
from fedshift.data.dicom_objects import CT_IMAGES, quiet
from fedshift.data.scan_file import FETCH, ScanError, is_broken_link, suffix_of
from fedshift.schema.names import few_names

_UID = re.compile(r"[0-9][0-9.]{0,63}")


@dataclass(frozen=True)
class Listed:
    """The files of one scan in a folder: of a series, or of an enhanced image."""

    uid: str
    """Of the series; of the concatenation, where the series has several images."""
    series: str
    files: tuple[Path, ...]

    @property
    def is_image(self) -> bool:
        """Whether it is an enhanced image in one file."""
        return len(self.files) == 1 and is_multiframe_file(self.files[0])


def folder_and_uid(path: Path) -> tuple[Path, str | None]:
    """The folder of a series, and its UID where the path names that too."""
    if not path.is_dir() and not path.exists() and _UID.fullmatch(path.name) and path.parent.is_dir():
        return path.parent, path.name
    return path, None


def is_series(path: Path) -> bool:
    """Whether a path names a folder, or a series in it: no file."""
    return folder_and_uid(path)[0].is_dir()


def is_multiframe_file(path: Path) -> bool:
    identity = identify(path)
    return identity is not None and identity.is_multiframe


def is_dicom(path: Path) -> bool:
    """Whether a scan is read from DICOM."""
    return is_series(path) or is_multiframe_file(path)


def is_ct(path: Path) -> bool:
    """Whether a scan is read from DICOM, and from CT by what its files say."""
    folder, uid = folder_and_uid(path)
    known = _look_into(folder, uid).known.values() if folder.is_dir() else filter(None, [identify(folder)])
    first = next((identity for identity in known if identity.is_scan and uid in (None, identity.series)), None)
    return first is not None and first.sop_class in CT_IMAGES


def series_in(folder: Path) -> list[Path]:
    """The scans among the DICOM files directly in a folder, as paths; masks, reports and plans are left out."""
    return [path for paths in series_by_uid(folder).values() for path in paths]


def series_by_uid(folder: Path) -> dict[str, list[Path]]:
    """`series_in` by the UID of the series, of which there may be several enhanced images, each a path.

    A folder whose files cannot be told apart stands for one series, with the UID "", and whoever reads it says what is
    wrong.
    """
    held = _look_into(folder)
    if held.unread or any(identity.is_scan and not _UID.fullmatch(identity.series) for identity in held.known.values()):
        return {"": [folder]}
    scans = held.scans
    if len(scans) == 1 and not scans[0].is_image:
        return {scans[0].series: [folder]}
    paths: dict[str, list[Path]] = {}
    for scan in scans:
        paths.setdefault(scan.series, []).append(scan.files[0] if scan.is_image else folder / scan.uid)
    return paths


def list_series(path: Path) -> Listed:
    """The files of the scan that a folder holds, or that a path names in it."""
    folder, wanted = folder_and_uid(path)
    held = _look_into(folder, wanted)
    known, unread, scans = held.known, held.unread, held.scans
    if held.lost:
        what = f"holds {len(held.lost)} link(s) such as {held.lost[0]} to a file that does not exist"
        raise ScanError("file-missing", path, what, FETCH)
    if unread and not known:
        what = f"holds {len(unread)} DICOM file(s), none of which can be read"
        raise ScanError("file-damaged", path, what, "export the series again")
    if unread:
        what = f"has {len(unread)} file(s) such as {unread[0].name} that cannot be read as a slice of the series"
        raise ScanError("series-unclear", path, what, "export the series again")
    if known and not scans:
        what = f"holds {len(known)} DICOM file(s), none of which is an image"
        raise ScanError("series-missing", path, what, "name the folder of the scan")
    if not scans:
        if volumes := sorted(entry.name for entry in folder.iterdir() if suffix_of(entry)):
            pattern = folder.parent / "*" / f"*{suffix_of(Path(volumes[0]))}"
            remedy = f"move the scan up, or name images and masks by patterns, such as '{pattern}'"
            raise ScanError("series-missing", path, f"holds {few_names(volumes)} and no DICOM series", remedy)
        raise ScanError("series-missing", path, "holds no DICOM series", "put the slices of one series there")
    of_wanted = [scan for scan in scans if wanted in (None, scan.uid, scan.series)]
    if not of_wanted:
        what = "is no series of its folder"
        raise ScanError("series-missing", path, what, "name the folder, or a series that is there")
    if len(of_wanted) == 1:
        return of_wanted[0]
    if len({scan.series for scan in of_wanted}) == 1:
        names = few_names([scan.files[0].name if scan.is_image else scan.uid for scan in of_wanted])
        what = f"holds {len(of_wanted)} enhanced images of one series ({names})"
        raise ScanError("several-series", path, what, "name one of them")
    shown = few_names([f"{scan.uid}{_described(scan.files[0])}" for scan in of_wanted])
    remedy = (
        "leave only the one that is used; if several are, move each into a sub-folder of its own, such as P1/T2 "
        "and P1/ADC beside P1/mask.nii.gz"
    )
    raise ScanError("several-series", path, f"holds {len(of_wanted)} DICOM series ({shown})", remedy)


def first_file(path: Path) -> Path:
    """A file of a DICOM scan, to look at what all of them say.

    Raises:
        ScanError: as `list_series`.
    """
    return list_series(path).files[0] if is_series(path) else path


def whole_of(file: Path) -> Listed | None:
    """The scan that an enhanced image is a part of, if other parts of it lie beside it."""
    identity = identify(file)
    others = _look_into(file.parent, identity.series if identity else "").known
    known = {path: other for path, other in others.items() if identity and other.series == identity.series}
    scans = _scans(known) if len(known) > 1 else []
    return next((scan for scan in scans if file in scan.files and len(scan.files) > 1), None)


def files_of(path: Path, uid: str) -> list[Path]:
    """The files of the series ``uid`` in the folder that a scan's path names; of an enhanced image its file."""
    if path.is_file():
        return [path]
    known = _look_into(folder_and_uid(path)[0], uid).known
    return [file for file, identity in known.items() if identity.series == uid]


@dataclass(frozen=True)
class _Folder:
    known: dict[Path, Identity]
    """The DICOM files that can be read, with what they are."""
    unread: list[Path]
    """Those that cannot."""
    lost: list[str]
    """Names of links to nowhere."""

    @cached_property
    def scans(self) -> list[Listed]:
        return _scans(self.known)


def _look_into(folder: Path, uid: str | None = None) -> _Folder:
    """What lies in a folder, which is listed once however many series are read from it.

    It is listed again if names in it have changed, or files of the series or image ``uid``; None for all files.
    """
    held = _list(folder, folder.stat().st_mtime_ns)
    asked = (
        (file, identity)
        for file, identity in held.known.items()
        if uid in (None, identity.series, identity.concatenation, identity.instance)
    )
    if not held.unread and not held.lost and all(identify(file) == identity for file, identity in asked):
        return held
    _list.cache_clear()
    return _list(folder, folder.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _list(folder: Path, changed: int) -> _Folder:
    entries = sorted(folder.iterdir())
    all_files = {file: identify(file) for file in entries if looks_like_dicom(file)}
    known = {
        file: identity for file, identity in all_files.items() if identity and (identity.series or identity.is_no_scan)
    }
    unread = [file for file in all_files if file not in known]
    return _Folder(known, unread, [entry.name for entry in entries if is_broken_link(entry)])


def _scans(known: dict[Path, Identity]) -> list[Listed]:
    of_series: dict[str, list[Path]] = {}
    for file, identity in known.items():
        if identity.is_scan:
            of_series.setdefault(identity.series, []).append(file)
    scans = []
    for uid, files in sorted(of_series.items()):
        if not all(known[file].is_multiframe for file in files):
            scans.append(Listed(uid, uid, tuple(files)))
            continue
        images: dict[str, list[Path]] = {}
        for file in files:
            images.setdefault(known[file].concatenation or known[file].instance, []).append(file)
        if len(images) == 1 or _are_parts(list(images.values())):
            scans.append(Listed(uid, uid, tuple(files)))
        else:
            scans += [Listed(image, uid, tuple(parts)) for image, parts in images.items()]
    return scans


def _are_parts(images: Sequence[Sequence[Path]]) -> bool:
    """Whether enhanced images of one series are parts of a scan: they lie in parallel, at different places."""
    from fedshift.data.dicom_frames import frames_in
    from fedshift.data.dicom_volumes import same_places

    try:
        with quiet():
            of_images = [[frame for file in files for frame in frames_in(file)[0]] for files in images]
    except DicomFault:
        return True  # whoever reads them says what is wrong
    return any(not same_places(of_images[0], frames) for frames in of_images[1:])


def _described(file: Path) -> str:
    """What a series is called, in quotes, by one of its files; nothing where it does not say so."""
    import pydicom

    with quiet():
        description = pydicom.dcmread(file, specific_tags=["SeriesDescription"]).get("SeriesDescription", "")
    return f" {str(description).strip()!r}" if description else ""
