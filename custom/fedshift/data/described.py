"""The layouts of the Medical Segmentation Decathlon and of nnU-Net: imagesTr, labelsTr and ``dataset.json``.

The Decathlon has one file a case, 4D where there are several sequences, and numbers its labels
(``"labels": {"1": "Anterior"}``); nnU-Net 2 has a file a sequence (``<case>_0000``) and names its labels
(``"labels": {"Anterior": 1}``). Either is recognised by what is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedshift.data.casefiles import Finding
from fedshift.data.labels import BACKGROUND, Labels
from fedshift.data.pairing import NUMBERED, ScanSet, pair_folders, scan_files
from fedshift.data.scan_file import ScanError, as_compared, reading
from fedshift.data.scans import stem_of, volumes_in
from fedshift.schema.errors import ConfigError

FILE = "dataset.json"


@dataclass(frozen=True)
class _Description:
    """What ``dataset.json`` says."""

    name: str = ""
    licence: str = ""
    sequences: tuple[str, ...] = ()
    labels: Labels | None = None
    listed: tuple[str, ...] = ()
    unusable_labels: Finding | None = None
    unusable_names: Finding | None = None


def pair_described(folder: Path) -> ScanSet:
    """The scans of ``imagesTr`` and ``labelsTr``, with what ``dataset.json`` says where it is there.

    Raises:
        ScanError: a description that cannot be read.
    """
    said = _read(folder / FILE)
    images, masks = folder / "imagesTr", folder / "labelsTr"
    if _is_suffixed(images, masks):
        found = pair_folders(images, masks, names=said.sequences, layout="described")
    else:
        found = _split_volumes(pair_folders(images, masks, layout="described"), said.sequences, folder / FILE)
    again = "download or unpack the set again"
    absent = [
        Finding("error", folder / image, f"is listed in {FILE} but not there", again, stem_of(Path(image)))
        for image in said.listed
        if not _is_there(folder / image)
    ]
    return ScanSet(
        said.name or folder.name,
        folder,
        "described",
        found.cases,
        (*found.findings, *absent),
        found.sequences,
        said.labels,
        said.licence,
        said.unusable_labels,
        said.unusable_names,
    )


def _is_there(image: Path) -> bool:
    """Whether a listed image is there; nnU-Net 1 lists ``P1`` for ``P1_0000``, ``P1_0001`` and so on."""
    stem = stem_of(image)
    return image.is_file() or image.with_name(f"{stem}_0000{image.name[len(stem) :]}").is_file()


def _is_suffixed(images: Path, masks: Path) -> bool:
    """Whether images are called ``<case>_0000``, as in nnU-Net's layout."""
    if not (images.is_dir() and masks.is_dir()):
        return False
    of_masks = {as_compared(stem_of(file)) for file in scan_files(masks)}
    numbers = [number for file in scan_files(images) if (number := NUMBERED.fullmatch(stem_of(file)))]
    return any(as_compared(number[1]) in of_masks and as_compared(number[0]) not in of_masks for number in numbers)


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


def _read(path: Path) -> _Description:
    if not path.is_file():
        return _Description()
    try:
        with reading(path):
            content = json.loads(path.read_text(encoding="utf-8"))
        names = content.get("channel_names") or content.get("modality") or {}
        training = content.get("training") or []
        labels = _labels(content.get("labels") or {}, path)
        sequences = _sequences(tuple(str(names[number]) for number in sorted(names, key=int)), path)
        return _Description(
            name=str(content.get("name") or ""),
            licence=str(content.get("licence") or content.get("license") or ""),
            sequences=numbers(len(names)) if isinstance(sequences, Finding) else sequences,
            labels=None if isinstance(labels, Finding) else labels,
            listed=tuple(str(entry["image"]) for entry in training if isinstance(entry, dict)),
            unusable_labels=labels if isinstance(labels, Finding) else None,
            unusable_names=sequences if isinstance(sequences, Finding) else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ScanError(path, f"cannot be parsed ({error})", "download it again or remove it") from None


def numbers(count: int) -> tuple[str, ...]:
    """The names of sequences that have none."""
    return tuple(f"{number:04d}" for number in range(count))


def _sequences(names: tuple[str, ...], path: Path) -> tuple[str, ...] | Finding:
    """The names of the sequences, or what is wrong with them.

    nnU-Net takes them for ways to normalise (``noNorm``, ``zscore``), so that several may be called the same.
    """
    twice = next((name for k, name in enumerate(names) if name.lower() in map(str.lower, names[:k])), None)
    if twice is None:
        return names
    example = ",".join(f"NAME{number}" for number in range(1, len(names) + 1))
    mend = f"name all {len(names)} in their order, as in --sequence {example}"
    return Finding("error", path, f"names several sequences {twice}", mend)


def _labels(said: Mapping[str, Any], path: Path) -> Labels | Finding | None:
    """Labels from either form, or what is wrong with them; names that repeat are one class."""
    numbered = all(key.isdigit() for key in said)
    pairs = [(str(name), number) for number, name in said.items()] if numbered else list(said.items())
    values: dict[str, list[int]] = {}
    for name, number in pairs:
        if isinstance(number, list):
            what = f"has the label {name!r} with the values {number}, a region that overlaps with others"
            mend = "give each voxel one class: say which values are which with --label"
            return Finding("error", path, what, mend)
        if name == "ignore" and not numbered:
            mend = "relabel it, or say which values are which with --label, and merge it with one of them"
            return Finding("error", path, "has an 'ignore' label, which is not read", mend)
        values.setdefault(BACKGROUND if int(number) == 0 else name, []).append(int(number))
    ordered = dict(sorted(values.items(), key=lambda item: min(item[1])))
    try:
        return Labels.named(ordered) if ordered.keys() - {BACKGROUND} else None
    except ConfigError as error:
        what, _, mend = str(error).partition(": ")
        mend += ", or say which values are which with --label"
        return Finding("error", path, f"has labels that cannot be used ({what})", mend)
