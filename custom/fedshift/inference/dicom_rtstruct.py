"""Write a mask as RT Structure Set, and verify it by filling its contours again.

Contours run half-way between the voxels inside and outside (`fedshift.data.contours`), so that filling them gives the
mask again. Written with pydicom alone (PS3.3, A.19).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.data.contours import outlines
from fedshift.data.dicom_objects import STRUCTURE_SET
from fedshift.data.scans import Scan
from fedshift.inference.dicom_source import EMPTY, Origin, Source, check_written, digest_of, making, uids_of
from fedshift.inference.geometry import stored_grid
from fedshift.runtime.regions import voxels_of
from fedshift.schema.codes import ClassCodes, Code

COLORS = ((255, 196, 0), (0, 160, 255), (230, 60, 120), (60, 190, 90), (170, 110, 255), (255, 130, 40))
DECIMALS = 4
"""Of millimetres."""


def write_structure_set(
    mask: np.ndarray,
    scan: Scan,
    path: Path,
    *,
    source: Source,
    origin: Origin,
    classes: Sequence[str],
    regions: bool = False,
) -> None:
    """Write the classes or regions of a mask as regions of interest; arguments as of `write_segmentation`.

    Raises:
        DataError: the source lacks what a structure set needs, or filling its contours gives another mask; there is no
            file then.
    """
    uid = uids_of(source, origin, "rtstruct", digest_of(mask), *classes, regions)
    with making(path, "RT Structure Set"):
        grid = stored_grid(mask, scan)[1]
        masks = {
            (number, name): inside
            for number, name in enumerate(classes, start=1)
            if (inside := voxels_of(grid, number, regions=regions)).any()
        }
        _structure_set(masks, source, origin, uid).save_as(path, enforce_file_format=True)
    check_written(path, mask, scan, regions=regions)


def _structure_set(
    classes: Mapping[tuple[int, str], np.ndarray], source: Source, origin: Origin, uid: Callable[[str], str]
) -> Any:
    import pydicom
    from pydicom.uid import ExplicitVRLittleEndian

    now, first = datetime.datetime.now(), source.first
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    for name in (*EMPTY, "SpecificCharacterSet", "StudyDescription", "PositionReferenceIndicator"):
        if name in first:
            dataset[name] = first[name]
    dataset.SOPClassUID, dataset.SOPInstanceUID = STRUCTURE_SET, uid("object")
    dataset.InstanceCreationDate, dataset.InstanceCreationTime = now.strftime("%Y%m%d"), now.strftime("%H%M%S")
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = first.StudyInstanceUID, uid("series")
    dataset.FrameOfReferenceUID = first.FrameOfReferenceUID
    if "PositionReferenceIndicator" not in dataset:
        dataset.PositionReferenceIndicator = ""
    dataset.Modality, dataset.SeriesNumber, dataset.InstanceNumber = "RTSTRUCT", source.series_number, 1
    dataset.SeriesDescription, dataset.OperatorsName = origin.description, ""
    dataset.Manufacturer, dataset.ManufacturerModelName = "fedshift", "fedshift"
    dataset.SoftwareVersions, dataset.DeviceSerialNumber = origin.version, origin.model
    dataset.StructureSetLabel, dataset.StructureSetDescription = "FEDSHIFT", f"{origin.description}; {origin.algorithm}"
    dataset.StructureSetDate, dataset.StructureSetTime = dataset.InstanceCreationDate, dataset.InstanceCreationTime
    dataset.ApprovalStatus = "UNAPPROVED"
    images = [_reference(first, uid) for uid in source.files]
    series = _dataset(SeriesInstanceUID=first.SeriesInstanceUID, ContourImageSequence=images)
    study = _dataset(
        ReferencedSOPClassUID="1.2.840.10008.3.1.2.3.1",  # Detached Study Management, which this is by convention
        ReferencedSOPInstanceUID=first.StudyInstanceUID,
        RTReferencedSeriesSequence=[series],
    )
    frame = _dataset(FrameOfReferenceUID=first.FrameOfReferenceUID, RTReferencedStudySequence=[study])
    dataset.ReferencedFrameOfReferenceSequence = [frame]
    dataset.StructureSetROISequence = [
        _dataset(
            ROINumber=number,
            ReferencedFrameOfReferenceUID=first.FrameOfReferenceUID,
            ROIName=name,
            ROIGenerationAlgorithm="AUTOMATIC",
            ROIGenerationDescription=origin.algorithm,
        )
        for number, name in classes
    ]
    dataset.ROIContourSequence = [
        _dataset(
            ROIDisplayColor=list(COLORS[(number - 1) % len(COLORS)]),
            ReferencedROINumber=number,
            ContourSequence=_contours(inside, source),
        )
        for (number, _), inside in classes.items()
    ]
    dataset.RTROIObservationsSequence = [
        _dataset(
            ObservationNumber=number,
            ReferencedROINumber=number,
            RTROIIdentificationCodeSequence=[_kind(origin.codes[name])],
            RTROIInterpretedType="",
            ROIInterpreter="",
        )
        for number, name in classes
    ]
    return dataset


def _dataset(**attributes: Any) -> Any:
    import pydicom

    dataset = pydicom.Dataset()
    for name, value in attributes.items():
        setattr(dataset, name, value)
    return dataset


def _kind(codes: ClassCodes) -> Any:
    kind = _code(codes.type)
    if codes.modifier is not None:
        kind.SegmentedPropertyTypeModifierCodeSequence = [_code(codes.modifier)]
    return kind


def _code(code: Code) -> Any:
    return _dataset(CodeValue=code.value, CodingSchemeDesignator=code.scheme, CodeMeaning=code.meaning)


def _reference(image: Any, uid: str, frame: int | None = None) -> Any:
    reference = _dataset(ReferencedSOPClassUID=image.SOPClassUID, ReferencedSOPInstanceUID=uid)
    if frame is not None:
        reference.ReferencedFrameNumber = frame
    return reference


def _contours(mask: np.ndarray, source: Source) -> list[Any]:
    """Closed contours, in patient coordinates, of each slice that has some."""
    contours = []
    for number in np.flatnonzero(mask.any((1, 2))).tolist():
        position, to_column, to_row = source.plane(number)
        image = _reference(source.first, *source.references[number])
        for polygon in outlines(mask[number]):
            points = position + polygon[:, :1] * to_column + polygon[:, 1:] * to_row
            contours.append(
                _dataset(
                    ContourImageSequence=[image],
                    ContourGeometricType="CLOSED_PLANAR",
                    NumberOfContourPoints=len(points),
                    ContourData=[f"{value:.{DECIMALS}f}" for value in points.ravel()],
                )
            )
    return contours
