"""Cases with several sequences: 4D files, files with numbers, as nnU-Net has them, or a folder for each case.

``<case>_0000.nii.gz``, ``<case>_0001.nii.gz`` and so on, and the volumes of a 4D file, are in the order that
``dataset.json`` says, in their folder or beside it, and without that file in the model's order. In a folder of a case,
``P1/T2.nii.gz`` or ``P1/P1_T2.nii.gz`` and ``P1/ADC.nii.gz``, or DICOM series ``P1/T2`` and ``P1/ADC``, go by their
names, whether in upper or lower case.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedshift.data.case_check import ORIGIN_TOLERANCE
from fedshift.data.cases import UNNAMED
from fedshift.data.layouts.dataset_json import FILE
from fedshift.data.layouts.files import scan_files, visible
from fedshift.data.layouts.names import NUMBERED
from fedshift.data.scan_file import ScanError, as_compared, reading, suffix_of
from fedshift.data.scan_folders import MASK
from fedshift.data.scans import Scan, read_scan, read_volumes, stem_of, volumes_in
from fedshift.data.series import is_series
from fedshift.schema.errors import ConfigError
from fedshift.schema.manifest import DIRECTION_TOLERANCE, SPACING_TOLERANCE


def in_case_folders(paths: Iterable[Path], sequences: Sequence[str]) -> list[Path]:
    """The paths; in place of a folder of case folders with files, the case folders."""
    found: list[Path] = []
    for path in paths:
        inside = _case_folders(path, sequences) if len(sequences) > 1 and path.is_dir() else []
        found += inside or [path]
    return found


def first_files(images: Sequence[Path], sequences: Sequence[str]) -> list[Path]:
    """Of the given files the one of the model's first sequence, of each case; all of them for a model of one sequence.

    Raises:
        ConfigError: a file's name does not say its sequence, a case lacks one, or ``dataset.json`` names others.
    """
    if not sequences:
        return list(images)
    first: dict[Path, None] = {}
    for image in images:
        files = files_of(image, sequences)
        missing = next((path for path in files if not path.exists() and not is_series(path)), None)
        if missing is not None:
            raise ConfigError(
                f"{missing} does not exist, and the model takes {len(sequences)} files of a case: "
                f"{_numbering(image.parent, sequences).listed}"
            )
        first[files[0]] = None
    return list(first)


def which_is_which(images: Sequence[Path], sequences: Sequence[str]) -> Iterator[str]:
    """Lines that say which files, or volumes of a file, are taken for which sequence; none for 3D files of one.

    ``images`` are from `first_files`.
    """
    yield from dict.fromkeys(said for image in images if (said := _said(image, sequences)))


def _said(image: Path, sequences: Sequence[str]) -> str | None:
    if sequences and is_4d(image):
        return f"sequences: of 4D files {_numbering(image.parent, sequences).volumes}"
    if len(sequences) < 2:
        return None
    if _is_numbered(image):
        return f"sequences: {_numbering(image.parent, sequences)}"
    return f"sequences: {', '.join(sequences)}, by the files' names in the case's folder"


def case_of(image: Path, sequences: Sequence[str]) -> Path:
    """A path whose name is the case's, from any of its files."""
    if len(sequences) < 2 or is_4d(image):
        return image
    if _is_numbered(image):
        return image.with_name(f"{stem_of(image)[: -len('_0000')]}{suffix_of(image)}")
    folder, suffix = image.parent.resolve(), suffix_of(image)
    return folder if suffix is None or is_series(image) else folder / f"{folder.name}{suffix}"


def files_of(image: Path, sequences: Sequence[str]) -> list[Path]:
    """The files of a case in the order of the model's sequences, from any of them; a 4D file is all of them.

    Raises:
        ConfigError: as `first_files`; but a numbered file need not exist.
    """
    if sequences and is_4d(image):
        return [image] * len(_numbering(image.parent, sequences).numbers)
    if len(sequences) < 2:
        return [image]
    if not _is_numbered(image):
        return _files_by_name(image, sequences)
    order = _numbering(image.parent, sequences)
    case, _, number = stem_of(image).rpartition("_")
    if int(number) not in order.names:
        raise ConfigError(
            f"{image}: the model takes {len(sequences)} files of a case, whose names end in {order.listed}"
        )
    return [image.with_name(f"{case}_{number:04d}{suffix_of(image)}") for number in order.numbers]


def read_case(image: Path, sequences: Sequence[str], *, volume: int | None = None) -> tuple[Scan, np.ndarray]:
    """The scan of a case's first sequence, and the voxels of all its sequences (S, z, y, x).

    Raises:
        ScanError: as for `read_sequences`.
    """
    scans = read_sequences(image, sequences, volume=volume)
    return scans[0], np.stack([scan.voxels for scan in scans])


def read_sequences(image: Path, sequences: Sequence[str], *, volume: int | None = None) -> list[Scan]:
    """The scans of a case's sequences, on one grid.

    ``volume``: which one to take, from 1, of a file or series with several that are no sequences.

    Raises:
        ScanError: a file cannot be read, is the same everywhere, lies on another grid than the first, or is 4D with
            another number of volumes than there are sequences.
    """
    files = files_of(image, sequences)
    several = is_4d(image) and (bool(sequences) or volume is None)
    if several and volume is not None:
        raise ScanError("options-clash", image, "has the model's sequences as its volumes", "leave out --volume")
    scans = (
        read_volumes(image, _channels(image, sequences))
        if several
        else [read_scan(path, volume=volume) for path in files]
    )
    for number, (path, scan) in enumerate(zip(files, scans, strict=True)):
        if scan.voxels.min() == scan.voxels.max():
            where = f" of {sequences[number]}" if several else ""
            raise ScanError("scan-empty", path, f"has the same intensity everywhere{where}", "export the scan again")
        differences = ", ".join(_differences(scans[0], scan))
        if differences:
            what = f"lies on another grid than {files[0]}: it differs in {differences}"
            raise ScanError("sequence-grid", path, what, "resample it to that scan's grid")
    return scans


def is_4d(image: Path) -> bool:
    """Whether a file has several volumes."""
    return volumes_in(image) > 1


def _channels(image: Path, sequences: Sequence[str]) -> list[int]:
    """Which volumes of a 4D file are the model's sequences.

    Raises:
        ScanError: it has more or fewer volumes than there are names for.
    """
    there = volumes_in(image)
    if not sequences:
        raise ScanError(
            "several-volumes",
            image,
            f"has {there} volumes, and the model takes one",
            "save that one alone as a 3D file, or say which with --volume N",
        )
    order = _numbering(image.parent, sequences)
    named = f"{len(order.names)} ({', '.join(order.names.values())})"
    if there != len(order.names) and order.source is not None:
        wrong = f"has {there} volumes, and {order.source} names {named}"
        raise ScanError("volumes-count", image, wrong, "name every volume there, in their order")
    if there != len(order.names):
        mend = f"save those alone, in this order, or name all {there} in the channel_names of a {FILE} beside it"
        raise ScanError("volumes-count", image, f"has {there} volumes, and the model takes {named}", mend)
    return [list(order.names).index(number) for number in order.numbers]


@dataclass(frozen=True)
class _Numbering:
    """Which number of a file's name, or which volume of a 4D file, is which sequence.

    Attributes:
        names: number -> sequence, of every file that a case may have; in their order.
        numbers: those of the model's sequences, in its order.
        source: the file that says so; None for the model's order.
    """

    names: dict[int, str]
    numbers: tuple[int, ...]
    source: Path | None = None

    @property
    def listed(self) -> str:
        """``_0000 is T2, _0001 is ADC``, of the files that are used."""
        return ", ".join(f"_{number:04d} is {self.names[number]}" for number in sorted(self.numbers))

    def __str__(self) -> str:
        """``_0000 = T2, _0001 = ADC``, and who says so."""
        said = ", ".join(f"_{number:04d} = {self.names[number]}" for number in sorted(self.numbers))
        return f"{said} ({self._who})"

    @property
    def volumes(self) -> str:
        """``volume 1 = T2, volume 2 = ADC``, and who says so."""
        used = [(place, number) for place, number in enumerate(self.names, start=1) if number in self.numbers]
        return f"{', '.join(f'volume {place} = {self.names[number]}' for place, number in used)} ({self._who})"

    @property
    def _who(self) -> str:
        return "the order of the model" if self.source is None else str(self.source)


def _numbering(folder: Path, sequences: Sequence[str]) -> _Numbering:
    """Of the files in a folder.

    Raises:
        ConfigError: ``dataset.json`` cannot be read, or does not name the model's sequences.
    """
    places = (folder / FILE, folder.absolute().parent / FILE)
    file = next((path for path in places if path.is_file()), None)
    names = {} if file is None else _names_in(file)
    if file is None or all(UNNAMED.fullmatch(name) for name in names.values()):
        return _Numbering(dict(enumerate(sequences)), tuple(range(len(sequences))))
    number_of = {as_compared(name): number for number, name in names.items()}
    if len(number_of) < len(names) or not {as_compared(name) for name in sequences} <= number_of.keys():
        raise ConfigError(
            f"{file} calls the sequences {', '.join(names.values())}, and the model takes {', '.join(sequences)}: give "
            "them the model's names there"
        )
    return _Numbering(names, tuple(number_of[as_compared(name)] for name in sequences), file)


def _names_in(file: Path) -> dict[int, str]:
    """The names of the sequences in nnU-Net's ``dataset.json``, by number; empty if it names none."""
    try:
        with reading(file):
            content = json.loads(file.read_text(encoding="utf-8"))
        names = content.get("channel_names") or content.get("modality") or {}
        return {number: str(names[key]) for number, key in sorted((int(key), key) for key in names)}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be parsed ({error}): correct it or remove it") from None


def _is_numbered(image: Path) -> bool:
    return not is_series(image) and suffix_of(image) is not None and NUMBERED.fullmatch(stem_of(image)) is not None


def _files_by_name(image: Path, sequences: Sequence[str]) -> list[Path]:
    """The files of the case in whose folder ``image`` is."""
    folder, found = image.parent, _by_name(image.parent, sequences)
    if not any(found.values()):
        raise ConfigError(
            f"{image}: the model takes {len(sequences)} files of a case, whose names end in "
            f"{_numbering(folder, sequences).listed}, or, in a folder for each case, are {', '.join(sequences)}"
        )
    for name, files in found.items():
        if len(files) != 1:
            holds = f"holds {', '.join(file.name for file in files)} for {name}" if files else f"holds no {name}"
            raise ConfigError(f"{folder} {holds}, and the model takes one file each of {', '.join(sequences)}")
    return [files[0] for files in found.values()]


def _by_name(folder: Path, sequences: Sequence[str]) -> dict[str, list[Path]]:
    """Of each sequence what a folder holds under its name; the name of the folder may come before it."""
    found: dict[str, list[Path]] = {name: [] for name in sequences}
    called = {as_compared(name): name for name in sequences}
    before = as_compared(folder.resolve().name)
    for entry in visible(folder):
        if entry.is_dir() or suffix_of(entry) or entry.suffix.lower() == ".dcm":
            key = as_compared(stem_of(entry)).removeprefix(before).strip(" _.-")
            if key in called:
                found[called[key]].append(entry)
    return found


def _case_folders(folder: Path, sequences: Sequence[str]) -> list[Path]:
    """The folders of cases in a folder; none if it is no folder of such."""
    if scan_files(folder):
        return []
    folders = [entry for entry in visible(folder) if entry.is_dir()]
    if not any(any(_by_name(entry, sequences).values()) and scan_files(entry) for entry in folders):
        return []  # DICOM series are found in whatever folders
    return [entry for entry in folders if any(map(_may_be_scan, visible(entry)))]


def _may_be_scan(entry: Path) -> bool:
    """Whether an entry of a case's folder is more than a mask that ``fedshift predict`` wrote, or a text."""
    return entry.is_dir() or (suffix_of(entry) is not None and not stem_of(entry).endswith(MASK))


def _differences(first: Scan, other: Scan) -> Iterator[str]:
    """What keeps two scans from lying on one grid."""
    if other.voxels.shape != first.voxels.shape:
        given, wanted = (" x ".join(map(str, scan.voxels.shape[::-1])) for scan in (other, first))
        yield f"size, {given} voxels instead of {wanted}"
        return
    for what, unit, tolerance in (
        ("spacing", " mm", SPACING_TOLERANCE),
        ("direction", "", DIRECTION_TOLERANCE),
        ("origin", " mm", ORIGIN_TOLERANCE),
    ):
        gap = np.abs(np.subtract(getattr(other, what), getattr(first, what))).max()
        if not gap <= tolerance:  # also where it is NaN
            yield f"{what} by up to {gap:.3g}{unit} (tolerance {tolerance:g}{unit})"
