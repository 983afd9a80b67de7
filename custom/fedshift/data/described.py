"""The layouts of the Medical Segmentation Decathlon and of nnU-Net: imagesTr, labelsTr and ``dataset.json``.

The Decathlon has one file a case, 4D where there are several sequences; nnU-Net 2 has a file a sequence
(``<case>_0000``). Either is recognised by what is there. Where ``dataset.json`` lists pairs of image and label, these
are the cases (`fedshift.data.listed`); otherwise files go together by their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fedshift.data.casefiles import CaseFiles, Finding
from fedshift.data.description import FILE, Description, numbers, read_description
from fedshift.data.listed import pair_listed
from fedshift.data.pairing import NUMBERED, ScanSet, pair_folders, scan_files
from fedshift.data.scan_file import as_compared
from fedshift.data.scans import stem_of, volumes_in


def is_described(folder: Path) -> bool:
    """Whether a folder is in one of these layouts.

    Raises:
        ScanError: a description that cannot be read.
    """
    return (folder / "imagesTr").is_dir() or bool(read_description(folder).pairs)


def pair_described(folder: Path) -> ScanSet:
    """The scans of ``imagesTr`` and ``labelsTr``, with what ``dataset.json`` says where it is there.

    Raises:
        ScanError: a description that cannot be read.
    """
    said = read_description(folder)
    images, masks = folder / "imagesTr", folder / "labelsTr"
    if said.pairs:
        found = pair_listed(folder, said)
        if all(len(case.images) == 1 for case in found.cases):
            found = _split_volumes(found, said.sequences, folder / FILE)
    elif _is_suffixed(images, masks):
        found = pair_folders(images, masks, names=said.sequences, layout="described")
    else:
        found = _split_volumes(pair_folders(images, masks, layout="described"), said.sequences, folder / FILE)
    errors = any(finding.level == "error" for finding in found.findings)
    return ScanSet(
        said.name or folder.name,
        folder,
        "described",
        found.cases,
        (*found.findings, *_contradictions(folder, said, found.cases, errors=errors)),
        found.sequences,
        said.labels,
        said.licence,
        said.unusable_labels,
        said.unusable_names,
    )


def _contradictions(folder: Path, said: Description, cases: Sequence[CaseFiles], *, errors: bool) -> Iterator[Finding]:
    """What the description says of its cases as a whole, and is not so; ``errors`` say of each what it lacks."""
    path, there = folder / FILE, len(said.pairs) or len(cases)
    if said.training is not None and there and said.training != there and not errors:
        what = f"says numTraining {said.training}, and {'lists' if said.pairs else 'its folders have'} {there} case(s)"
        yield Finding("warning", path, what, "look whether cases are missing, and correct the number")
    other = sorted({file.name for case in cases for file in case.images if not file.name.endswith(said.ending)})
    if said.ending and other:
        what = f"says file_ending {said.ending}, and there are other files, such as {other[0]}, which are taken too"
        yield Finding("warning", path, what, "look whether they belong to the set, and correct file_ending")


def _is_suffixed(images: Path, masks: Path) -> bool:
    """Whether images are called ``<case>_0000``, as in nnU-Net's layout."""
    if not (images.is_dir() and masks.is_dir()):
        return False
    of_masks = {as_compared(stem_of(file)) for file in scan_files(masks)}
    numbered = [number for file in scan_files(images) if (number := NUMBERED.fullmatch(stem_of(file)))]
    return any(as_compared(number[1]) in of_masks and as_compared(number[0]) not in of_masks for number in numbered)


def _split_volumes(found: ScanSet, names: Sequence[str], path: Path) -> ScanSet:
    """Take the volumes of 4D files for the sequences of a case, which are named in the description at ``path``.

    A file with more volumes than names is an error, and one with fewer too, which is found when it is read.
    """
    several = len(names) or max([1, *(volumes_in(case.image) for case in found.cases[:1])])
    sequences = tuple(names) or (numbers(several) if several > 1 else ())
    channels = tuple(range(several)) if several > 1 else ()
    named = f"names {several} sequence(s) ({', '.join(names)})"
    mend = f"name every volume in {FILE}, or save those that are used without the others"
    cases, findings = [], list(found.findings)
    for case in found.cases:
        there = volumes_in(case.image)
        if there > several:
            wanted = f"{FILE} {named}" if names else f"{found.cases[0].image.name} has {several}"
            findings.append(Finding("error", case.image, f"has {there} volumes, and {wanted}", mend, case.id))
            continue
        cases.append(replace(case, images=case.images * several, channels=channels, sequences=sequences))
    if found.cases and not cases:  # the description is wrong, and not every file
        first = found.cases[0].image
        wrong = Finding("error", path, f"{named}, and {first.name} has {volumes_in(first)} volumes", mend)
        findings = [*found.findings, wrong]
    return replace(found, cases=tuple(cases), findings=tuple(findings), sequences=sequences)
