"""A folder for each case, with a file for each sequence and the mask: ``P1/T2.nii.gz``, ``P1/mask.nii.gz``."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from fedshift.data.casefiles import Finding
from fedshift.data.dicom import looks_like_dicom
from fedshift.data.dicom_masks import is_dicom_mask
from fedshift.data.pairing import MASK_WORD, Found, ScanSet, mask_files, match, scan_files, visible
from fedshift.data.scan_file import ScanError, as_compared, same_form, suffix_of
from fedshift.data.scans import stem_of

_ENDS = re.compile(rf"(?:(.*?)[ _.-])?{MASK_WORD}", re.IGNORECASE)
_BEGINS = re.compile(rf"{MASK_WORD}[ _.-](.*)", re.IGNORECASE)


def are_case_folders(folder: Path) -> bool:
    """Whether the folders in a folder hold a case each: one mask, and images whose names tell their sequence.

    A folder with ``Case00`` and ``Case00_segmentation`` is a site with one case, unless it is called Case00.
    """
    if scan_files(folder):
        return False
    return any(is_case(entry) for entry in visible(folder) if entry.is_dir())


def are_dicom_only(folder: Path) -> bool:
    """Whether case folders hold nothing but DICOM: then they are studies, of which a mask says its series."""
    return not any(scan_files(entry) for entry in visible(folder) if entry.is_dir())


def have_series(folder: Path, sequences: Sequence[str]) -> bool:
    """Whether a case folder has a folder for one of the sequences."""
    wanted = set(map(as_compared, sequences))
    cases = [entry for entry in visible(folder) if entry.is_dir()]
    return any(
        as_compared(_key(stem_of(entry), case.name)) in wanted
        for case in cases
        for entry in visible(case)
        if entry.is_dir()
    )


def pair_case_folders(folder: Path, sequences: Sequence[str] = ()) -> ScanSet:
    """The cases of a folder of case folders, which are called as the folders are.

    A sequence is what a file's name has besides the name of its folder, so ``P1/P1_T2.nii.gz`` is T2, as is a folder
    ``P1/T2`` of DICOM files. With ``sequences``, other files are passed over. A file whose name ends or begins with a
    word for masks is a mask, also a second reader's ``mask_reader2``, which as a sequence would tell the answer.

    Raises:
        ScanError: no folder there.
    """
    if not folder.is_dir():
        raise ScanError(folder, "is not a folder", "name the folder that holds the scans")
    images: list[Found] = []
    masks: list[tuple[str, Path]] = []
    findings: list[Finding] = []
    spelled: dict[str, str] = {as_compared(name): name for name in sequences}
    for case in (entry for entry in visible(folder) if entry.is_dir()):
        files = mask_files(case)
        found = [file for file in files if _mask(file, case)]
        if any(map(is_dicom_mask, found)):  # another one says by its content that it is a mask, whatever its name
            found += [file for file in files if file not in found and is_dicom_mask(file)]
        if len(found) > 1:
            shown = ", ".join(file.name for file in found)
            findings.append(
                Finding("error", case, f"holds {len(found)} masks ({shown})", "keep one of them", case.name)
            )
            continue
        series = [entry for entry in visible(case) if entry.is_dir() and any(visible(entry))]
        entries = sorted([*(file for file in scan_files(case) if file not in found), *series])
        if found and not entries and _has_slices(case, found):
            mend = "put them into a folder with the sequence's name, such as T2"
            findings.append(Finding("error", case, "holds loose DICOM slices", mend, case.name))
            continue
        masks += [(case.name, file) for file in found]
        for entry in entries:
            key = _key(stem_of(entry), case.name)
            if sequences and as_compared(key) not in spelled:
                continue
            images.append(Found(case.name, entry, spelled.setdefault(as_compared(key), key)))
    paired = match(images, masks, name=folder.name, folder=folder, layout="case folders", keys=sequences)
    findings += paired.findings
    return ScanSet(paired.name, folder, "case folders", paired.cases, tuple(findings), paired.sequences)


def is_case(folder: Path) -> bool:
    """Whether a folder holds one case: a mask, and images whose names tell their sequence."""
    files = mask_files(folder)
    masks = {file: found[1] for file in files if (found := _mask(file, folder))}
    images = {stem_of(file).lower() for file in files if file not in masks}
    if not masks:
        return False
    has_series = any(entry.is_dir() for entry in visible(folder))
    if not (images or has_series or (any(map(suffix_of, masks)) and _has_slices(folder, masks))):
        return False
    of_others = [of.lower() for of in masks.values() if of is not None and of.lower() != folder.name.lower()]
    own = len(masks) == 1 or len(of_others) < len(masks)
    return own and not any(of in images for of in of_others)


def _has_slices(folder: Path, masks: Collection[Path]) -> bool:
    """Whether DICOM slices lie directly in a folder."""
    return any(looks_like_dicom(entry) for entry in visible(folder) if entry.is_file() and entry not in masks)


def _mask(file: Path, case: Path) -> re.Match[str] | None:
    """Whether a file in a case's folder is a mask by its name; in the first group what the name has besides."""
    stem = stem_of(file)
    return _ENDS.fullmatch(stem) or _BEGINS.fullmatch(_key(stem, case.name))


def _key(stem: str, case: str) -> str:
    stem, case = same_form(stem), same_form(case)
    if stem.lower().startswith(case.lower()):
        stem = stem[len(case) :]
    return stem.strip(" _.-")
