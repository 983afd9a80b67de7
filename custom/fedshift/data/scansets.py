"""Find images and their masks in the common folder layouts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedshift.data.casefiles import CaseFiles, Finding
from fedshift.data.scans import stem_of, suffix_of
from fedshift.schema.errors import DataError

MASK_ENDINGS = ("_segmentation", "_labels", "_label", "_mask", "_seg")
MASK_FOLDERS = ("masks", "labels", "segmentations")
LAYOUTS = (
    "CaseXX.nii.gz beside CaseXX_segmentation.nii.gz (also .mhd, .mha, .nrrd; also one folder for each site), "
    "a folder 'images' with a folder 'masks', or imagesTr with labelsTr"
)
PART = re.compile(r"(.+)_part\d+", re.IGNORECASE)  # a download in parts, such as TrainingData_Part1


@dataclass(frozen=True)
class ScanSet:
    """The scans of one folder, usually one site. ``findings``: missing, extra or duplicate masks."""

    name: str
    folder: Path
    layout: Literal["beside", "folders", "msd"]
    cases: tuple[CaseFiles, ...]
    findings: tuple[Finding, ...]


def find_sets(path: Path) -> list[ScanSet]:
    """All scans below a folder, up to two levels down.

    Raises:
        DataError: no known layout; the message lists what was found and what is expected.
    """
    if not path.is_dir():
        raise DataError(f"{path} is not a folder: name the folder that holds the scans")
    sets = _merge_parts(list(_walk(path, levels=2)))
    if not sets:
        raise DataError(f"{path} holds no scans in a known layout ({_contents(path)}): expected {LAYOUTS}")
    return sets


def pair_beside(folder: Path, name: str | None = None) -> ScanSet:
    """Images and masks in one folder, distinguished by the mask's suffix: ``Case00`` and ``Case00_segmentation``."""
    files = _scan_files(folder)
    masks = [(mask_id, file) for file in files if (mask_id := _without_ending(stem_of(file))) is not None]
    images = [(stem_of(file), file) for file in files if _without_ending(stem_of(file)) is None]
    return _pair(images, masks, name=name or folder.name, folder=folder, layout="beside")


def pair_folders(images: Path, masks: Path, name: str | None = None) -> ScanSet:
    """Images (files, or one DICOM series in each sub-folder) and masks of the same names in another folder.

    Raises:
        DataError: one of the folders does not exist, or DICOM files lie loose in it.
    """
    for folder in (images, masks):
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder: name the folder that holds the scans")
    if images.resolve() == masks.resolve():
        return pair_beside(images, name)
    loose = [file for file in _visible(images) if file.is_file() and file.suffix.lower() == ".dcm"]
    if loose:
        raise DataError(
            f"{images} holds {len(loose)} loose DICOM file(s) such as {loose[0].name}: "
            "put the slices of each series into a sub-folder of its own"
        )
    series = [entry for entry in _visible(images) if entry.is_dir() and any(_visible(entry))]
    image_ids = [(stem_of(entry), entry) for entry in sorted([*_scan_files(images), *series])]
    known = {case.lower() for case, _ in image_ids}
    mask_ids = []
    for file in _scan_files(masks):
        stem = stem_of(file)
        mask_ids.append((stem if stem.lower() in known else _without_ending(stem) or stem, file))
    return _pair(image_ids, mask_ids, name=name or images.parent.name, folder=images, layout="folders")


def pair_msd(folder: Path) -> ScanSet:
    """The Medical Segmentation Decathlon's layout: imagesTr and labelsTr, with ``dataset.json`` when it is there.

    4D images are taken at the channel that ``dataset.json`` calls T2, or the first.
    """
    channel, listed = 0, []
    description = folder / "dataset.json"
    if description.is_file():
        try:
            content = json.loads(description.read_text(encoding="utf-8"))
            names = {str(name).lower(): int(index) for index, name in content.get("modality", {}).items()}
            listed = [folder / entry["image"] for entry in content.get("training", [])]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{description} cannot be parsed ({error}): download it again or remove it") from None
        if names and "t2" not in names:
            raise DataError(f"{description} names the channels {', '.join(names)}, not T2: it is not the prostate task")
        channel = names.get("t2", 0)
    found = pair_folders(folder / "imagesTr", folder / "labelsTr")
    absent = [
        Finding("error", image, "is listed in dataset.json but not there", "download or unpack the set again")
        for image in listed
        if not image.is_file()
    ]
    cases = tuple(CaseFiles(case.id, case.image, case.mask, channel=channel) for case in found.cases)
    return ScanSet(folder.name, folder, "msd", cases, (*found.findings, *absent))


def _walk(path: Path, levels: int) -> Iterator[ScanSet]:
    inside = {entry.name.lower(): entry for entry in _visible(path) if entry.is_dir()}
    if "imagestr" in inside:
        yield pair_msd(path)
        return
    masks = next((inside[name] for name in MASK_FOLDERS if name in inside), None)
    if "images" in inside and masks:
        yield pair_folders(inside["images"], masks, path.name)
        return
    if _scan_files(path):
        yield pair_beside(path)
        return
    if levels:
        for _, folder in sorted(inside.items()):
            yield from _walk(folder, levels - 1)


def _merge_parts(sets: Sequence[ScanSet]) -> list[ScanSet]:
    """Join sets that are the parts of one download; ids must stay unique over all parts."""
    merged: dict[str, list[ScanSet]] = {}
    for part in sets:
        match = PART.fullmatch(part.name)
        merged.setdefault(match[1].lower() if match else str(part.folder), []).append(part)
    return [parts[0] if len(parts) == 1 else _join(parts) for parts in merged.values()]


def _join(parts: Sequence[ScanSet]) -> ScanSet:
    seen: dict[str, CaseFiles] = {}
    findings = [finding for part in parts for finding in part.findings]
    for case in (case for part in parts for case in part.cases):
        if case.id.lower() in seen:
            findings.append(_doubled(case.id, seen[case.id.lower()].image, case.image))
        seen.setdefault(case.id.lower(), case)
    folder = parts[0].folder.parent
    return ScanSet(folder.name, folder, parts[0].layout, tuple(seen.values()), tuple(findings))


def _pair(
    images: Iterable[tuple[str, Path]],
    masks: Iterable[tuple[str, Path]],
    *,
    name: str,
    folder: Path,
    layout: Literal["beside", "folders"],
) -> ScanSet:
    """Match images and masks by id, ignoring case."""
    findings: list[Finding] = []
    sides: list[dict[str, tuple[str, Path]]] = []
    for entries in (images, masks):
        side: dict[str, tuple[str, Path]] = {}
        for case, file in entries:
            if case.lower() in side:
                findings.append(_doubled(case, side[case.lower()][1], file))
            side.setdefault(case.lower(), (case, file))
        sides.append(side)
    by_image, by_mask = sides
    cases = [CaseFiles(case, file, by_mask[key][1]) for key, (case, file) in by_image.items() if key in by_mask]
    for key, (case, file) in by_image.items():
        if key not in by_mask:
            wanted = f"{case}_segmentation" if layout == "beside" else f"{case} in the folder of masks"
            findings.append(Finding("error", file, "has no mask", f"add {wanted}, or remove the image"))
    for key, (case, file) in by_mask.items():
        if key not in by_image:
            findings.append(
                Finding("error", file, f"is a mask without an image {case}", "add the image or remove the mask")
            )
    return ScanSet(name, folder, layout, tuple(cases), tuple(findings))


def _doubled(case: str, first: Path, second: Path) -> Finding:
    where = first.name if first.parent == second.parent else str(first)
    return Finding("error", second, f"has the id {case}, as has {where}", "rename or remove one of the two")


def _without_ending(stem: str) -> str | None:
    ending = next((ending for ending in MASK_ENDINGS if stem.lower().endswith(ending)), None)
    return stem[: -len(ending)] if ending else None


def _visible(folder: Path) -> list[Path]:
    """Entries of a folder without hidden ones, such as the ``._`` files of macOS archives."""
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "__MACOSX")))


def _scan_files(folder: Path) -> list[Path]:
    return [entry for entry in _visible(folder) if entry.is_file() and suffix_of(entry)]


def _contents(folder: Path) -> str:
    names = [entry.name + ("/" if entry.is_dir() else "") for entry in _visible(folder)]
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f"found {shown}" if names else "it is empty"
