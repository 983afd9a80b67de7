"""The same frames as classic slices and as one enhanced image, with whatever the standard lets them say (pydicom)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

STORAGE = "1.2.840.10008.5.1.4.1.1."
CLASSES = {"MR": ("4", "4.1"), "CT": ("2", "2.1"), "PT": ("128", "130")}
"""Of a modality: the classic class, and the enhanced one."""
SHAPE = (6, 8, 10)
"""Slices, rows, columns."""
DISTANCE = 3.0
SPACING = (1.25, 1.0)
"""Millimetres between slices; between rows, between columns."""
GROUPS = {
    "TemporalPositionIdentifier": ("FrameContentSequence", "TemporalPositionIndex"),
    "EchoTime": ("MREchoSequence", "EffectiveEchoTime"),
    "DiffusionBValue": ("MRDiffusionSequence", "DiffusionBValue"),
    "DiffusionGradientOrientation": ("MRDiffusionSequence", "DiffusionGradientOrientation"),
    "NominalPercentageOfCardiacPhase": ("CardiacSynchronizationSequence", "NominalPercentageOfCardiacPhase"),
    "TriggerTime": ("CardiacSynchronizationSequence", "NominalCardiacTriggerDelayTime"),
    "ComplexImageComponent": ("MRImageFrameTypeSequence", "ComplexImageComponent"),
    "ImageType": ("MRImageFrameTypeSequence", "FrameType"),
    "AcquisitionNumber": ("FrameContentSequence", "FrameAcquisitionNumber"),
}
"""Of a classic attribute: the functional group and the attribute in which an enhanced image has it."""
NOTHING: Mapping[str, Any] = {}


def item(**attributes: Any) -> Dataset:
    """A dataset of attributes."""
    dataset = Dataset()
    for name, value in attributes.items():
        setattr(dataset, name, value)
    return dataset


def places(count: int = SHAPE[0]) -> list[tuple[float, float, float]]:
    """Even places along z."""
    return [(-8.0, -6.0, DISTANCE * k) for k in range(count)]


def _base(sop_class: str, modality: str, seed: str) -> Dataset:
    made = item(
        SOPClassUID=f"{STORAGE}{sop_class}",
        SOPInstanceUID=generate_uid(),
        Modality=modality,
        PatientName="A^B",
        PatientID="1",
        PatientBirthDate="",
        PatientSex="O",
        StudyDate="20260101",
        StudyTime="120000",
        ContentDate="20260101",
        ContentTime="120000",
        StudyID="1",
        AccessionNumber="",
        ReferringPhysicianName="",
        StudyInstanceUID=generate_uid(entropy_srcs=["study", seed]),
        SeriesInstanceUID=generate_uid(entropy_srcs=["series", seed]),
        FrameOfReferenceUID=generate_uid(entropy_srcs=["frame", seed]),
        SeriesNumber=1,
        InstanceNumber=1,
        Manufacturer="M",
        PositionReferenceIndicator="",
        SamplesPerPixel=1,
        PhotometricInterpretation="MONOCHROME2",
        BitsAllocated=16,
        BitsStored=16,
        HighBit=15,
        PixelRepresentation=0,
    )
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return made


def _bytes(frame: np.ndarray) -> bytes:
    raw = np.ascontiguousarray(frame).astype(frame.dtype.newbyteorder("<")).tobytes()
    return raw + b"\0" * (len(raw) % 2)


def write_classic(
    folder: Path,
    frames: np.ndarray,
    *,
    at: Sequence[Sequence[float]] | None = None,
    orientation: Sequence[float] = (1, 0, 0, 0, 1, 0),
    modality: str = "MR",
    header: Mapping[str, Any] = NOTHING,
    rescale: Sequence[Mapping[str, Any]] | None = None,
    marks: Sequence[Mapping[str, Any]] | None = None,
    change: Callable[[Dataset, int], None] = lambda made, k: None,
    seed: str = "1",
    first: int = 0,
) -> Path:
    """Slices [k, rows, columns] as one file each; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for k, frame in enumerate(frames):
        made = _base(CLASSES[modality][0], modality, seed)
        made.ImageType = ["ORIGINAL", "PRIMARY", "M"]
        made.InstanceNumber = first + k + 1
        made.Rows, made.Columns = frame.shape
        made.PixelSpacing, made.SliceThickness = list(SPACING), DISTANCE
        made.ImageOrientationPatient = list(map(float, orientation))
        made.ImagePositionPatient = list((at or places(len(frames)))[k])
        made.PixelData = _bytes(frame)
        every = [header, (rescale or [NOTHING] * len(frames))[k], (marks or [NOTHING] * len(frames))[k]]
        for name, value in (pair for some in every for pair in some.items()):
            setattr(made, name, value)
        change(made, k)
        made.save_as(folder / f"IM{first + k:04d}.dcm", enforce_file_format=True)
    return folder


def write_enhanced(
    path: Path,
    frames: np.ndarray,
    *,
    at: Sequence[Sequence[float]] | None = None,
    orientation: Sequence[float] = (1, 0, 0, 0, 1, 0),
    modality: str = "MR",
    header: Mapping[str, Any] = NOTHING,
    rescale: Sequence[Mapping[str, Any]] | None = None,
    marks: Sequence[Mapping[str, Any]] | None = None,
    groups: Sequence[Mapping[str, Any]] | None = None,
    change: Callable[[Dataset], None] = lambda made: None,
    seed: str = "1",
) -> Path:
    """Frames [k, rows, columns] as one file, which it returns. ``groups``: further functional groups of each frame."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = _base(CLASSES[modality][1], modality, seed)
    made.ImageType = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
    made.Rows, made.Columns = frames[0].shape
    made.NumberOfFrames = len(frames)
    made.PresentationLUTShape = "IDENTITY"
    made.SharedFunctionalGroupsSequence = [
        item(
            PlaneOrientationSequence=[item(ImageOrientationPatient=list(map(float, orientation)))],
            PixelMeasuresSequence=[item(PixelSpacing=list(SPACING), SliceThickness=DISTANCE)],
        )
    ]
    dimension = generate_uid()
    made.DimensionOrganizationSequence = [item(DimensionOrganizationUID=dimension)]
    made.DimensionIndexSequence = [
        item(DimensionOrganizationUID=dimension, DimensionIndexPointer=0x00209057, FunctionalGroupPointer=0x00209111)
    ]
    per_frame = []
    for k, place in enumerate(at or places(len(frames))):
        group = item(
            PlanePositionSequence=[item(ImagePositionPatient=list(place))],
            FrameContentSequence=[item(StackID="1", InStackPositionNumber=k + 1, DimensionIndexValues=[k + 1])],
        )
        if rescale:
            group.PixelValueTransformationSequence = [item(**rescale[k])]
        for name, value in (marks[k] if marks else NOTHING).items():
            sequence, inside = GROUPS[name]
            if sequence not in group:
                setattr(group, sequence, [item()])
            setattr(group[sequence].value[0], inside, value)
        for name, value in (groups[k] if groups else NOTHING).items():
            setattr(group, name, value)
        per_frame.append(group)
    made.PerFrameFunctionalGroupsSequence = per_frame
    made.PixelData = _bytes(frames)
    for name, value in header.items():
        setattr(made, name, value)
    change(made)
    made.save_as(path, enforce_file_format=True)
    return path


def write_forms(folder: Path, frames: np.ndarray, **said: Any) -> dict[str, Path]:
    """The same frames in both forms, by the form's name; what is said as of `write_classic`."""
    return {
        "classic": write_classic(folder / "classic", frames, **said),
        "enhanced": write_enhanced(folder / "enhanced.dcm", frames, **said),
    }


def compress(path: Path, syntax: str, encode: Callable[[np.ndarray], bytes]) -> None:
    """Encode the pixels of a file, frame by frame."""
    dataset = pydicom.dcmread(path)
    pixels = dataset.pixel_array
    parts = [encode(frame) for frame in (pixels if pixels.ndim == 3 else pixels[None])]
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.UID(syntax)
    dataset.PixelData = encapsulate([part + b"\0" * (len(part) % 2) for part in parts])
    dataset["PixelData"].VR = "OB"
    dataset["PixelData"].is_undefined_length = True
    dataset.save_as(path, enforce_file_format=True)


def in_file(voxels: np.ndarray) -> np.ndarray:
    """Voxels of a scan, which are RAS, as the slices of these files, which are LPS."""
    return voxels[:, ::-1, ::-1]
