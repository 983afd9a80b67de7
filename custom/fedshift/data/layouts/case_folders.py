"""A folder for each case, with a file for each sequence and the mask: ``P1/T2.nii.gz``, ``P1/mask.nii.gz``."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from fedshift.data.cases import CaseTable
from fedshift.data.dicom import is_dicom_mask, looks_like_dicom
from fedshift.data.layouts.names import MASK_WORD, NamedImage, match
from fedshift.data.layouts.studies import pair_studies
from fedshift.data.scan_file import Finding, as_compared, same_form, suffix_of
from fedshift.data.scan_folders import mask_files, scan_files, visible
from fedshift.data.scans import stem_of

_ENDS = re.compile(rf"(?:(.*?)[ _.-])?{MASK_WORD}", re.IGNORECASE)
_BEGINS = re.compile(rf"{MASK_WORD}[ _.-](.*)", re.IGNORECASE)


def recognise(folder: Path, sequences: Sequence[str]) -> CaseTable | None:
    """The cases of a folder of case folders; None of another layout.

    A folder with ``Case00`` and ``Case00_segmentation`` is a site with one case, unless it is called Case00. Folders
    that hold nothing but DICOM are studies, unless several sequences are wanted or folders are called like the one.
    """
    cases = [entry for entry in visible(folder) if entry.is_dir()]
    if scan_files(folder) or not any(map(is_case, cases)):
        return None
    by_names = len(sequences) > 1 or _have_series(cases, sequences) or any(map(scan_files, cases))
    return _pair(folder, cases, sequences) if by_names else pair_studies(folder)


def is_case(folder: Path) -> bool:
    """Whether a folder holds one case: a mask, and images whose names tell their sequence."""
    files = mask_files(folder)
    masks = {file: name[1] for file in files if (name := _mask_name(file, folder))}
    if not masks:
        return False
    images = {stem_of(file).lower() for file in files if file not in masks}
    has_series = any(entry.is_dir() for entry in visible(folder))
    has_slices = any(map(suffix_of, masks)) and _has_slices(folder, masks)
    if not (images or has_series or has_slices):
        return False
    # A mask that is called like another file is of that file: then each file is a case, and the folder a site.
    other_cases = {name.lower() for name in masks.values() if name is not None} - {folder.name.lower()}
    named_otherwise = sum(name is not None and name.lower() in other_cases for name in masks.values())
    has_own_mask = len(masks) == 1 or named_otherwise < len(masks)
    return has_own_mask and not other_cases & images


def _pair(folder: Path, cases: Sequence[Path], sequences: Sequence[str]) -> CaseTable:
    """The cases, which are called as the folders are.

    A sequence is what a file's name has besides the name of its folder, so ``P1/P1_T2.nii.gz`` is T2, as is a folder
    ``P1/T2`` of DICOM files. With ``sequences``, other files are passed over. A file whose name ends or begins with a
    word for masks is a mask, also a second reader's ``mask_reader2``, which as a sequence would tell the answer.
    """
    images: list[NamedImage] = []
    masks: list[tuple[str, Path]] = []
    findings: list[Finding] = []
    spelling: dict[str, str] = {as_compared(name): name for name in sequences}
    for case in cases:
        files = mask_files(case)
        of_case = [file for file in files if _mask_name(file, case)]
        if any(map(is_dicom_mask, of_case)):  # another one says by its content that it is a mask, whatever its name
            of_case += [file for file in files if file not in of_case and is_dicom_mask(file)]
        if len(of_case) > 1:
            what = f"holds {len(of_case)} masks ({', '.join(file.name for file in of_case)})"
            findings.append(Finding("error", "masks-several", case, what, "keep one of them", case.name))
            continue
        series = [entry for entry in visible(case) if entry.is_dir() and any(visible(entry))]
        entries = sorted([*(file for file in scan_files(case) if file not in of_case), *series])
        if of_case and not entries and _has_slices(case, of_case):
            remedy = "put them into a folder with the sequence's name, such as T2"
            findings.append(Finding("error", "loose-slices", case, "holds loose DICOM slices", remedy, case.name))
            continue
        masks += [(case.name, file) for file in of_case]
        for entry in entries:
            key = _sequence(entry, case)
            if not sequences or as_compared(key) in spelling:
                images.append(NamedImage(case.name, entry, spelling.setdefault(as_compared(key), key)))
    paired = match(images, masks, name=folder.name, folder=folder, layout="case folders", keys=sequences)
    return replace(paired, findings=(*findings, *paired.findings))


def _have_series(cases: Sequence[Path], sequences: Sequence[str]) -> bool:
    wanted = set(map(as_compared, sequences))
    return any(
        as_compared(_sequence(entry, case)) in wanted for case in cases for entry in visible(case) if entry.is_dir()
    )


def _has_slices(folder: Path, masks: Collection[Path]) -> bool:
    return any(looks_like_dicom(entry) for entry in visible(folder) if entry.is_file() and entry not in masks)


def _mask_name(file: Path, case: Path) -> re.Match[str] | None:
    """A match of the name of a mask in a case's folder; its first group is what the name has besides."""
    return _ENDS.fullmatch(stem_of(file)) or _BEGINS.fullmatch(_sequence(file, case))


def _sequence(entry: Path, case: Path) -> str:
    """What the name of a file or folder has besides that of its case's folder."""
    stem, folder = same_form(stem_of(entry)), same_form(case.name)
    if stem.lower().startswith(folder.lower()):
        stem = stem[len(folder) :]
    return stem.strip(" _.-")
