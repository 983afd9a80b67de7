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
from fedshift.data.scans import stem_of, volumes_in
from fedshift.schema.errors import ConfigError, DataError

FILE = "dataset.json"


@dataclass(frozen=True)
class _Description:
    """What ``dataset.json`` says."""

    name: str = ""
    licence: str = ""
    sequences: tuple[str, ...] = ()
    labels: Labels | None = None
    listed: tuple[str, ...] = ()


def pair_described(folder: Path) -> ScanSet:
    """The scans of ``imagesTr`` and ``labelsTr``, with what ``dataset.json`` says where it is there.

    Raises:
        DataError: a description that cannot be read, or labels that overlap.
    """
    said = _read(folder / FILE)
    images, masks = folder / "imagesTr", folder / "labelsTr"
    if _is_suffixed(images, masks):
        found = pair_folders(images, masks, names=said.sequences, layout="described")
    else:
        found = _split_volumes(pair_folders(images, masks, layout="described"), said.sequences)
    absent = [
        Finding("error", folder / image, "is listed in dataset.json but not there", "download or unpack the set again")
        for image in said.listed
        if not (folder / image).is_file()
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
    )


def _is_suffixed(images: Path, masks: Path) -> bool:
    """Whether images are called ``<case>_0000``, as in nnU-Net's layout."""
    if not (images.is_dir() and masks.is_dir()):
        return False
    of_masks = {stem_of(file).lower() for file in scan_files(masks)}
    numbers = [number for file in scan_files(images) if (number := NUMBERED.fullmatch(stem_of(file)))]
    return any(number[1].lower() in of_masks and number[0].lower() not in of_masks for number in numbers)


def _split_volumes(found: ScanSet, names: Sequence[str]) -> ScanSet:
    """Take the volumes of 4D files for the sequences of a case."""
    several = max([len(names), *(volumes_in(case.image) for case in found.cases[:1])])
    sequences = tuple(names) or tuple(f"{number:04d}" for number in range(several))
    if several == 1:
        cases = tuple(replace(case, sequences=tuple(names)) for case in found.cases)
        return replace(found, cases=cases, sequences=tuple(names))
    channels = tuple(range(several))
    cases = tuple(
        replace(case, images=case.images * several, channels=channels, sequences=sequences) for case in found.cases
    )
    return replace(found, cases=cases, sequences=sequences)


def _read(path: Path) -> _Description:
    if not path.is_file():
        return _Description()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        names = content.get("channel_names") or content.get("modality") or {}
        training = content.get("training") or []
        return _Description(
            name=str(content.get("name") or ""),
            licence=str(content.get("licence") or content.get("license") or ""),
            sequences=tuple(str(names[number]) for number in sorted(names, key=int)),
            labels=_labels(content.get("labels") or {}, path),
            listed=tuple(str(entry["image"]) for entry in training if isinstance(entry, dict)),
        )
    except ConfigError as error:
        raise DataError(f"{path}: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} cannot be parsed ({error}): download it again or remove it") from None


def _labels(said: Mapping[str, Any], path: Path) -> Labels | None:
    """Labels from either form; names that repeat are one class."""
    numbered = all(key.isdigit() for key in said)
    pairs = [(str(name), number) for number, name in said.items()] if numbered else list(said.items())
    values: dict[str, list[int]] = {}
    for name, number in pairs:
        if isinstance(number, list):
            raise DataError(
                f"{path} has the label {name!r} with the values {number}, a region that overlaps with others: give "
                "each voxel one class, and say which values are which with --label"
            )
        if name == "ignore" and not numbered:
            raise DataError(f"{path} has an 'ignore' label, which is not read: relabel it, or merge it with --label")
        values.setdefault(BACKGROUND if int(number) == 0 else name, []).append(int(number))
    ordered = dict(sorted(values.items(), key=lambda item: min(item[1])))
    return Labels.named(ordered) if ordered.keys() - {BACKGROUND} else None
