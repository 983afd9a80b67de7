"""Match the images of a folder with their masks: beside each other, or in two folders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from fedshift.data.cases import UNNAMED, CaseFiles, CaseTable, Layout
from fedshift.data.picture_files import is_picture
from fedshift.data.picture_structures import by_suffix, in_folders
from fedshift.data.scan_file import Finding, ScanError, as_compared, same_form
from fedshift.data.scan_folders import picture_files, scan_files, visible
from fedshift.data.scans import stem_of

MASK_WORD = "(?:segmentation|seg|mask|labels?)"
"""What tells a mask from its image, at the end or the beginning of a file's name."""
_ENDS = re.compile(rf"(.*)[_.-]{MASK_WORD}", re.IGNORECASE)
_BEGINS = re.compile(rf"{MASK_WORD}[_.-](.+)", re.IGNORECASE)
_ADD_EMPTY = "add its mask, which is empty where the picture has none of it"
NUMBERED = re.compile(r"(.+)_(\d{4})")  # stem of nnU-Net's image files: the case and the number of the sequence


@dataclass(frozen=True)
class NamedImage:
    """An image file, the case that it belongs to, and the key of its sequence ("" for one unnamed)."""

    case: str
    file: Path
    key: str = ""


def pair_beside(folder: Path, name: str | None = None) -> CaseTable:
    """Images and masks in one folder, distinguished by the mask's name: ``Case00`` and ``Case00_segmentation``."""
    files = scan_files(folder) or picture_files(folder)
    known = _cases(map(stem_of, files))
    masks = [(mask_id, file) for file in files if (mask_id := _masked(stem_of(file), known)) is not None]
    of_masks = {file for _, file in masks}
    images = [NamedImage(stem_of(file), file) for file in files if file not in of_masks]
    return match(_numbered(images, masks), masks, name=name or folder.name, folder=folder, layout="beside")


def pair_folders(
    images: Path, masks: Path, name: str | None = None, *, names: Sequence[str] = (), layout: Layout = "folders"
) -> CaseTable:
    """Images (files, or one DICOM series in each sub-folder) and masks of the same names in another folder.

    Images that are called ``<case>_0000``, ``<case>_0001`` and so on are the sequences of a case; ``names`` are theirs.
    """
    for folder, held in ((images, "scans"), (masks, "masks")):
        if not folder.is_dir():
            raise ScanError("not-a-folder", folder, "is not a folder", f"name the folder that holds the {held}")
    if images.resolve() == masks.resolve():
        return pair_beside(images, name)
    loose = [file for file in visible(images) if file.is_file() and file.suffix.lower() == ".dcm"]
    loose = [] if all(map(is_picture, loose)) else loose
    if loose:
        what = f"holds {len(loose)} loose DICOM file(s) such as {loose[0].name}"
        raise ScanError("loose-slices", images, what, "put the slices of each series into a sub-folder of its own")
    series = [entry for entry in visible(images) if entry.is_dir() and any(visible(entry))]
    scans, read = sorted([*scan_files(images), *series]), scan_files
    if not scans and (pictures := picture_files(images)):
        scans, read = pictures, picture_files
    entries = [NamedImage(stem_of(entry), entry) for entry in scans]
    stems = {as_compared(image.case) for image in entries}
    known = _cases(image.case for image in entries)
    if read is picture_files and (of_structures := _by_structure(masks, stems)) is not None:
        of_masks, lacking_masks = of_structures
        paired = match(entries, of_masks, name=name or images.parent.name, folder=images, layout=layout)
        return replace(paired, findings=(*paired.findings, *lacking_masks))
    mask_ids = []
    for file in read(masks) or scan_files(masks):
        stem = stem_of(file)
        mask_ids.append((stem if as_compared(stem) in stems | known else _masked(stem, known) or stem, file))
    below = [(entry.name, entry) for entry in visible(masks) if entry.is_dir()]
    entries = _numbered(entries, [*mask_ids, *below], several=len(names) > 1)
    lacking = {as_compared(image.case) for image in entries} - {as_compared(case) for case, _ in mask_ids}
    in_folders = [(case, entry) for case, entry in below if as_compared(case) in lacking]
    entries = [
        image for image in entries if as_compared(image.case) not in {as_compared(case) for case, _ in in_folders}
    ]
    unnumbered = not any(image.key for image in entries)
    paired = match(
        entries,
        mask_ids,
        name=name or images.parent.name,
        folder=images,
        layout=layout,
        names={"": names[0]} if names and unnumbered else {f"{k:04d}": each for k, each in enumerate(names)},
    )
    nested = [
        Finding(
            "error", "mask-is-folder", entry, "is a folder", f"put the mask itself in its place, as {case}.nii.gz", case
        )
        for case, entry in in_folders
    ]
    return replace(paired, findings=(*paired.findings, *nested))


def _by_structure(masks: Path, cases: Set[str]) -> tuple[list[tuple[str, Path]], list[Finding]] | None:
    """The masks of pictures with a file for each structure, in folders or by suffix; None of other masks."""
    of_case: dict[str, dict[str, Path]] = {}
    files = picture_files(masks)
    if not files:
        for folder in (entry for entry in visible(masks) if entry.is_dir()):
            for file in picture_files(folder):
                of_case.setdefault(stem_of(file), {})[folder.name] = file
        path_of = in_folders
    else:
        if any(as_compared(stem_of(file)) in cases or _masked(stem_of(file), cases) for file in files):
            return None
        for file in files:
            begin, _, structure = stem_of(file).rpartition("_")
            if as_compared(begin) not in cases:
                return None
            of_case.setdefault(begin, {})[structure] = file
        path_of = by_suffix
    structures = dict.fromkeys(name for mask_files in of_case.values() for name in mask_files)
    lacking = [
        Finding("error", "mask-missing", next(iter(mask_files.values())), f"has no {name} beside it", _ADD_EMPTY, case)
        for case, mask_files in of_case.items()
        for name in structures
        if name not in mask_files
    ]
    return ([(case, path_of(masks, case)) for case in of_case], lacking) if of_case else None


def match(
    images: Iterable[NamedImage],
    masks: Iterable[tuple[str, Path]],
    *,
    name: str,
    folder: Path,
    layout: Layout,
    keys: Sequence[str] = (),
    names: dict[str, str] | None = None,
) -> CaseTable:
    """Match images and masks by case, ignoring upper and lower case, and in which form a letter with an accent is.

    Of a case with two images of one sequence, or two masks, nothing says which is the right one: it is left out.
    ``keys``: the sequences that each case must have, in their order; by default all that any case has, sorted.
    ``names``: key -> name of a sequence, by default the key.
    """
    findings: list[Finding] = []
    unclear: set[str] = set()
    of_case: dict[str, dict[str, NamedImage]] = {}
    for image in images:
        of_keys = of_case.setdefault(as_compared(image.case), {})
        if image.key in of_keys:
            findings.append(doubled(image.case, of_keys[image.key].file, image.file))
            unclear.add(as_compared(image.case))
        of_keys.setdefault(image.key, image)
    of_mask: dict[str, tuple[str, Path]] = {}
    for case, file in masks:
        if as_compared(case) in of_mask:
            findings.append(doubled(case, of_mask[as_compared(case)][1], file))
            unclear.add(as_compared(case))
        of_mask.setdefault(as_compared(case), (case, file))
    names = names or {}
    keys = keys or tuple(names) or tuple(sorted({key for of_keys in of_case.values() for key in of_keys}))
    single = tuple(keys) in ((), ("",)) and not names
    sequences = () if single else tuple(names.get(key, key) for key in keys)
    cases = []
    for case_key, of_keys in of_case.items():
        first = next(iter(of_keys.values()))
        if case_key not in of_mask:
            wanted = f"{first.case}_segmentation" if layout == "beside" else f"{first.case} in the folder of masks"
            remedy = f"add {wanted}, or remove the image"
            findings.append(Finding("error", "mask-missing", first.file, "has no mask", remedy, first.case))
            continue
        lacking = [key for key in keys if key not in of_keys]
        findings += [_lacks(first, key, names.get(key, key), sequences) for key in lacking]
        unknown = [key for key in of_keys if key not in keys]
        findings += [_unknown(of_keys[key], sequences) for key in unknown]
        if not (lacking or unknown or case_key in unclear):
            files = tuple(of_keys[key].file for key in keys)
            cases.append(CaseFiles(same_form(first.case), files, of_mask[case_key][1], sequences=sequences))
    for case_key, (case, file) in of_mask.items():
        if case_key not in of_case:
            what = f"is a mask without an image {case}"
            findings.append(Finding("error", "image-missing", file, what, "add the image or remove the mask", case))
    return CaseTable(name, folder, layout, tuple(cases), tuple(findings), sequences)


def doubled(case: str, first: Path, second: Path) -> Finding:
    where = first.name if first.parent == second.parent else str(first)
    what = f"has the id {case}, as has {where}"
    return Finding("error", "case-twice", second, what, "rename or remove one of the two", case)


def _masked(stem: str, known: Set[str]) -> str | None:
    """The case that a mask is of, by its file's name; None for a name that is no mask's.

    One that begins like a mask's is one only if the rest is a case that is ``known``, see `_cases`.
    """
    if ends := _ENDS.fullmatch(stem):
        return ends[1]
    begins = _BEGINS.fullmatch(stem)
    return begins[1] if begins and as_compared(begins[1]) in known else None


def _cases(stems: Iterable[str]) -> set[str]:
    """The cases that files may be of, by their names without suffixes, as they are compared."""
    stems = list(stems)
    return {as_compared(name) for name in [*stems, *(match[1] for match in map(NUMBERED.fullmatch, stems) if match)]}


def _numbered(
    images: Sequence[NamedImage], masks: Sequence[tuple[str, Path]], *, several: bool = False
) -> list[NamedImage]:
    """Take ``P1_0000`` for a sequence of case P1 where there is a mask of P1 and none of ``P1_0000``."""
    have = {as_compared(case) for case, _ in masks}
    renamed = []
    for image in images:
        number = NUMBERED.fullmatch(image.case)
        is_masked = as_compared(image.case) in have
        of_case = number is not None and not is_masked and as_compared(number[1]) in have
        renamed.append(NamedImage(number[1], image.file, number[2]) if number and of_case else image)
    # Files of cases without a mask are of the same form as those of the others.
    if any(image.key for image in renamed):
        renamed = [
            NamedImage(number[1], image.file, number[2])
            if not image.key and (number := NUMBERED.fullmatch(image.case))
            else image
            for image in renamed
        ]
    if not several and {image.key for image in renamed} == {"0000"}:  # one sequence
        return [NamedImage(image.case, image.file) for image in renamed]
    return renamed


def _lacks(image: NamedImage, key: str, name: str, sequences: Sequence[str]) -> Finding:
    numbered = f" ({image.case}_{key})" if UNNAMED.fullmatch(key) and name != key else ""
    what = f"is of case {image.case}, which has no sequence {name}{numbered}"
    remedy = "add the file, leave the case out, or name the sequences that all cases have with --sequence"
    if not sequences:
        what, remedy = f"is of case {image.case}, which has no image", "add the file or leave the case out"
    code = "sequence-missing" if sequences else "image-missing"
    return Finding("error", code, image.file, what, remedy, image.case)


def _unknown(image: NamedImage, sequences: Sequence[str]) -> Finding:
    what = f"is sequence {image.key or 'without a name'} of case {image.case}, the set has {', '.join(sequences)}"
    remedy = "remove the file, or name it among the sequences"
    return Finding("error", "sequence-unknown", image.file, what, remedy, image.case)
