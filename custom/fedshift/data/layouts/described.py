"""The layouts of the Medical Segmentation Decathlon and of nnU-Net: imagesTr, labelsTr and ``dataset.json``.

The Decathlon has one file a case, 4D where there are several sequences; nnU-Net 2 has a file a sequence
(``<case>_0000``). Either is recognised by what is there. Where ``dataset.json`` lists pairs of image and label, these
are the cases, whatever their names: a list is written by somebody who means it, a second reader's labels, or cases
that are left out. What a list cannot mean is an error: files that are not there, an image with two labels, a label of
two images. Without a list files go together by their names.

A picture (``file_ending`` .png, .tif, .bmp) is one file, ``<case>_0000.png``: three channels are red, green and blue,
as nnU-Net reads it, whatever they are called, and one channel is grey.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedshift.data.cases import CaseFiles, CaseTable
from fedshift.data.layouts.dataset_json import FILE, Description, Pair, numbers, read_description
from fedshift.data.layouts.names import NUMBERED, pair_folders
from fedshift.data.picture_scan import COLOURS
from fedshift.data.scan_file import Finding, as_compared, is_broken_link, same_form, suffix_of
from fedshift.data.scan_folders import picture_files, scan_files
from fedshift.data.scans import stem_of, volumes_in
from fedshift.data.series import is_series
from fedshift.schema.names import few_names

LABELS = "labelsTr"  # where the label is of an image that is listed without one, under the image's name


def recognise(folder: Path, sequences: Sequence[str]) -> CaseTable | None:
    """The scans of ``imagesTr`` and ``labelsTr``, or of a list, with what ``dataset.json`` says where it is there."""
    description = read_description(folder)
    images, masks = folder / "imagesTr", folder / "labelsTr"
    if not images.is_dir() and not description.pairs:
        return None
    if description.pairs:
        table = _pair_listed(folder, description)
        if all(len(case.images) == 1 for case in table.cases):
            table = (_split_colours if table.of_pictures else _split_volumes)(
                table, description.sequences, folder / FILE
            )
    else:
        table = _pair_by_name(images, masks, description, folder / FILE)
    errors = any(finding.level == "error" for finding in table.findings)
    contradictions = _contradictions(folder, description, table.cases, errors=errors)
    table = replace(table, name=description.name or folder.name, folder=folder)
    return _with_meaning(replace(table, findings=(*table.findings, *contradictions)), description)


def pair_beside_description(images: Path, masks: Path, description: Description) -> CaseTable | None:
    """Two folders beside a ``dataset.json``, such as imagesTs and labelsTs, paired by name; None without one.

    What it says of labels and sequences holds for them. Its list is compared (`against_list`).
    """
    folder = images.absolute().parent
    if masks.absolute().parent != folder or not (folder / FILE).is_file():
        return None
    return _with_meaning(_pair_by_name(images, masks, description, folder / FILE), description)


def _pair_by_name(images: Path, masks: Path, description: Description, path: Path) -> CaseTable:
    """The files of two folders by their names; ``path`` is the description's."""
    if images.is_dir() and not scan_files(images) and picture_files(images):
        return _split_colours(pair_folders(images, masks, layout="described"), description.sequences, path)
    if _is_suffixed(images, masks):
        return pair_folders(images, masks, names=description.sequences, layout="described")
    return _split_volumes(pair_folders(images, masks, layout="described"), description.sequences, path)


def _with_meaning(table: CaseTable, description: Description) -> CaseTable:
    """The table with what the description says of labels, sequences and licence."""
    return replace(
        table,
        labels=description.labels,
        licence=description.licence,
        unusable_labels=description.unusable_labels,
        unusable_names=None if table.of_pictures else description.unusable_names,
    )


def _contradictions(
    folder: Path, description: Description, cases: Sequence[CaseFiles], *, errors: bool
) -> Iterator[Finding]:
    """What the description says of its cases as a whole, and is not so; ``errors`` say of each what it lacks."""
    path, count = folder / FILE, len(description.pairs) or len(cases)
    if description.training is not None and count and description.training != count and not errors:
        lists = "lists" if description.pairs else "its folders have"
        what = f"says numTraining {description.training}, and {lists} {count} case(s)"
        yield Finding("warning", "list-count", path, what, "look whether cases are missing, and correct the number")
    other = sorted({file.name for case in cases for file in case.images if not file.name.endswith(description.ending)})
    if description.ending and other:
        what = (
            f"says file_ending {description.ending}, and there are other files, such as {other[0]}, which are taken too"
        )
        remedy = "look whether they belong to the set, and correct file_ending"
        yield Finding("warning", "file-ending", path, what, remedy)


def _is_suffixed(images: Path, masks: Path) -> bool:
    """Whether images are called ``<case>_0000``, as in nnU-Net's layout."""
    if not (images.is_dir() and masks.is_dir()):
        return False
    of_masks = {as_compared(stem_of(file)) for file in scan_files(masks)}
    numbered = [number for file in scan_files(images) if (number := NUMBERED.fullmatch(stem_of(file)))]
    return any(as_compared(number[1]) in of_masks and as_compared(number[0]) not in of_masks for number in numbered)


def _split_volumes(table: CaseTable, names: Sequence[str], path: Path) -> CaseTable:
    """Take the volumes of 4D files for the sequences of a case, which are named in the description at ``path``.

    A file with more volumes than names is an error, and one with fewer too, which is found when it is read.
    """
    several = len(names) or max([1, *(volumes_in(case.image) for case in table.cases[:1])])
    sequences = tuple(names) or (numbers(several) if several > 1 else ())
    channels = tuple(range(several)) if several > 1 else ()
    named = f"names {several} sequence(s) ({', '.join(names)})"
    remedy = f"name every volume in {FILE}, or save those that are used without the others"
    cases, findings = [], list(table.findings)
    for case in table.cases:
        count = volumes_in(case.image)
        if count > several:
            wanted = f"{FILE} {named}" if names else f"{table.cases[0].image.name} has {several}"
            what = f"has {count} volumes, and {wanted}"
            findings.append(Finding("error", "volumes-extra", case.image, what, remedy, case.id))
            continue
        cases.append(replace(case, images=case.images * several, channels=channels, sequences=sequences))
    if table.cases and not cases:  # the description is wrong, and not every file
        first = table.cases[0].image
        wrong = Finding(
            "error", "volumes-extra", path, f"{named}, and {first.name} has {volumes_in(first)} volumes", remedy
        )
        findings = [*table.findings, wrong]
    return replace(table, cases=tuple(cases), findings=tuple(findings), sequences=sequences)


def _split_colours(table: CaseTable, names: Sequence[str], path: Path) -> CaseTable:
    """Pictures with their colours as sequences, or in grey, as the description at ``path`` names three channels or one.

    Cases with a picture for each channel are left as they are, for whoever reads them to refuse.
    """
    if not names or any(len(case.images) > 1 for case in table.cases):
        return table
    if len(names) not in (1, len(COLOURS)):
        what = f"names {len(names)} channels ({', '.join(names)}), and a picture has one or three"
        wrong = Finding("error", "sequence-count", path, what, "name three of pictures in colour, one of grey ones")
        return replace(table, cases=(), findings=(*table.findings, wrong))
    coloured = len(names) > 1
    channels = tuple(range(len(COLOURS))) if coloured else (None,)
    sequences = COLOURS if coloured else ()
    cases = (
        replace(case, images=case.images * len(channels), channels=channels, sequences=sequences)
        for case in table.cases
    )
    return replace(table, cases=tuple(cases), sequences=sequences)


@dataclass(frozen=True)
class _Listed:
    """A pair whose files are known, there or not."""

    case: str
    images: tuple[Path, ...]
    label: Path


def _pair_listed(folder: Path, description: Description) -> CaseTable:
    listed = [_files_of(folder, pair, description.sequences) for pair in description.pairs]
    listed = [_renamed(entry, folder) for entry in listed] if _same_names(listed) else listed
    findings = [*_left_out(folder, listed, description), *_crossed(folder, listed)]
    sequences = _sequences(listed, description.sequences)
    cases, seen, labels = [], dict[Path, _Listed](), dict[Path, _Listed]()
    broken: set[str] = set()
    for entry in listed:
        first, mask = entry.images[0].resolve(), entry.label.resolve()
        other = seen.setdefault(first, entry)
        if other is not entry and other.label.resolve() == mask:
            remedy = "remove one of the two"
            what = f"lists {entry.images[0].name} twice"
            findings.append(Finding("warning", "list-twice", folder / FILE, what, remedy))
            continue
        wrong = list(_faults(entry, sequences))
        if other is not entry:
            what = f"is listed in {FILE} with the labels {other.label.name} and {entry.label.name}"
            wrong.append(Finding("error", "list-two-labels", entry.images[0], what, "keep the right one", entry.case))
            broken.add(other.case)
        of_label = labels.setdefault(mask, entry)
        if of_label is not entry and other is entry:
            what = f"is listed in {FILE} as the label of {of_label.images[0].name} and of {entry.images[0].name}"
            remedy = "give each image its own label"
            wrong.append(Finding("error", "list-shared-label", entry.label, what, remedy, entry.case))
            broken.add(of_label.case)
        findings += wrong
        if not wrong:
            cases.append(CaseFiles(same_form(entry.case), entry.images, entry.label, sequences=sequences))
    kept = tuple(case for case in cases if case.id not in {same_form(case) for case in broken})
    return CaseTable(folder.name, folder, "described", kept, tuple(findings), sequences)


def _files_of(folder: Path, pair: Pair, names: Sequence[str]) -> _Listed:
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
    """The path that a list names; in whatever form its letters with accents are, or with the separators of Windows.

    Variables of the environment are filled in where there is no such file.
    """
    path = Path(os.path.normpath(folder / text))
    if not _is_there(path) and "$" in text:  # which nnU-Net fills in
        path = Path(os.path.normpath(folder / os.path.expandvars(text)))
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
    image_of: dict[str, Path] = {}
    return any(image_of.setdefault(as_compared(entry.case), entry.images[0]) != entry.images[0] for entry in listed)


def _renamed(entry: _Listed, folder: Path) -> _Listed:
    path = entry.images[0]
    inside = path.parent.relative_to(folder) if path.is_relative_to(folder) else Path(path.parent.name)
    return _Listed("_".join([*inside.parts, entry.case]), entry.images, entry.label)


def _sequences(listed: Sequence[_Listed], names: Sequence[str]) -> tuple[str, ...]:
    """Names of the sequences where cases have several files; empty for one file."""
    most = max((len(entry.images) for entry in listed), default=1)
    return (tuple(names) or numbers(most)) if most > 1 else ()


def _faults(entry: _Listed, sequences: Sequence[str]) -> Iterator[Finding]:
    again = "download or unpack the set again, or correct the list"
    absent = [file for file in (*entry.images, entry.label) if not _is_there(file)]
    if len(entry.images) > 1 or sequences:
        named = dict(enumerate(sequences))
        for k, file in enumerate(entry.images):
            if k not in named:
                what = f"is file {k + 1} of case {entry.case}, and {FILE} names {', '.join(sequences)}"
                yield Finding("error", "sequence-unknown", file, what, "name it there, or leave it out", entry.case)
            elif file in absent and NUMBERED.fullmatch(stem_of(file)):
                what = f"is of case {entry.case}, which has no sequence {named[k]} ({stem_of(file)})"
                remedy = "add the file, or take the case from the list"
                beside = next((other for other in entry.images if other not in absent), file)
                yield Finding("error", "sequence-missing", beside, what, remedy, entry.case)
                absent.remove(file)
        if len(entry.images) < len(sequences):
            what = f"is of case {entry.case}, which has no sequence {sequences[len(entry.images)]}"
            remedy = "add the file, or take the case from the list"
            yield Finding("error", "sequence-missing", entry.images[0], what, remedy, entry.case)
    for file in absent:
        yield Finding("error", "file-missing", file, f"is listed in {FILE} but not there", again, entry.case)
    if entry.label in entry.images:
        what = f"is listed in {FILE} as an image and as its own label"
        yield Finding("error", "list-own-label", entry.label, what, again, entry.case)


def _crossed(folder: Path, listed: Sequence[_Listed]) -> Iterator[Finding]:
    """One warning where labels are called like other cases: as meant, or a mistake of whoever listed them."""
    of_case = {as_compared(entry.case): entry for entry in listed}
    crossed = [
        entry
        for entry in listed
        if as_compared(stem_of(entry.label)) != as_compared(entry.case) and as_compared(stem_of(entry.label)) in of_case
    ]
    if crossed:
        shown = few_names([f"{entry.images[0].name} with {entry.label.name}" for entry in crossed], most=3)
        what = f"lists images with labels that are called like others, {shown}, and is followed"
        yield Finding("warning", "list-crossed", folder / FILE, what, "look whether the masks lie on their images")


def _left_out(folder: Path, listed: Sequence[_Listed], description: Description) -> Iterator[Finding]:
    """What lies beside the listed images and is not listed, and what is listed elsewhere."""
    used = {file.resolve() for entry in listed for file in (*entry.images, entry.label)}
    elsewhere = {
        key: {_place(folder, text).resolve() for text in texts} for key, texts in (description.elsewhere or {}).items()
    }
    for key, files in elsewhere.items():
        if times := len(files & used):
            what = f"lists {times} image(s) for training and under {key}, which are taken for training"
            remedy = f"take them from {key}, if they are not to be tested with"
            yield Finding("warning", "list-elsewhere", folder / FILE, what, remedy)
    if more := len(elsewhere.get("validation", set()) - used):
        what = f"lists {more} case(s) under validation, which are left out"
        remedy = "list them for training: a site divides its cases itself"
        yield Finding("warning", "list-elsewhere", folder / FILE, what, remedy)
    used |= {file for files in elsewhere.values() for file in files}
    places = sorted({file.parent for entry in listed for file in entry.images if file.parent.is_dir()})
    held = (file for place in places for file in scan_files(place) or picture_files(place))
    unlisted = [file for file in held if file.resolve() not in used]
    if unlisted:
        shown = few_names([file.name for file in unlisted], most=3)
        what = f"does not list {len(unlisted)} file(s) beside its images ({shown}), which are left out"
        yield Finding("warning", "list-incomplete", folder / FILE, what, "list them too, or take them away")


def against_list(table: CaseTable, masks: Path, description: Description) -> Iterator[Finding]:
    """What a list beside the folders of images and masks says otherwise than their names, by which they were paired.

    Labels in another folder than ``masks`` are none that somebody wants who names that folder.
    """
    folder = table.folder.absolute().parent
    if not description.pairs:
        return
    listed = [_files_of(folder, pair, description.sequences) for pair in description.pairs]
    label_of = {file.resolve(): entry.label for entry in listed for file in entry.images}
    unlisted = []
    for case in table.cases:
        label = label_of.get(case.image.resolve())
        if label is None:
            unlisted.append(case.image.name)
        elif label.resolve() != case.mask.resolve() and label.parent.resolve() == masks.resolve():
            what = f"goes with {case.mask.name} by its name, and {folder / FILE} lists {label.name} for it"
            remedy = f"follow the list with --source {folder}, or remove it"
            yield Finding("error", "list-differs", case.image, what, remedy, case.id)
    if unlisted:
        what = f"does not list {len(unlisted)} image(s) of {table.folder.name} ({few_names(unlisted, most=3)}), "
        remedy = f"follow the list with --source {folder}, or correct it"
        yield Finding("warning", "list-incomplete", folder / FILE, f"{what}which are taken all the same", remedy)
