"""Find images and their masks in the common folder layouts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedshift.data.case_folders import are_case_folders, are_dicom_only, have_series, is_case, pair_case_folders
from fedshift.data.casefiles import CaseFiles, Finding
from fedshift.data.described import is_described, pair_described
from fedshift.data.listed import against_list
from fedshift.data.other_formats import how_to_convert, passed_over
from fedshift.data.pairing import (
    UNNAMED,
    ScanSet,
    contents,
    doubled,
    error_of,
    not_read,
    pair_beside,
    pair_folders,
    scan_files,
    visible,
)
from fedshift.data.patterns import is_pattern, pair_patterns
from fedshift.data.scan_file import ScanError, as_compared, reading
from fedshift.data.scans import stem_of, volumes_in
from fedshift.data.studies import has_dicom_masks, pair_studies
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import few_names
from fedshift.schema.strict import nearest

IMAGE_FOLDERS = ("images", "scans")
MASK_FOLDERS = ("masks", "labels", "segmentations")
LAYOUTS = (
    "CaseXX.nii.gz beside CaseXX_segmentation.nii.gz (also .mhd, .mha, .nrrd; also one folder for each site), "
    "a folder 'images' or 'scans' with a folder 'masks', imagesTr with labelsTr (Decathlon, nnU-Net), or a folder for "
    "each case with a file for each sequence and mask.nii.gz, or DICOM studies with DICOM masks"
)
PART = re.compile(r"(.+)_part\d+", re.IGNORECASE)  # a download in parts, such as TrainingData_Part1


def find_sets(path: Path, sequences: Sequence[str] = ()) -> list[ScanSet]:
    """All scans below a folder, up to two levels down. ``sequences``: those to take, see `choose_sequences`.

    Raises:
        ScanError: no known layout; the message lists what was found and what is expected.
    """
    with reading(path):
        if not path.is_dir():
            raise ScanError(path, "is not a folder", "name the folder that holds the scans")
        sets = _merge_parts(list(_walk(path, sequences, levels=2)))
        others = list(passed_over(path))
    if not any(found.cases or found.findings for found in sets) and others:
        shown = few_names([str(file.relative_to(path)) for file in others])
        raise ScanError(path, f"holds scans in formats that are not read ({shown})", how_to_convert(others))
    if not sets:
        raise ScanError(path, f"holds no scans in a known layout ({contents(path)})", f"expected {LAYOUTS}")
    _refuse_two_of_one_kind(path, sets)
    return _with_not_read(sets, others)


def _with_not_read(sets: Sequence[ScanSet], others: Iterable[Path]) -> list[ScanSet]:
    """Warn about ``others``, scans in formats that are not read: with the set that they lie in, or else the first."""
    told: list[list[Finding]] = [[] for _ in sets]
    for finding in not_read(others):
        places = {finding.file, *finding.file.parents}
        told[next((k for k, found in enumerate(sets) if found.folder in places), 0)].append(finding)
    return [replace(found, findings=(*found.findings, *more)) for found, more in zip(sets, told, strict=True)]


def gather(
    source: Path | None,
    *,
    images: Path | None = None,
    masks: Path | None = None,
    sequences: Mapping[str, str] | None = None,
    volume: int | None = None,
) -> list[ScanSet]:
    """The scans that a command line names.

    Args:
        source: a folder in any known layout; or what relative patterns begin at.
        images: the folder of the images, or a pattern.
        masks: the folder of the masks, or a pattern.
        sequences: names of the sequences, each with a pattern or with "".
        volume: which volume to take of images that have several, from 1.

    Raises:
        ConfigError: arguments that do not go together.
        DataError: nothing is found, or a file or a folder may not be read.
    """
    with reading(images or masks or source or Path()):
        sets = _gather(source, images, masks, sequences or {})
    return sets if volume is None else [_with_volume(found, volume) for found in sets]


def _with_volume(found: ScanSet, volume: int) -> ScanSet:
    """Take one volume, from 1, of images that have several.

    Raises:
        ConfigError: their volumes are sequences with names, or there are not so many.
    """
    if not any(case.channels for case in found.cases):
        return replace(found, cases=tuple(replace(case, volume=volume) for case in found.cases))
    if not all(UNNAMED.fullmatch(name) for name in found.sequences):
        raise ConfigError(
            f"{found.folder} has the sequences {', '.join(found.sequences)} as volumes of its files: choose one with "
            "--sequence, without --volume"
        )
    if volume > len(found.sequences):
        raise ConfigError(f"{found.folder} has files of {len(found.sequences)} volumes: --volume {volume} is none")
    cases = tuple(_of_sequences(case, [volume - 1], ()) for case in found.cases)
    return replace(found, cases=cases, sequences=())


def _gather(
    source: Path | None, images: Path | None, masks: Path | None, sequences: Mapping[str, str]
) -> list[ScanSet]:
    patterns = {name: pattern for name, pattern in sequences.items() if pattern}
    if patterns:
        if len(patterns) < len(sequences) or images is not None or masks is None:
            raise ConfigError(
                "--sequence NAME=PATTERN takes the place of --images: give a pattern for every sequence, and --masks"
            )
        return [pair_patterns(patterns, str(masks), base=source or Path())]
    if images is None and masks is None:
        if source is None:
            raise ConfigError("no scans are named: give --images and --masks, or --source for a folder with both")
        return [choose_sequences(found, tuple(sequences)) for found in find_sets(source, tuple(sequences))]
    if images is None or masks is None:
        raise ConfigError("--images and --masks go together: name both folders, or both patterns")
    if is_pattern(images) or is_pattern(masks):
        if len(sequences) > 1:
            raise ConfigError("several sequences by pattern: give --sequence NAME=PATTERN for each, without --images")
        return [pair_patterns({next(iter(sequences), ""): str(images)}, str(masks), base=source or Path())]
    if source is not None:
        images, masks = source / images, source / masks
    found = choose_sequences(_pair(images, masks), tuple(sequences))
    return _with_not_read([found], dict.fromkeys(file for folder in (images, masks) for file in passed_over(folder)))


def parse_sequences(texts: Sequence[str]) -> dict[str, str]:
    """Sequence -> pattern or "", from texts such as ``T2``, ``T2,ADC`` and ``T2=*_T2.nii.gz``.

    Raises:
        ConfigError: a name given twice or not at all.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, pattern = (part.strip() for part in text.partition("="))
        for each in [name] if equals else [part.strip() for part in name.split(",")]:
            if not each or (equals and not pattern):
                raise ConfigError(
                    f"--sequence takes a name, or a name and a pattern such as T2='*_T2.nii.gz', not {text!r}"
                )
            if each in found:
                raise ConfigError(f"--sequence names {each} twice: write it once")
            found[each] = pattern
    return found


def choose_sequences(found: ScanSet, names: Sequence[str]) -> ScanSet:
    """Take some of a set's sequences, in the order of ``names``; or give names to sequences that have numbers only.

    Raises:
        ConfigError: names that the set does not have.
        ScanError: no names, and those of the set cannot be used.
    """
    if not names and found.unusable_names is not None:
        raise error_of(found.unusable_names)
    if not names or tuple(names) == found.sequences:
        return found
    if not found.sequences:
        return _name_volumes(found, tuple(names))
    if all(UNNAMED.fullmatch(name) for name in found.sequences):
        if len(names) != len(found.sequences):
            raise ConfigError(
                f"{found.folder} has {len(found.sequences)} sequences without names: name all of them in their order, "
                f"not {len(names)}"
            )
        cases = tuple(replace(case, sequences=tuple(names)) for case in found.cases)
        return replace(found, cases=cases, sequences=tuple(names))
    known = [as_compared(name) for name in found.sequences]
    for name in names:
        if as_compared(name) not in known:
            raise ConfigError(f"{found.folder} has no sequence {name!r}{nearest(name, found.sequences)}")
    picked = [known.index(as_compared(name)) for name in names]
    chosen = tuple(found.sequences[number] for number in picked)
    return replace(found, cases=tuple(_of_sequences(case, picked, chosen) for case in found.cases), sequences=chosen)


def spelled_as(names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Names of sequences in the spelling of those that are known."""
    of = {as_compared(name): name for name in known}
    return tuple(of.get(as_compared(name), name) for name in names)


def sequences_fault(known: Sequence[str], wanted: Sequence[str]) -> tuple[str, str] | None:
    """Why a site with the ``known`` sequences cannot train for a task, and how to mend it.

    Args:
        known: the site's, empty for one without a name.
        wanted: the task's, empty for one without a name.
    """
    has = f"has the sequence(s) {', '.join(known)}" if known else "has one sequence without a name"
    if not wanted and len(known) > 1:
        return (
            f"{has}, and the task takes one",
            f"choose it, as in --sequence {known[0]}, or name those that the task takes in its data.sequences",
        )
    if not set(wanted) <= set(known):
        named = " ".join(f"--sequence {shlex.quote(name)}" for name in wanted)
        return f"{has}, and the task takes {', '.join(wanted)}", f"prepare it with {named}"
    return None


def _name_volumes(found: ScanSet, names: tuple[str, ...]) -> ScanSet:
    """Give names to the volumes of 4D files. One with more volumes is an error; with fewer, it is when it is read."""
    channels = tuple(range(len(names))) if len(names) > 1 else ()
    cases, findings = [], list(found.findings)
    for case in found.cases:
        there = volumes_in(case.image)
        if channels and there > len(names):
            what = f"has {there} volumes, and --sequence names {len(names)} ({', '.join(names)})"
            mend = "name every volume in their order, or save those that are used without the others"
            findings.append(Finding("error", case.image, what, mend, case.id))
            continue
        cases.append(replace(case, images=case.images * len(names), channels=channels, sequences=names))
    return replace(found, cases=tuple(cases), findings=tuple(findings), sequences=names)


def _of_sequences(case: CaseFiles, picked: Sequence[int], names: tuple[str, ...]) -> CaseFiles:
    channels = tuple(case.channels[number] for number in picked) if case.channels else ()
    return replace(case, images=tuple(case.images[number] for number in picked), channels=channels, sequences=names)


def _pair(images: Path, masks: Path, name: str | None = None) -> ScanSet:
    """Images and masks in two folders: by name, or, where the masks are DICOM, by what they refer to."""
    if images.is_dir() and masks.is_dir() and images.resolve() != masks.resolve() and has_dicom_masks(masks):
        return pair_studies(images, masks, name or images.parent.name)
    found = pair_folders(images, masks, name)
    return replace(found, findings=(*found.findings, *against_list(found, masks)))


def _walk(path: Path, sequences: Sequence[str], levels: int) -> Iterator[ScanSet]:
    inside = {entry.name.lower(): entry for entry in visible(path) if entry.is_dir()}
    if is_described(path):
        yield pair_described(path)
        return
    masks = next((inside[name] for name in MASK_FOLDERS if name in inside), None)
    images = next((inside[name] for name in IMAGE_FOLDERS if name in inside), None)
    if images and masks:
        yield _pair(images, masks, path.name)
        return
    if scan_files(path):
        found = pair_beside(path)
        if not found.cases and is_case(path):
            raise ScanError(path, "looks like one case", "name the folder above it")
        yield found
        return
    if are_case_folders(path):
        # Of DICOM studies the mask says its series; a single name that no folder has is what that series is called.
        by_names = len(sequences) > 1 or have_series(path, sequences) or not are_dicom_only(path)
        yield pair_case_folders(path, sequences) if by_names else pair_studies(path)
        return
    if has_dicom_masks(path):
        yield pair_studies(path)
        return
    if levels:
        for _, folder in sorted(inside.items()):
            yield from _walk(folder, sequences, levels - 1)


def _refuse_two_of_one_kind(path: Path, sets: Sequence[ScanSet]) -> None:
    """Refuse images and masks in two folders whose names do not say which is which.

    Raises:
        ScanError: there are two folders with files of the same names, and none of these is called a mask.
    """
    if len(sets) != 2 or any(found.cases or found.layout != "beside" for found in sets):
        return
    names = [{as_compared(stem_of(file)) for file in scan_files(found.folder)} for found in sets]
    if names[0] == names[1]:
        one, other = (found.folder for found in sets)
        what = (
            f"holds two folders with the same names, {one.name} and {other.name}, and nothing says which has the masks"
        )
        raise ScanError(path, what, f"name them, as in --images {one} --masks {other}, or call them images and masks")


def _merge_parts(sets: Sequence[ScanSet]) -> list[ScanSet]:
    """Join sets that are the parts of one download; ids must stay unique over all parts."""
    merged: dict[str, list[ScanSet]] = {}
    for part in sets:
        found = PART.fullmatch(part.folder.name)
        merged.setdefault(found[1].lower() if found else str(part.folder), []).append(part)
    return [parts[0] if len(parts) == 1 else _join(parts) for parts in merged.values()]


def _join(parts: Sequence[ScanSet]) -> ScanSet:
    seen: dict[str, CaseFiles] = {}
    findings = [finding for part in parts for finding in part.findings]
    unclear = set()
    for case in (case for part in parts for case in part.cases):
        if as_compared(case.id) in seen:
            findings.append(doubled(case.id, seen[as_compared(case.id)].image, case.image))
            unclear.add(as_compared(case.id))
        seen.setdefault(as_compared(case.id), case)
    folder = parts[0].folder.parent
    cases = tuple(case for key, case in seen.items() if key not in unclear)
    return ScanSet(folder.name, folder, parts[0].layout, cases, tuple(findings), parts[0].sequences)
