"""The cases that somebody names, and which file or volume of each is which sequence.

A case with several sequences is a 4D file, files with numbers, as nnU-Net has them, or a folder.
``<case>_0000.nii.gz``, ``<case>_0001.nii.gz`` and so on, and the volumes of a 4D file, are in the order that
``dataset.json`` says, in their folder or beside it, and without that file in the model's order. In a folder of a case,
``P1/T2.nii.gz`` or ``P1/P1_T2.nii.gz`` and ``P1/ADC.nii.gz``, or DICOM series ``P1/T2`` and ``P1/ADC``, go by their
names, whether in upper or lower case.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedshift.data.cases import UNNAMED
from fedshift.data.layouts.dataset_json import FILE, channel_names
from fedshift.data.layouts.names import NUMBERED
from fedshift.data.picture_files import is_picture
from fedshift.data.picture_scan import COLOURS
from fedshift.data.scan_file import SeveralVolumes, as_compared, reading, suffix_of
from fedshift.data.scan_folders import MASK, scan_files, visible
from fedshift.data.scans import ORIGIN_TOLERANCE, Scan, read_scan, read_volumes, stem_of, volumes_in
from fedshift.data.series import is_dicom, is_series
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.manifest import DIRECTION_TOLERANCE, SPACING_TOLERANCE


@dataclass(frozen=True)
class ScanCase:
    """One case that is to be predicted, from `find_cases`: what its paths say is asked once."""

    image: Path
    """The file or series of the model's first sequence, by which the case is reported."""
    files: tuple[Path, ...]
    """Of each of the model's sequences, in the model's order; a 4D file is all of them."""
    named: Path
    """A path whose name is the case's, and whose suffix is that of its files."""
    sequences: tuple[str, ...] = ()
    """The model's; empty for a single one without a name."""
    is_dicom: bool = False
    order: SequenceOrder | None = None
    """Of numbered files and of the volumes of a 4D file."""
    volumes: int | None = None
    """How many a 4D file of the model's sequences has; None for 3D files."""
    volume: int | None = None
    """Which one to take, from 1, of a file or series with several that are no sequences."""

    @property
    def assignment(self) -> str | None:
        """A line that says which file or volume is taken for which sequence; None for a 3D file of one."""
        if self.order is not None:
            return f"sequences: {self.order.describe(volumes=self.volumes is not None)}"
        by_name = f"sequences: {', '.join(self.sequences)}, by the files' names in the case's folder"
        return by_name if len(self.files) > 1 else None

    def read(self) -> list[Scan]:
        """The scans of its sequences, on one grid.

        Raises:
            DataError: a file cannot be read, is the same everywhere, lies on another grid than the first, or is 4D with
                another number of volumes than there are sequences.
        """
        if self.volumes is not None and self.volume is not None:
            message = f"{self.image} has the model's sequences as its volumes: leave out --volume"
            raise DataError("options-clash", message)
        if is_picture(self.image):
            return self._read_picture()
        try:
            scans = (
                [read_scan(path, volume=self.volume) for path in self.files]
                if self.volumes is None
                else read_volumes(self.image, self._channels())
            )
        except SeveralVolumes:
            if self.is_dicom or self.sequences or self.volume is not None:
                raise
            message = f"{self.image} has {volumes_in(self.image)} volumes, and the model takes one"
            remedy = "save that one alone as a 3D file, or say which with --volume N"
            raise DataError("volumes-count", f"{message}: {remedy}") from None
        for number, (path, scan) in enumerate(zip(self.files, scans, strict=True)):
            if scan.voxels.min() == scan.voxels.max():
                where = "" if self.volumes is None else f" of {self.sequences[number]}"
                message = f"{path} has the same intensity everywhere{where}: export the scan again"
                raise DataError("scan-empty", message)
            if number and (differences := ", ".join(_differences(scans[0], scan))):
                message = f"{path} lies on another grid than {self.image}: it differs in {differences}"
                raise DataError("sequence-grid", f"{message}: resample it to that scan's grid")
        return scans

    def _read_picture(self) -> list[Scan]:
        """Its colours, by the names of the sequences; any other name is that of a grey picture."""
        known = {name: number for number, name in enumerate(COLOURS)}
        scans = read_volumes(self.image, [known.get(as_compared(name)) for name in self.sequences] or [None])
        if all(scan.voxels.min() == scan.voxels.max() for scan in scans):
            raise DataError("scan-empty", f"{self.image} has the same colour everywhere: save the picture again")
        return scans

    def read_stacked(self) -> tuple[Scan, np.ndarray]:
        """The scan of the first sequence, and the voxels of all (S, z, y, x); errors as of `read`."""
        scans = self.read()
        return scans[0], np.stack([scan.voxels for scan in scans])

    def _channels(self) -> list[int]:
        """Which volumes of a 4D file are the model's sequences."""
        assert self.order is not None
        names = list(self.order.names)
        if self.volumes == len(names):
            return [names.index(number) for number in self.order.numbers]
        listed = f"{len(names)} ({', '.join(self.order.names.values())})"
        message = (
            f"{self.image} has {self.volumes} volumes, and the model takes {listed}: save those alone, in this order"
        )
        message += f", or name all {self.volumes} in the channel_names of a {FILE} beside it"
        if (source := self.order.source) is not None:
            message = f"{self.image} has {self.volumes} volumes, and {source} names {listed}: name every volume there, "
            message += "in their order"
        raise DataError("volumes-count", message)


@dataclass(frozen=True)
class SequenceOrder:
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

    def describe(self, *, volumes: bool) -> str:
        """``_0000 = T2, _0001 = ADC``, or ``of 4D files volume 1 = T2``, and who says so."""
        used = [(place, number) for place, number in enumerate(self.names, start=1) if number in self.numbers]
        labels = [(f"volume {place}" if volumes else f"_{number:04d}", self.names[number]) for place, number in used]
        source = "the order of the model" if self.source is None else str(self.source)
        return f"{'of 4D files ' * volumes}{', '.join(f'{label} = {name}' for label, name in labels)} ({source})"


def in_case_folders(paths: Iterable[Path], sequences: Sequence[str]) -> list[Path]:
    """The paths; in place of a folder of case folders with files, the case folders."""
    inner: list[Path] = []
    for path in paths:
        inside = _case_folders(path, sequences) if len(sequences) > 1 and path.is_dir() else []
        inner += inside or [path]
    return inner


def find_cases(images: Sequence[Path], sequences: Sequence[str], *, volume: int | None = None) -> list[ScanCase]:
    """The cases that the given files are of, each once, for a model of these sequences.

    ``volume``: see `ScanCase`.

    Raises:
        ConfigError: a file's name does not say its sequence, a case lacks one, or ``dataset.json`` names others.
    """
    cases: dict[Path, ScanCase] = {}
    for image in images:
        case = find_case(image, sequences)
        missing = next((path for path in case.files if not path.exists() and not is_series(path)), None)
        if missing is not None and sequences:
            listed = _order_in(image.parent, sequences).listed
            message = f"{missing} does not exist, and the model takes {len(sequences)} files of a case: {listed}"
            raise ConfigError("sequence-missing", message)
        cases.setdefault(case.image, replace(case, volume=volume))
    return list(cases.values())


def picture_cases(images: Sequence[Path], sequences: Sequence[str]) -> list[ScanCase]:
    """A case for each picture, for a model of pictures with these sequences.

    Raises:
        ConfigError: a file is no picture.
    """
    other = next((image for image in images if not is_picture(image)), None)
    if other is not None:
        fault = f"{other} is no picture, and the model segments pictures"
        raise ConfigError(
            "kind-of-data",
            f"{fault}: name PNG, JPEG, TIFF or BMP files, DICOM images that are no slices, or a model of volumes",
        )
    return [ScanCase(image, (image,), image, tuple(sequences)) for image in dict.fromkeys(images)]


def find_case(image: Path, sequences: Sequence[str]) -> ScanCase:
    """The case that a file is of; a numbered file need not exist. Errors as of `find_cases`."""
    case = ScanCase(image, (image,), image, tuple(sequences), is_dicom=is_dicom(image))
    if not sequences:
        return case
    if (volumes := volumes_in(image)) > 1:
        order = _order_in(image.parent, sequences)
        return replace(case, files=(image,) * len(order.numbers), order=order, volumes=volumes)
    if len(sequences) < 2:
        return case
    suffix = suffix_of(image)
    if suffix is None or is_series(image) or NUMBERED.fullmatch(stem_of(image)) is None:
        files, folder = _files_by_name(image, sequences), image.parent.resolve()
        named = folder if suffix is None or is_series(image) else folder / f"{folder.name}{suffix}"
        return replace(case, image=files[0], files=files, named=named)
    order = _order_in(image.parent, sequences)
    stem, _, number = stem_of(image).rpartition("_")
    if int(number) not in order.names:
        message = f"{image}: the model takes {len(sequences)} files of a case, whose names end in {order.listed}"
        raise ConfigError("sequence-unknown", message)
    files = tuple(image.with_name(f"{stem}_{number:04d}{suffix}") for number in order.numbers)
    return replace(case, image=files[0], files=files, named=image.with_name(f"{stem}{suffix}"), order=order)


def _order_in(folder: Path, sequences: Sequence[str]) -> SequenceOrder:
    """Of the files in a folder."""
    places = (folder / FILE, folder.absolute().parent / FILE)
    file = next((path for path in places if path.is_file()), None)
    names = {} if file is None else _names_in(file)
    if file is None or all(UNNAMED.fullmatch(name) for name in names.values()):
        return SequenceOrder(dict(enumerate(sequences)), tuple(range(len(sequences))))
    number_of = {as_compared(name): number for number, name in names.items()}
    if len(number_of) < len(names) or not {as_compared(name) for name in sequences} <= number_of.keys():
        raise ConfigError(
            "sequence-names",
            f"{file} calls the sequences {', '.join(names.values())}, and the model takes {', '.join(sequences)}: give "
            "them the model's names there",
        )
    return SequenceOrder(names, tuple(number_of[as_compared(name)] for name in sequences), file)


def _names_in(file: Path) -> dict[int, str]:
    """The names of the sequences in nnU-Net's ``dataset.json``, by number; empty if it names none."""
    try:
        with reading(file):
            content = json.loads(file.read_text(encoding="utf-8"))
        return channel_names(content, file)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError("description-broken", f"{file} cannot be parsed ({error}): correct it or remove it") from None


def _files_by_name(image: Path, sequences: Sequence[str]) -> tuple[Path, ...]:
    """The files of the case in whose folder ``image`` is."""
    folder, by_sequence = image.parent, _by_name(image.parent, sequences)
    if not any(by_sequence.values()):
        raise ConfigError(
            "sequence-unknown",
            f"{image}: the model takes {len(sequences)} files of a case, whose names end in "
            f"{_order_in(folder, sequences).listed}, or, in a folder for each case, are {', '.join(sequences)}",
        )
    for name, files in by_sequence.items():
        takes = f"and the model takes one file each of {', '.join(sequences)}"
        if not files:
            raise ConfigError("sequence-missing", f"{folder} holds no {name}, {takes}")
        if len(files) > 1:
            listed = ", ".join(file.name for file in files)
            raise ConfigError("sequence-twice", f"{folder} holds {listed} for {name}, {takes}")
    return tuple(files[0] for files in by_sequence.values())


def _by_name(folder: Path, sequences: Sequence[str]) -> dict[str, list[Path]]:
    """Of each sequence what a folder holds under its name; the name of the folder may come before it."""
    by_sequence: dict[str, list[Path]] = {name: [] for name in sequences}
    known = {as_compared(name): name for name in sequences}
    prefix = as_compared(folder.resolve().name)
    for entry in visible(folder):
        if entry.is_dir() or suffix_of(entry) or entry.suffix.lower() == ".dcm":
            key = as_compared(stem_of(entry)).removeprefix(prefix).strip(" _.-")
            if key in known:
                by_sequence[known[key]].append(entry)
    return by_sequence


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
        size, wanted = (" x ".join(map(str, scan.voxels.shape[::-1])) for scan in (other, first))
        yield f"size, {size} voxels instead of {wanted}"
        return
    for what, unit, tolerance in (
        ("spacing", " mm", SPACING_TOLERANCE),
        ("direction", "", DIRECTION_TOLERANCE),
        ("origin", " mm", ORIGIN_TOLERANCE),
    ):
        gap = np.abs(np.subtract(getattr(other, what), getattr(first, what))).max()
        if not gap <= tolerance:  # also where it is NaN
            yield f"{what} by up to {gap:.3g}{unit} (tolerance {tolerance:g}{unit})"
