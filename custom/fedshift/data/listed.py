"""The cases that ``dataset.json`` lists: each image with the label that the list gives it, whatever their names.

A list is written by somebody who means it: a second reader's labels, names that differ, cases that are left out. What a
list cannot mean is an error: files that are not there, an image with two labels, or a label of two images.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedshift.data.casefiles import CaseFiles, Finding
from fedshift.data.description import FILE, Description, Pair, numbers, read_description
from fedshift.data.pairing import NUMBERED, ScanSet, scan_files
from fedshift.data.scan_file import as_compared, is_broken_link, same_form, suffix_of
from fedshift.data.scans import stem_of
from fedshift.data.series import is_series
from fedshift.schema.names import few_names

LABELS = "labelsTr"
"""Where the label is of an image that is listed without one, under the image's name."""


@dataclass(frozen=True)
class _Listed:
    """A pair whose files are known, there or not."""

    case: str
    images: tuple[Path, ...]
    label: Path


def pair_listed(folder: Path, said: Description) -> ScanSet:
    """The cases of the list in the folder's ``dataset.json``, with what contradicts it.

    Raises:
        ScanError: a folder that may not be read.
    """
    listed = [_found(folder, pair, said.sequences) for pair in said.pairs]
    listed = [_renamed(one, folder) for one in listed] if _same_names(listed) else listed
    findings = [*_left_out(folder, listed, said), *_crossed(folder, listed)]
    sequences = _sequences(listed, said.sequences)
    cases, seen, labels = [], dict[Path, _Listed](), dict[Path, _Listed]()
    broken: set[str] = set()
    for one in listed:
        first, mask = one.images[0].resolve(), one.label.resolve()
        other = seen.setdefault(first, one)
        if other is not one and other.label.resolve() == mask:
            mend = "remove one of the two"
            findings.append(Finding("warning", folder / FILE, f"lists {one.images[0].name} twice", mend))
            continue
        wrong = list(_faults(one, sequences))
        if other is not one:
            what = f"is listed in {FILE} with the labels {other.label.name} and {one.label.name}"
            wrong.append(Finding("error", one.images[0], what, "keep the right one", one.case))
            broken.add(other.case)
        of_label = labels.setdefault(mask, one)
        if of_label is not one and other is one:
            what = f"is listed in {FILE} as the label of {of_label.images[0].name} and of {one.images[0].name}"
            wrong.append(Finding("error", one.label, what, "give each image its own label", one.case))
            broken.add(of_label.case)
        findings += wrong
        if not wrong:
            cases.append(CaseFiles(same_form(one.case), one.images, one.label, sequences=sequences))
    kept = tuple(case for case in cases if case.id not in {same_form(case) for case in broken})
    return ScanSet(folder.name, folder, "described", kept, tuple(findings), sequences)


def _found(folder: Path, pair: Pair, names: Sequence[str]) -> _Listed:
    """The files of a pair. nnU-Net 1 lists ``P1`` for ``P1_0000``, ``P1_0001`` and so on."""
    images = tuple(_place(folder, text) for text in pair.images)
    stem = stem_of(images[0])
    if len(images) == 1 and not _is_there(images[0]) and images[0].parent.is_dir():
        numbered = [
            file
            for file in scan_files(images[0].parent)
            if (number := NUMBERED.fullmatch(stem_of(file))) and as_compared(number[1]) == as_compared(stem)
        ]
        wanted = [images[0].with_name(f"{stem}_{k:04d}{suffix_of(images[0]) or ''}") for k in range(len(names) or 1)]
        if numbered:
            images = tuple(sorted({as_compared(file.name): file for file in [*wanted, *numbered]}.values()))
    label = _place(folder, pair.label) if pair.label else _by_name(folder / LABELS, stem)
    number = NUMBERED.fullmatch(stem)
    if number and as_compared(number[1]) == as_compared(stem_of(label)):
        stem = number[1]
    return _Listed(pair.case or stem, images, label)


def _place(folder: Path, text: str) -> Path:
    """The path that a list names; in whatever form its letters with accents are, or with the separators of Windows."""
    path = Path(os.path.normpath(folder / text))
    if not _is_there(path) and "\\" in text:
        path = Path(os.path.normpath(folder / text.replace("\\", "/")))
    if not _is_there(path) and path.parent.is_dir():
        same = (entry for entry in path.parent.iterdir() if same_form(entry.name) == same_form(path.name))
        return next(same, path)
    return path


def _is_there(path: Path) -> bool:
    return path.exists() or is_broken_link(path) or is_series(path)


def _by_name(folder: Path, stem: str) -> Path:
    files = scan_files(folder) if folder.is_dir() else []
    number = NUMBERED.fullmatch(stem)
    for name in [stem, *([number[1]] if number else [])]:
        for file in files:
            if as_compared(stem_of(file)) == as_compared(name):
                return file
    return folder / f"{stem}.nii.gz"


def _same_names(listed: Iterable[_Listed]) -> bool:
    """Whether two cases would have one name, as of ``sub-01/T1`` and ``sub-02/T1``."""
    image_of: dict[str, Path] = {}
    return any(image_of.setdefault(as_compared(one.case), one.images[0]) != one.images[0] for one in listed)


def _renamed(one: _Listed, folder: Path) -> _Listed:
    """The case under the name of its path."""
    path = one.images[0]
    inside = path.parent.relative_to(folder) if path.is_relative_to(folder) else Path(path.parent.name)
    return _Listed("_".join([*inside.parts, one.case]), one.images, one.label)


def _sequences(listed: Sequence[_Listed], names: Sequence[str]) -> tuple[str, ...]:
    """Names of the sequences where cases have several files; empty for one file."""
    most = max((len(one.images) for one in listed), default=1)
    return (tuple(names) or numbers(most)) if most > 1 else ()


def _faults(one: _Listed, sequences: Sequence[str]) -> Iterator[Finding]:
    again = "download or unpack the set again, or correct the list"
    absent = [file for file in (*one.images, one.label) if not _is_there(file)]
    if len(one.images) > 1 or sequences:
        named = dict(enumerate(sequences))
        for k, file in enumerate(one.images):
            if k not in named:
                what = f"is file {k + 1} of case {one.case}, and {FILE} names {', '.join(sequences)}"
                yield Finding("error", file, what, "name it there, or leave it out", one.case)
            elif file in absent and NUMBERED.fullmatch(stem_of(file)):
                what = f"is of case {one.case}, which has no sequence {named[k]} ({stem_of(file)})"
                mend = "add the file, or take the case from the list"
                yield Finding("error", next((f for f in one.images if f not in absent), file), what, mend, one.case)
                absent.remove(file)
        if len(one.images) < len(sequences):
            what = f"is of case {one.case}, which has no sequence {sequences[len(one.images)]}"
            yield Finding("error", one.images[0], what, "add the file, or take the case from the list", one.case)
    for file in absent:
        yield Finding("error", file, f"is listed in {FILE} but not there", again, one.case)
    if one.label in one.images:
        yield Finding("error", one.label, f"is listed in {FILE} as an image and as its own label", again, one.case)


def _crossed(folder: Path, listed: Sequence[_Listed]) -> Iterator[Finding]:
    """One warning where labels are called like other cases: as meant, or a mistake of whoever listed them."""
    of_case = {as_compared(one.case): one for one in listed}
    crossed = [
        one
        for one in listed
        if as_compared(stem_of(one.label)) != as_compared(one.case) and as_compared(stem_of(one.label)) in of_case
    ]
    if crossed:
        shown = few_names([f"{one.images[0].name} with {one.label.name}" for one in crossed], most=3)
        what = f"lists images with labels that are called like others, {shown}, and is followed"
        yield Finding("warning", folder / FILE, what, "look whether the masks lie on their images")


def _left_out(folder: Path, listed: Sequence[_Listed], said: Description) -> Iterator[Finding]:
    """What lies beside the listed images and is not listed, and what is listed elsewhere."""
    used = {file.resolve() for one in listed for file in (*one.images, one.label)}
    elsewhere = {
        key: {_place(folder, text).resolve() for text in texts} for key, texts in (said.elsewhere or {}).items()
    }
    for key, files in elsewhere.items():
        if times := len(files & used):
            what = f"lists {times} image(s) for training and under {key}, which are taken for training"
            yield Finding("warning", folder / FILE, what, f"take them from {key}, if they are not to be tested with")
    if more := len(elsewhere.get("validation", set()) - used):
        what = f"lists {more} case(s) under validation, which are left out"
        yield Finding("warning", folder / FILE, what, "list them for training: a site divides its cases itself")
    used |= {file for files in elsewhere.values() for file in files}
    places = sorted({file.parent for one in listed for file in one.images if file.parent.is_dir()})
    beside = [file for place in places for file in scan_files(place) if file.resolve() not in used]
    if beside:
        shown = few_names([file.name for file in beside], most=3)
        what = f"does not list {len(beside)} file(s) beside its images ({shown}), which are left out"
        yield Finding("warning", folder / FILE, what, "list them too, or take them away")


def against_list(found: ScanSet, masks: Path) -> Iterator[Finding]:
    """What a list beside the folders of images and masks says otherwise than their names, by which they were paired.

    Labels in another folder than ``masks`` are none that somebody wants who names that folder.
    """
    folder = found.folder.absolute().parent
    said = read_description(folder)
    if not said.pairs:
        return
    listed = [_found(folder, pair, said.sequences) for pair in said.pairs]
    label_of = {file.resolve(): one.label for one in listed for file in one.images}
    unlisted = []
    for case in found.cases:
        label = label_of.get(case.image.resolve())
        if label is None:
            unlisted.append(case.image.name)
        elif label.resolve() != case.mask.resolve() and label.parent.resolve() == masks.resolve():
            what = f"goes with {case.mask.name} by its name, and {folder / FILE} lists {label.name} for it"
            yield Finding("error", case.image, what, f"follow the list with --source {folder}, or remove it", case.id)
    if unlisted:
        what = f"does not list {len(unlisted)} image(s) of {found.folder.name} ({few_names(unlisted, most=3)}), "
        mend = f"follow the list with --source {folder}, or correct it"
        yield Finding("warning", folder / FILE, f"{what}which are taken all the same", mend)
