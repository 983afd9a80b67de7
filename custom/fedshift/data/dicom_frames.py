"""The frames of DICOM images: a classic slice is one, an enhanced image has many (PS3.3, C.7.6.16)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from pydicom.datadict import keyword_for_tag

from fedshift.data.dicom import FARTHEST, LARGEST, MOST_WHOLE, SMALLEST, DicomFault, identify, is_too_large, read_slice
from fedshift.data.dicom_objects import UNREADABLE, quiet
from fedshift.data.dicom_pixels import Values, syntax_of, values_of

_MARKS = {
    "time points": "TemporalPositionIdentifier TemporalPositionIndex TemporalPositionTimeOffset",
    "echoes": "EchoTime EffectiveEchoTime EchoNumbers",
    "b-values": "DiffusionBValue",
    "diffusion directions": "DiffusionGradientOrientation",
    "kinds of diffusion images": "DiffusionDirectionality",
    "cardiac phases": "NominalPercentageOfCardiacPhase NominalCardiacTriggerDelayTime TriggerTime",
    "respiratory phases": "NominalPercentageOfRespiratoryPhase",
    "components": "ComplexImageComponent",
    "kinds of images": "ImageType FrameType",
    "inversion times": "InversionTime InversionTimes",
    "flip angles": "FlipAngle",
    "tube voltages": "KVP",
    "kernels": "ConvolutionKernel",
    "stacks": "StackID",
    "acquisitions": "AcquisitionNumber FrameAcquisitionNumber AcquisitionTime FrameAcquisitionDateTime ContentTime",
}
MARKS = {keyword: words for words, keywords in _MARKS.items() for keyword in keywords.split()}
"""What tells the volumes of one series apart, in words; those that say most come first."""
UNMIXED = (
    *("TemporalPositionIdentifier", "TemporalPositionIndex", "DiffusionBValue", "ComplexImageComponent"),
    *("NominalPercentageOfCardiacPhase", "NominalPercentageOfRespiratoryPhase"),
)
"""Marks of which slices of one volume cannot have several."""
CLASSIC = (
    *("SOPClassUID", "SamplesPerPixel", "PhotometricInterpretation", "BitsAllocated", "BitsStored", "HighBit"),
    *("PixelRepresentation", "RescaleSlope", "RescaleIntercept", "RescaleType", "ModalityLUTSequence", "Units"),
    *("FrameOfReferenceUID", "PresentationLUTShape", "RealWorldValueMappingSequence", "LossyImageCompression"),
    *(f"{kind}PixelPadding{end}" for kind in ("", "Float", "DoubleFloat") for end in ("Value", "RangeLimit")),
)
ENHANCED = (
    *("Rows", "Columns", "NumberOfFrames", "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"),
    *("SOPInstanceUID", "ConcatenationUID", "InConcatenationNumber", "InConcatenationTotalNumber"),
)
"""Elements that are read of a file: others may hold anything."""
DEEPEST = 4  # levels of items in a frame's functional groups in which marks are looked for
Mark = tuple[tuple[float, ...], str]  # a mark's value: numbers, or words; empty where there is none
NO_MARK: Mark = ((), "")


@dataclass(frozen=True)
class Frame:
    """One image [rows, columns] with its place, in mm and cosines."""

    file: Path
    number: int
    """In its file, from 0."""
    rows: int
    columns: int
    position: np.ndarray
    orientation: np.ndarray
    spacing: np.ndarray
    """Between rows, and between columns."""
    marks: Mapping[str, Mark]
    values: Values
    syntax: str
    instance: bytes
    content: bytes
    """A digest of a classic slice's pixels and position."""
    is_classic: bool
    reference: str
    """The UID of the frame of reference that its place is in; "" if it does not say it."""


@dataclass(frozen=True)
class Part:
    """Of which concatenation a file is a part, and which of how many; None where it does not say so."""

    uid: str
    number: int
    total: int | None


def frames_in(path: Path) -> tuple[list[Frame], Part | None]:
    """The frames of a file in their order, without pixels, and what it is a part of. It is for use within `quiet`."""
    identity = identify(path)
    if is_too_large(path):
        raise DicomFault("too-large", f"that holds more than {MOST_WHOLE:,} bytes when it is inflated")
    try:
        if identity is not None and identity.is_multiframe:
            return _enhanced(path)
        return [_classic(path)], None
    except UNREADABLE:
        raise DicomFault("file-damaged", "that cannot be read, it is damaged") from None


def digest_of_pixels(path: Path) -> bytes:
    """A digest of all pixels of a file, as they are stored."""
    import pydicom

    names = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
    with quiet():
        header = pydicom.dcmread(path, specific_tags=list(names))
        return hashlib.sha256(b"".join(header[name].value for name in names if name in header)).digest()


def _classic(path: Path) -> Frame:
    import pydicom

    content = path.read_bytes()
    slice_ = read_slice(content)
    header = pydicom.dcmread(BytesIO(content), stop_before_pixels=True, specific_tags=[*CLASSIC, *MARKS])
    values = _values(header, None, header.get("RealWorldValueMappingSequence", []))
    return Frame(
        file=path,
        number=0,
        rows=slice_.rows,
        columns=slice_.columns,
        position=slice_.position,
        orientation=slice_.orientation,
        spacing=slice_.spacing,
        marks=dict(_marks_in(header, levels=0)),
        values=values,
        syntax=str(syntax_of(header).name),
        instance=slice_.instance,
        content=slice_.content,
        is_classic=True,
        reference=_reference(header),
    )


def _enhanced(path: Path) -> tuple[list[Frame], Part | None]:
    import pydicom

    header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=[*CLASSIC, *ENHANCED, *MARKS])
    count, groups = int(header.NumberOfFrames), header.PerFrameFunctionalGroupsSequence
    shared = header.get("SharedFunctionalGroupsSequence") or [pydicom.Dataset()]
    if len(groups) != count:
        raise DicomFault("frame-count", f"that has {count} frame(s) and says of {len(groups)} where they are")
    common = {**dict(_marks_in(header, levels=0)), **dict(_marks_in(shared[0]))}
    frames = []
    for number, group in enumerate(groups):

        def item(name: str, group: Any = group) -> Any:
            items = (group if name in group else shared[0]).get(name)
            return items[0] if items else None

        places = (item("PlanePositionSequence"), item("PlaneOrientationSequence"), item("PixelMeasuresSequence"))
        if None in places:
            raise DicomFault("place-missing", f"whose frame {number + 1} does not say where it is")
        world = (group if "RealWorldValueMappingSequence" in group else shared[0]).get("RealWorldValueMappingSequence")
        frames.append(
            Frame(
                file=path,
                number=number,
                rows=int(header.Rows),
                columns=int(header.Columns),
                position=_numbers(places[0].ImagePositionPatient, 3, number),
                orientation=_numbers(places[1].ImageOrientationPatient, 6, number),
                spacing=_spacing(places[2].PixelSpacing, number),
                marks={**common, **dict(_marks_in(group))},
                values=_values(header, item("PixelValueTransformationSequence"), world or []),
                syntax=str(syntax_of(header).name),
                instance=f"{header.SOPInstanceUID} {number}".encode(),
                content=b"",
                is_classic=False,
                reference=_reference(header),
            )
        )
    return frames, _part(header)


def _reference(header: Any) -> str:
    return str(header.get("FrameOfReferenceUID") or "")


def _values(header: Any, transform: Any | None, world: Sequence[Any]) -> Values:
    try:
        return values_of(header, transform, world)
    except DicomFault as fault:
        raise DicomFault(fault.code, f"that {fault}") from None


def _part(header: Any) -> Part | None:
    if not header.get("ConcatenationUID"):
        return None
    total, number = header.get("InConcatenationTotalNumber"), int(header.get("InConcatenationNumber", 1))
    return Part(str(header.ConcatenationUID), number, None if total is None else int(total))


def _numbers(value: Any, count: int, frame: int) -> np.ndarray:
    numbers = np.array([float(number) for number in value])
    if len(numbers) != count or not (np.abs(numbers) <= FARTHEST).all():
        raise DicomFault("place-missing", f"whose frame {frame + 1} does not say where it is")
    return numbers


def _spacing(value: Any, frame: int) -> np.ndarray:
    spacing = _numbers(value, 2, frame)
    if not ((spacing >= SMALLEST) & (spacing <= LARGEST)).all():
        raise DicomFault("voxel-size", f"whose pixel spacing is not between {SMALLEST:g} and {LARGEST:g} mm")
    return spacing


def _marks_in(group: Any, levels: int = DEEPEST) -> Iterator[tuple[str, Mark]]:
    for tag in group.keys():  # noqa: SIM118 - iterating a dataset converts each value, which may be anything
        keyword = keyword_for_tag(tag)
        if keyword in MARKS:
            with suppress(*UNREADABLE):  # what cannot be read tells nothing apart
                if (mark := _mark(group[tag].value)) != NO_MARK:
                    yield keyword, mark
        elif levels and group[tag].VR == "SQ":
            for item in group[tag].value:
                yield from _marks_in(item, levels - 1)


def _mark(value: Any) -> Mark:
    parts = [] if value is None else [value] if isinstance(value, str | bytes | float | int) else list(value)
    try:
        return tuple(float(part) for part in parts), ""
    except ValueError:
        return (), "\\".join(str(part) for part in parts)
