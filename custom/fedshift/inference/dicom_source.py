"""What DICOM results take from their source: patient, study and slices; and what they say of the model."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import fedshift
from fedshift.data.dicom_objects import UNREADABLE, need_highdicom, quiet
from fedshift.data.dicom_scan import dicom_source
from fedshift.data.named_masks import read_mask
from fedshift.data.scans import Scan
from fedshift.inference.model import Model
from fedshift.schema.codes import ClassCodes
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.task import check_codes

if TYPE_CHECKING:
    from fedshift.inference.monai_bundle import Bundle

NOTE = "research use, not for diagnosis"
MOST = 64
"""Characters of a DICOM long string (LO)."""
SERIES_NUMBER = 9000
"""Added to the source's series number: results stand behind the scanner's series."""
POSITION, PLANE_POSITION = 0x00200032, 0x00209113
"""The attribute by which frames are ordered, and its functional group."""
UTF_8 = "ISO_IR 192"
"""The character set of results (PS3.3, C.12.1.1.2)."""
EMPTY = (
    *("PatientID", "PatientName", "PatientBirthDate", "PatientSex", "AccessionNumber", "StudyID", "StudyDate"),
    *("StudyTime", "ReferringPhysicianName"),
)
"""Attributes that a source must have and that may be empty."""


@dataclass(frozen=True)
class Origin:
    """What a result says of the program and the model that made it; ``codes`` of each class.

    ``simulated``: the model was trained on simulated scans, which name and description say first.
    """

    task: str
    program: str
    """What made the mask: fedshift with the model's methods, or with another program's bundle."""
    version: str
    model: str
    simulated: bool
    codes: Mapping[str, ClassCodes]

    @property
    def algorithm(self) -> str:
        return f"{'PHANTOM-TRAINED ' if self.simulated else ''}{self.program} on {self.task}"[:MOST]

    @property
    def description(self) -> str:
        begins = f"{'PHANTOM-TRAINED ' if self.simulated else ''}{self.task}"
        return f"{begins[: MOST - len(NOTE) - 2]}: {NOTE}"

    @property
    def full_version(self) -> str:
        """Version of fedshift and which model it was."""
        return f"{self.version}, model {self.model}"[:MOST]


def origin(
    model: Model | Bundle, codes: Mapping[str, ClassCodes] | None = None, *, others: Sequence[Model] = ()
) -> Origin:
    """What results say of what made them; ``codes`` in place of those of its task, ``others`` averaged with it.

    Raises:
        ConfigError: highdicom is not installed, or the classes have no codes, or others.
    """
    need_highdicom("writing DICOM")
    if isinstance(model, Model):
        task, weights, simulated = model.header.job.task, model.path, model.header.kind == "phantom"
        alone, name, program = "mask", task.name, f"fedshift {'+'.join(model.header.job.methods)}"
        structures = task.structures if model.is_segmentation else ()  # classes of pictures have no codes
        parts = task.classes[1:] if task.regions else ()
        codes = codes or task.codes
    else:
        name, weights, simulated = model.name, model.weights, False
        alone = "regions" if model.overlapping else "mask"
        program, structures, parts = f"MONAI bundle {model.version}", tuple(model.classes), ()
    if structures and not codes:
        raise ConfigError(
            "codes-missing",
            f"{weights}: its task has no DICOM codes for {', '.join(structures)}: give them with "
            f"--codes TASK.yaml (docs/how-to-dicom.md), or leave DICOM out with --format {alone}",
        )
    try:
        check_codes(codes or {}, structures, parts=parts)
    except ValueError as error:
        raise ConfigError("codes-invalid", f"--codes does not fit {weights}: {error}") from None
    sha256 = hashlib.sha256(weights.read_bytes())
    for other in others:
        sha256.update(other.path.read_bytes())
    if others:
        program += f", mean of {1 + len(others)} models"
    return Origin(name, program, fedshift.__version__, sha256.hexdigest()[:16], simulated, codes or {})


@dataclass(frozen=True)
class Source:
    """The DICOM objects of a scan, without pixels, in the order of its slices.

    Of an enhanced image there is one object, whose frames are the slices of the volume in their order, whatever files
    and frames they come from.
    """

    path: Path
    objects: tuple[Any, ...]
    references: tuple[tuple[str, int | None], ...]
    """Of each slice the UID of the file that it is in, and its frame there, from 1; None of a classic slice."""

    @property
    def first(self) -> Any:
        """The object that patient and study are taken from."""
        return self.objects[0]

    @property
    def is_enhanced(self) -> bool:
        """Whether the slices are frames of one object."""
        return self.references[0][1] is not None

    @property
    def files(self) -> tuple[str, ...]:
        """The UIDs of all files that the slices are in."""
        return tuple(dict.fromkeys(uid for uid, _ in self.references))

    @property
    def series_number(self) -> int:
        number = self.first.get("SeriesNumber")
        return SERIES_NUMBER + (int(number) % 1000 if number is not None else 0)

    def group(self, name: str, number: int = 0) -> Any:
        """What holds a slice's attributes: its file, or a functional group of an enhanced image."""
        if not self.is_enhanced:
            return self.objects[number]
        frame = self.first.PerFrameFunctionalGroupsSequence[number]
        return (frame if name in frame else self.first.SharedFunctionalGroupsSequence[0])[name][0]

    def plane(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where a slice lies, in mm: its first pixel, and the steps to the next column and to the next row."""
        position = self.group("PlanePositionSequence", number).ImagePositionPatient
        cosines = np.array(self.group("PlaneOrientationSequence", number).ImageOrientationPatient, float)
        between_rows, between_columns = map(float, self.group("PixelMeasuresSequence", number).PixelSpacing)
        return np.array(position, float), cosines[:3] * between_columns, cosines[3:] * between_rows


def object_fields(source: Source, origin: Origin, uid: Callable[[str], str]) -> dict[str, Any]:
    """What every result says of itself and of what made it, as arguments of highdicom's objects.

    ``uid``: as `uids_of` gives it.
    """
    import highdicom as hd

    return {
        "series_instance_uid": hd.UID(uid("series")),
        "series_number": source.series_number,
        "sop_instance_uid": hd.UID(uid("object")),
        "instance_number": 1,
        "manufacturer": "fedshift",
        "manufacturer_model_name": "fedshift",
        "software_versions": origin.version,
        "device_serial_number": origin.model,
        "series_description": origin.description,
    }


def uids_of(source: Source, origin: Origin, *content: object) -> Callable[[str], str]:
    """A function that gives the UID of what is named, of a result with this content.

    The same slices, model and content give the same UIDs, whoever asks and however often, so that an archive knows a
    result that it has.
    """
    from pydicom.uid import generate_uid

    digest = hashlib.sha256(repr([origin, *source.references, *content]).encode()).hexdigest()
    return lambda name: str(generate_uid(entropy_srcs=[digest, name]))


def digest_of(mask: np.ndarray) -> str:
    """What a mask's voxels are known by."""
    return hashlib.sha256(repr((mask.shape, mask.dtype.str)).encode() + mask.tobytes()).hexdigest()


@contextmanager
def making(path: Path, what: str) -> Iterator[None]:
    """Turn what highdicom and pydicom raise into a sentence, without a value of a tag; nothing is left at ``path``.

    Raises:
        DataError: the source lacks what ``what`` needs.
    """
    with quiet():
        try:
            yield
        except UNREADABLE as error:
            path.unlink(missing_ok=True)
            why = "the disk is full or closed to you" if isinstance(error, OSError) else type(error).__name__
            raise DataError(
                "dicom-attributes",
                f"{path}: no {what} can be made for this series ({why}): export the series again with all its "
                "attributes, or leave DICOM out with --format mask",
            ) from None


def open_source(path: Path, *, volume: int | None = None) -> Source:
    """The DICOM objects of a scan. What the standard requires and may be empty is added where it lacks.

    ``volume``: which one of several, from 1.

    Raises:
        DataError: as `fedshift.data.scans.read_scan`, or objects without UIDs.
    """
    import pydicom

    files, frames = dicom_source(path, volume=volume)
    with quiet():
        objects = tuple(pydicom.dcmread(file, stop_before_pixels=True) for file in files)
        frame = None
        for dataset in objects:
            _complete(dataset, path)
            if not dataset.get("FrameOfReferenceUID"):
                frame = frame or pydicom.uid.generate_uid(entropy_srcs=[str(dataset.SeriesInstanceUID)])
                dataset.FrameOfReferenceUID = frame
            if not frames and not dataset.get("SliceThickness"):
                dataset.SliceThickness = None
        if not frames:
            return Source(path, objects, tuple((str(dataset.SOPInstanceUID), None) for dataset in objects))
        return _from_frames(path, objects, frames)


def open_picture(path: Path) -> Source:
    """The DICOM object of a picture; raises as `open_source`."""
    import pydicom

    with quiet():
        dataset = pydicom.dcmread(path, stop_before_pixels=True)
        _complete(dataset, path)
        return Source(path, (dataset,), ((str(dataset.SOPInstanceUID), None),))


def _complete(dataset: Any, path: Path) -> None:
    """Add what the standard requires and may be empty, with text in UTF-8; refuse an object without UIDs."""
    dataset.decode()  # by the source's own character set, in which results may have names that it cannot write
    dataset.SpecificCharacterSet = UTF_8
    for name in ("SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID"):
        if not dataset.get(name):
            message = f"{path} has an object without {name}: export the series again, or leave DICOM out"
            raise DataError("dicom-attributes", message)
    for name in EMPTY:
        if name not in dataset:
            setattr(dataset, name, "")
    if dataset.PatientSex not in ("M", "F", "O", ""):
        dataset.PatientSex = ""


def _from_frames(path: Path, parts: Sequence[Any], frames: Sequence[int]) -> Source:
    """The chosen frames of an enhanced image, counted through all its parts, as one object.

    What a part says of all its frames is said of each where other parts say something else.
    """
    dataset = parts[0]
    shared = dataset.SharedFunctionalGroupsSequence[0]
    groups, references = [], []
    for part in parts:
        differing = [item for item in part.SharedFunctionalGroupsSequence[0] if shared.get(item.tag) != item]
        for number, group in enumerate(part.PerFrameFunctionalGroupsSequence, start=1):
            for element in differing:
                if element.tag not in group:
                    group[element.tag] = element
            groups.append(group)
            references.append((str(part.SOPInstanceUID), number))
    chosen = [groups[frame] for frame in frames]
    for place, group in enumerate(chosen, start=1):
        if "FrameContentSequence" not in group:
            group.FrameContentSequence = [dataset.__class__()]
        group.FrameContentSequence[0].DimensionIndexValues = [place]
    dataset.PerFrameFunctionalGroupsSequence, dataset.NumberOfFrames = chosen, len(chosen)
    index = copy.deepcopy(dataset.DimensionIndexSequence[0])
    index.DimensionIndexPointer, index.FunctionalGroupPointer = POSITION, PLANE_POSITION
    dataset.DimensionIndexSequence = [index]
    return Source(path, (dataset,), tuple(references[frame] for frame in frames))


def check_written(path: Path, mask: np.ndarray, scan: Scan, *, regions: bool = False) -> None:
    """Read a written mask back, of classes or of sets of regions.

    Raises:
        DataError: it is another one; the file is deleted then.
    """
    back, _ = read_mask(path, scan, None, sets=regions)
    if not np.array_equal(back.voxels, mask):
        path.unlink()
        message = f"{path} was not the mask when read back, so it was deleted: export the scan again"
        raise DataError("mask-differs", message)
