"""What ``dataset.json`` says of a set in the Decathlon's or nnU-Net's layout.

The Decathlon numbers its labels (``"labels": {"1": "Anterior"}``) and lists its pairs under ``training``; nnU-Net 2
names its labels (``"labels": {"Anterior": 1}``), and may list its cases under ``dataset``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.data.labels import BACKGROUND, Labels
from fedshift.data.scan_file import Finding, ScanError, reading
from fedshift.schema.errors import ConfigError

FILE = "dataset.json"


@dataclass(frozen=True)
class Pair:
    """A case of the list: its name where the list gives one, its images as written there, and its label or ""."""

    images: tuple[str, ...]
    label: str
    case: str = ""


@dataclass(frozen=True)
class Description:
    """What ``dataset.json`` says.

    Attributes:
        pairs: the cases that it lists for training; empty if it lists none.
        elsewhere: key of another list -> the images in it, such as ``test``.
        training: the number of cases that it says.
        ending: how the files' names end, in nnU-Net's layout.
        unusable_labels: why its labels cannot be used; ``unusable_names`` the same of its names of sequences.
    """

    name: str = ""
    licence: str = ""
    sequences: tuple[str, ...] = ()
    labels: Labels | None = None
    pairs: tuple[Pair, ...] = ()
    elsewhere: Mapping[str, tuple[str, ...]] | None = None
    training: int | None = None
    ending: str = ""
    unusable_labels: Finding | None = None
    unusable_names: Finding | None = None


def read_description(folder: Path) -> Description:
    """What the ``dataset.json`` in a folder says; nothing if there is none."""
    path = folder / FILE
    if not path.is_file():
        return Description()
    try:
        with reading(path):
            content = json.loads(path.read_text(encoding="utf-8-sig"))
        names = channel_names(content, path)
        labels = _labels(content.get("labels") or {}, content.get("regions_class_order") or (), path)
        sequences = _sequences(tuple(names.values()), path)
        stated = content.get("numTraining")
        return Description(
            name=str(content.get("name") or ""),
            licence=str(content.get("licence") or content.get("license") or ""),
            sequences=numbers(len(names)) if isinstance(sequences, Finding) else sequences,
            labels=None if isinstance(labels, Finding) else labels,
            pairs=_pairs(content),
            elsewhere={
                key: tuple(image for entry in content.get(key) or [] for image in _pair(entry).images)
                for key in ("validation", "test")
            },
            training=stated if isinstance(stated, int) else None,
            ending=str(content.get("file_ending") or ""),
            unusable_labels=labels if isinstance(labels, Finding) else None,
            unusable_names=sequences if isinstance(sequences, Finding) else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"cannot be parsed ({error})"
        raise ScanError("description-broken", path, what, "download it again or remove it") from None


def channel_names(content: Mapping[str, Any], path: Path) -> dict[int, str]:
    """The names of the sequences by their numbers, in this order; empty if there are none.

    Raises:
        ScanError: they have no numbers, as in a list.
    """
    key = next((key for key in ("channel_names", "modality") if content.get(key)), None)
    names = {} if key is None else content[key]
    if not isinstance(names, dict) or not all(number.isdecimal() for number in names):
        listed = [str(name) for name in names] if isinstance(names, list | dict) else [str(names)]
        example = json.dumps(dict(enumerate(listed)), ensure_ascii=False)
        what = f"has {key} {json.dumps(names, ensure_ascii=False)}, in which nothing says which is file _0000"
        raise ScanError("description-broken", path, what, f"number them, as in {example}")
    return {number: str(names[key]) for number, key in sorted((int(key), key) for key in names)}


def numbers(count: int) -> tuple[str, ...]:
    """The names of sequences that have none."""
    return tuple(f"{number:04d}" for number in range(count))


def _pairs(content: Mapping[str, Any]) -> tuple[Pair, ...]:
    """The cases of nnU-Net 2's ``dataset``, as nnU-Net takes it before ``training``, or of the Decathlon's list."""
    if of_case := content.get("dataset"):
        if not isinstance(of_case, dict):
            raise ValueError("its 'dataset' is no table of cases")
        return tuple(
            _pair({"image": entry["images"], "label": entry["label"]}, case=case) for case, entry in of_case.items()
        )
    return tuple(map(_pair, content.get("training") or ()))


def _pair(entry: Any, case: str = "") -> Pair:
    """An entry of a list: ``{"image": …, "label": …}``, whose image may be a list of files, or an image alone."""
    pair = entry if isinstance(entry, dict) else {"image": entry}
    images = pair["image"] if isinstance(pair["image"], list) else [pair["image"]]
    label = pair.get("label") or ""
    if not images or not all(isinstance(text, str) and text for text in images) or not isinstance(label, str):
        raise ValueError(f"it lists {entry!r}, which names no image and label")
    return Pair(tuple(images), label, case)


def _sequences(names: tuple[str, ...], path: Path) -> tuple[str, ...] | Finding:
    """The names of the sequences, or what is wrong with them.

    nnU-Net takes them for ways to normalise (``noNorm``, ``zscore``), so that several may be called the same.
    """
    twice = next((name for k, name in enumerate(names) if name.lower() in map(str.lower, names[:k])), None)
    if twice is None:
        return names
    example = ",".join(f"NAME{number}" for number in range(1, len(names) + 1))
    remedy = f"name all {len(names)} in their order, as in --sequence {example}"
    return Finding("error", "sequence-twice", path, f"names several sequences {twice}", remedy)


def _labels(labels: Mapping[str, Any], order: Sequence[int], path: Path) -> Labels | Finding | None:
    """Labels from either form, or what is wrong with them; names that repeat are one class.

    With lists of values they are nnU-Net's regions, and ``order`` is the value that it writes for each of them.
    """
    numbered = all(key.isdigit() for key in labels)
    pairs = [(str(name), number) for number, name in labels.items()] if numbered else list(labels.items())
    values: dict[str, list[int]] = {}
    for name, number in pairs:
        if number == []:
            values[name] = []  # which is refused below
        for value in number if isinstance(number, list) else [number]:
            whole = int(value)
            if whole != float(value):
                raise ValueError(f"its label {name!r} has the value {value}, which is no whole number")
            values.setdefault(BACKGROUND if whole == 0 else name, []).append(whole)
    ordered = dict(sorted(values.items(), key=lambda item: min(item[1], default=0)))
    try:
        if any(isinstance(number, list) and len(number) != 1 for _, number in pairs):  # as nnU-Net tells regions
            return Labels.of_regions(values, [int(value) for value in order])
        return Labels.named(ordered) if ordered.keys() - {BACKGROUND} else None
    except ConfigError as error:
        what, _, remedy = str(error).partition(": ")
        remedy += ", or say which values are which with --label"
        return Finding("error", "labels-unusable", path, f"has labels that cannot be used ({what})", remedy)
