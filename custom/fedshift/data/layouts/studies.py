"""DICOM studies with DICOM masks: a mask belongs to the series that it means, wherever both files lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedshift.data.cases import CaseFiles, CaseTable
from fedshift.data.dicom import identify, is_dicom_mask, looks_like_dicom
from fedshift.data.named_masks import References, frame_of, references
from fedshift.data.scan_file import Finding, ScanError, same_form
from fedshift.data.scan_folders import visible
from fedshift.data.series import files_of, series_by_uid

DEEPEST = 5  # levels of folders below the one that is named: patient, study, series, and some to spare


def has_dicom_masks(folder: Path) -> bool:
    """Whether there is a DICOM SEG or RT Structure Set somewhere below a folder."""
    faults: list[ScanError] = []
    for file in (file for inside in _folders(folder) for file in visible(inside)):
        try:
            if is_dicom_mask(file):
                return True
        except ScanError as error:
            faults.append(error)
    if faults:
        raise faults[0]
    return False


def recognise(folder: Path, sequences: Sequence[str]) -> CaseTable | None:
    """The series that DICOM masks below a folder refer to; None if there is no such mask."""
    return pair_studies(folder) if has_dicom_masks(folder) else None


def pair_studies(images: Path, masks: Path | None = None, name: str | None = None) -> CaseTable:
    """The series that DICOM masks refer to; the masks lie among the images, or in a folder of their own.

    A case is called as the folder directly in ``images`` that its series lies in, or as ``images`` itself where the
    series lies there without one. Series without a mask are passed over, since a study has many; a case without any
    mask is an error.
    """
    series, findings = _series_below(images)
    scans = _Scans(series)
    of_case: dict[str, list[tuple[Path, Path]]] = {}
    for mask in (file for folder in _folders(masks or images) for file in visible(folder)):
        try:
            if not is_dicom_mask(mask):
                continue
            meant, how = scans.meant_by(references(mask))
        except ScanError as error:
            finding = Finding.from_error(error)
            findings += [] if finding in findings else [finding]  # of a slice, as above
            continue
        if len(meant) != 1:
            what = f"refers to {len(meant)} series{how}" if meant else "refers to a series that is not there"
            remedy = f"put the series of its image below {images}, once, or remove the mask"
            findings.append(Finding("error", "image-unknown", mask, what, remedy))
            continue
        of_case.setdefault(_case(meant[0], images), []).append((meant[0], mask))
    cases = []
    for case, pairs in sorted(of_case.items()):
        if len(pairs) > 1:
            shown = ", ".join(sorted(mask.name for _, mask in pairs)[:5])
            remedy = "keep one, and give each patient a folder"
            what = f"holds {len(pairs)} DICOM masks ({shown})"
            findings.append(Finding("error", "masks-several", images / case, what, remedy, case))
        else:
            cases.append(CaseFiles(case, (pairs[0][0],), pairs[0][1]))
    bare = {_case(path, images): path for paths in series.values() for path in paths}
    for case in sorted(bare.keys() - of_case.keys()):
        what = f"is of case {case}, which has no mask"
        findings.append(Finding("error", "mask-missing", bare[case], what, "add the mask or remove the case", case))
    return CaseTable(name or images.name, images, "studies", tuple(cases), tuple(findings))


def image_of(mask: Path, folder: Path) -> Path | None:
    """The scan below a folder that a DICOM mask refers to; None if it is not there, or not one."""
    meant, _ = _Scans(_series_below(folder)[0]).meant_by(references(mask))
    return meant[0] if len(meant) == 1 else None


def _series_below(images: Path) -> tuple[dict[str, list[Path]], list[Finding]]:
    """The scans of each series below a folder, and what cannot be read there."""
    series: dict[str, list[Path]] = {}
    findings: list[Finding] = []
    for folder in _folders(images):
        try:
            if any(map(looks_like_dicom, visible(folder))):
                for uid, paths in series_by_uid(folder).items():
                    series.setdefault(uid, []).extend(paths)
        except ScanError as error:
            findings.append(Finding.from_error(error))
    return series, findings


class _Scans:
    def __init__(self, series: Mapping[str, Sequence[Path]]) -> None:
        self._series = series
        self._by_image: dict[str, Path] = {}
        self._by_frame: dict[str, list[Path]] = {}

    def meant_by(self, references: References) -> tuple[list[Path], str]:
        """The scans that a mask means, and by what if not by the UID of the series.

        Masks do not always name the series. Then one of the images tells it; or, where no image is named, the frame of
        reference, if a single series has it.
        """
        named = [path for uid in references.series for path in self._series.get(uid, [])]
        if len(named) == 1:
            return named, ""
        by_image = {path for uid in references.images if (path := self._images.get(uid)) is not None}
        if by_image and (not named or by_image <= set(named)):
            return sorted(by_image), " by the images that it names"
        if named or references.series or references.images or not references.frames:
            return named, ""
        by_frame = [path for frame in references.frames for path in self._frames.get(frame, [])]
        return by_frame, " by its frame of reference alone"

    @property
    def _images(self) -> Mapping[str, Path]:
        """The UID of each image -> its scan; read once it is asked for."""
        if not self._by_image:
            for uid, paths in self._series.items():
                for path in paths:
                    for identity in filter(None, map(identify, files_of(path, uid))):
                        self._by_image[identity.instance] = path
        return self._by_image

    @property
    def _frames(self) -> Mapping[str, list[Path]]:
        """The UID of a frame of reference -> the scans that have it; read once it is asked for."""
        if not self._by_frame:
            for uid, paths in self._series.items():
                for path in paths:
                    for file in files_of(path, uid)[:1]:
                        self._by_frame.setdefault(frame_of(file), []).append(path)
        return self._by_frame


def _case(path: Path, images: Path) -> str:
    inside = path.relative_to(images).parts
    return same_form(inside[0] if inside and (images / inside[0]).is_dir() else images.resolve().name)


def _folders(folder: Path, levels: int = DEEPEST) -> Iterator[Path]:
    yield folder
    for entry in visible(folder):
        if levels and entry.is_dir():
            yield from _folders(entry, levels - 1)
