"""A folder for each case, with a file for each sequence and the mask: ``P1/T2.nii.gz``, ``P1/mask.nii.gz``.

Of pictures it has one and its mask: ``P1/photo.jpg``, ``P1/mask.png``, or a mask for each structure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from fedshift.data.cases import CaseTable
from fedshift.data.dicom import is_dicom_mask, looks_like_dicom
from fedshift.data.layouts.names import MASK_WORD, NamedImage, match
from fedshift.data.layouts.studies import pair_studies
from fedshift.data.picture_structures import EACH
from fedshift.data.scan_file import Finding, as_compared, has_picture_name, same_form, suffix_of
from fedshift.data.scan_folders import mask_files, scan_files, visible
from fedshift.data.scans import stem_of

_ENDS = re.compile(rf"(?:(.*?)[ _.-])?{MASK_WORD}", re.IGNORECASE)
_BEGINS = re.compile(rf"{MASK_WORD}[ _.-](.*)", re.IGNORECASE)
_FOLDER = re.compile("segmentations?|segs?|masks?|labels?|structures?|rois?", re.IGNORECASE)
"""Names of a folder in a case's folder with a mask for each structure."""


def recognise(folder: Path, sequences: Sequence[str]) -> CaseTable | None:
    """The cases of a folder of case folders; None of another layout.

    A folder with ``Case00`` and ``Case00_segmentation`` is a site with one case, unless it is called Case00. Folders
    that hold nothing but DICOM are studies, unless several sequences are wanted or folders are called like the one.
    """
    cases = [entry for entry in visible(folder) if entry.is_dir()]
    if _files(folder) or not any(map(is_case, cases)):
        return None
    by_names = len(sequences) > 1 or _have_series(cases, sequences) or any(map(_files, cases))
    return _pair(folder, cases, sequences) if by_names else pair_studies(folder)


def is_case(folder: Path) -> bool:
    """Whether a folder holds one case: a mask, and images whose names tell their sequence."""
    files = mask_files(folder) or _files(folder)
    masks = {file: name[1] for file in files if (name := _mask_name(file, folder))}
    if not masks:
        return _folder_of_structures(folder) is not None
    images = {stem_of(file).lower() for file in files if file not in masks}
    has_series = any(entry.is_dir() for entry in visible(folder)) and not any(map(has_picture_name, files))
    has_slices = any(map(suffix_of, masks)) and _has_slices(folder, masks)
    if not (images or has_series or has_slices):
        return False
    if len(masks) > 1 and _called_by_structure([*masks], [file for file in files if file not in masks], folder):
        return True
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
        files = mask_files(case) or _files(case)
        of_case = [file for file in files if _mask_name(file, case)]
        if any(map(is_dicom_mask, of_case)):  # another one says by its content that it is a mask, whatever its name
            of_case += [file for file in files if file not in of_case and is_dicom_mask(file)]
        structures = _folder_of_structures(case) if not of_case else None
        pattern = structures and _pattern([(file, stem_of(file)) for file in _files(structures)], structures, case)
        if len(of_case) > 1:
            pattern = _called_by_structure(of_case, [file for file in files if file not in of_case], case)
        if len(of_case) > 1 and pattern is None:
            what = f"holds {len(of_case)} masks ({', '.join(file.name for file in of_case)})"
            findings.append(Finding("error", "masks-several", case, what, "keep one of them", case.name))
            continue
        series = [entry for entry in visible(case) if entry.is_dir() and entry != structures and any(visible(entry))]
        series = [] if any(map(has_picture_name, files)) else series
        entries = sorted([*(file for file in _files(case) if file not in of_case), *series])
        if of_case and not entries and _has_slices(case, of_case):
            remedy = "put them into a folder with the sequence's name, such as T2"
            findings.append(Finding("error", "loose-slices", case, "holds loose DICOM slices", remedy, case.name))
            continue
        masks += [(case.name, file) for file in ([pattern] if pattern else of_case)]
        one_picture = len(entries) == 1 and has_picture_name(entries[0])
        for entry in entries:
            key = "" if one_picture else _sequence(entry, case)
            if not sequences or as_compared(key) in spelling:
                images.append(NamedImage(case.name, entry, spelling.setdefault(as_compared(key), key)))
    paired = match(images, masks, name=folder.name, folder=folder, layout="case folders", keys=sequences)
    return replace(paired, findings=(*findings, *paired.findings))


def _folder_of_structures(case: Path) -> Path | None:
    """The folder in a case's folder that has a mask for each structure, none of which is called like an image."""
    folder = next((entry for entry in visible(case) if entry.is_dir() and _FOLDER.fullmatch(entry.name)), None)
    if folder is None:
        return None
    images, structures = ({stem_of(file).lower() for file in _files(place)} for place in (case, folder))
    if not scan_files(case) and (len(images) > 1 or any(each.startswith(tuple(images)) for each in structures)):
        return None  # pictures and their masks
    return folder if images and structures and not images & structures else None


def _files(folder: Path) -> list[Path]:
    """The scans in a folder; its pictures, by their names, if it has none."""
    return scan_files(folder) or [entry for entry in visible(folder) if has_picture_name(entry) and entry.is_file()]


def _called_by_structure(masks: Sequence[Path], images: Sequence[Path], case: Path) -> Path | None:
    """The path that stands for masks which are called by a structure each; None for others."""
    named: list[tuple[Path, str]] = []
    for file in masks:
        match = _mask_name(file, case)
        is_file = suffix_of(file) or has_picture_name(file)
        structure = same_form(match[1] or "") if match and is_file else ""
        if structure.lower().startswith(f"{same_form(case.name).lower()}_"):
            structure = structure[len(case.name) + 1 :]
        named.append((file, structure))
    others = (case.name.lower(), *(_sequence(file, case).lower() for file in images))
    if not all(structure and not any(each.startswith(structure.lower()) for each in others) for _, structure in named):
        return None
    return _pattern(named, case, case)


def _pattern(named: Sequence[tuple[Path, str]], folder: Path, case: Path) -> Path | None:
    """The one path for files with the name of a structure each (`fedshift.data.picture_structures`)."""
    begin = f"{case.name}_"
    if folder != case and all(stem_of(file).startswith(begin) for file, _ in named):
        return folder / f"{begin}{EACH}"
    around = {tuple(stem_of(file).rsplit(structure, 1)) for file, structure in named}
    if len(around) != 1:
        return None
    before, after = around.pop()
    return folder / f"{before}{EACH}{after}"


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
