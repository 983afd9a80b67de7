"""DICOM as scanners and archives write it, made with pydicom: series, enhanced images, and masks drawn elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import highdicom as hd
import numpy as np
import pydicom
import SimpleITK as sitk
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sr.coding import Code
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

PROSTATE = Code("41216001", "SCT", "Prostate")
ANATOMY = Code("91723000", "SCT", "Anatomical Structure")
STRUCTURE_SET = "1.2.840.10008.5.1.4.1.1.481.3"
MR, ENHANCED_MR = "1.2.840.10008.5.1.4.1.1.4", "1.2.840.10008.5.1.4.1.1.4.1"


def _common(sop_class: str, *, seed: str, patient: str = "Doe^Jane") -> Dataset:
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SpecificCharacterSet = "ISO_IR 192"
    dataset.SOPClassUID = sop_class
    dataset.PatientName, dataset.PatientID = patient, f"PID-{seed}"
    dataset.PatientBirthDate, dataset.PatientSex = "19500101", "M"
    dataset.StudyInstanceUID = generate_uid(entropy_srcs=["study", seed])
    dataset.SeriesInstanceUID = generate_uid(entropy_srcs=["series", seed])
    dataset.FrameOfReferenceUID = generate_uid(entropy_srcs=["frame", seed])
    dataset.StudyID, dataset.AccessionNumber, dataset.ReferringPhysicianName = "1", "A1", ""
    dataset.StudyDate = dataset.SeriesDate = dataset.ContentDate = dataset.AcquisitionDate = "20260102"
    dataset.StudyTime = dataset.SeriesTime = dataset.ContentTime = dataset.AcquisitionTime = "101112"
    dataset.Modality, dataset.SeriesNumber, dataset.SeriesDescription = "MR", 4, "t2_tse_tra"
    dataset.Manufacturer, dataset.PositionReferenceIndicator = "Maker", ""
    dataset.BodyPartExamined = "PROSTATE"
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 16, 15, 0
    return dataset


def _numbers(values: Sequence[float]) -> list[str]:
    return [f"{float(value):.10g}"[:16] for value in values]


def _geometry(image: sitk.Image) -> tuple[list[str], list[str], list[list[str]]]:
    d, spacing = image.GetDirection(), image.GetSpacing()
    positions = [_numbers(image.TransformIndexToPhysicalPoint((0, 0, k))) for k in range(image.GetDepth())]
    return _numbers((d[0], d[3], d[6], d[1], d[4], d[7])), _numbers((spacing[1], spacing[0])), positions


def write_slices(
    folder: Path,
    image: sitk.Image,
    *,
    seed: str = "1",
    reverse: bool = False,
    thickness: float | None = None,
    skip: Sequence[int] = (),
    change: Callable[[Dataset, int], None] = lambda made, number: None,
) -> Path:
    """A series of single slices; ``reverse``: instance numbers run against the positions. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    voxels = sitk.GetArrayFromImage(image).astype(np.uint16)
    orientation, spacing, positions = _geometry(image)
    for k, position in enumerate(positions):
        if k in skip:
            continue
        made = _common(MR, seed=seed)
        made.ImageType = ["ORIGINAL", "PRIMARY", "M", "SE"]
        made.SOPInstanceUID = generate_uid(entropy_srcs=["slice", seed, str(k)])
        made.InstanceNumber = len(positions) - k if reverse else k + 1
        made.ImagePositionPatient, made.ImageOrientationPatient, made.PixelSpacing = position, orientation, spacing
        made.SliceThickness = f"{thickness or image.GetSpacing()[2]:.6g}"
        made.ScanningSequence, made.SequenceVariant, made.ScanOptions, made.MRAcquisitionType = "SE", "NONE", "", "2D"
        made.EchoTime, made.RepetitionTime, made.EchoTrainLength = "100", "4000", "1"
        made.Rows, made.Columns = voxels.shape[1:]
        made.PixelData = voxels[k].tobytes()
        change(made, k)
        made.save_as(folder / f"IM{made.InstanceNumber:04d}.dcm", enforce_file_format=True)
    return folder


def write_enhanced(path: Path, image: sitk.Image, *, seed: str = "1", order: Sequence[int] | None = None) -> Path:
    """An enhanced MR image whose frames are the slices in ``order``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    voxels = sitk.GetArrayFromImage(image).astype(np.uint16)
    orientation, spacing, positions = _geometry(image)
    order = list(range(len(positions))) if order is None else list(order)
    made = _common(ENHANCED_MR, seed=seed)
    made.ImageType = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
    made.SOPInstanceUID, made.InstanceNumber = generate_uid(entropy_srcs=["enhanced", seed]), 1
    made.Rows, made.Columns = voxels.shape[1:]
    made.NumberOfFrames = len(order)
    shared, plane, measures, scale = Dataset(), Dataset(), Dataset(), Dataset()
    plane.ImageOrientationPatient = orientation
    measures.PixelSpacing, measures.SliceThickness = spacing, f"{image.GetSpacing()[2]:.6g}"
    measures.SpacingBetweenSlices = measures.SliceThickness
    scale.RescaleSlope, scale.RescaleIntercept, scale.RescaleType = "1", "0", "US"
    shared.PlaneOrientationSequence, shared.PixelMeasuresSequence = [plane], [measures]
    shared.PixelValueTransformationSequence = [scale]
    made.SharedFunctionalGroupsSequence = [shared]
    index = Dataset()
    index.DimensionIndexPointer, index.FunctionalGroupPointer = 0x00200032, 0x00209113
    index.DimensionOrganizationUID = generate_uid(entropy_srcs=["dimension", seed])
    organisation = Dataset()
    organisation.DimensionOrganizationUID = index.DimensionOrganizationUID
    made.DimensionOrganizationSequence, made.DimensionIndexSequence = [organisation], [index]
    groups = []
    for k in order:
        group, place, content = Dataset(), Dataset(), Dataset()
        place.ImagePositionPatient = positions[k]
        content.DimensionIndexValues, content.StackID, content.InStackPositionNumber = [k + 1], "1", k + 1
        group.PlanePositionSequence, group.FrameContentSequence = [place], [content]
        groups.append(group)
    made.PerFrameFunctionalGroupsSequence = groups
    made.PixelData = voxels[order].tobytes()
    made.save_as(path, enforce_file_format=True)
    return path


def draw_segmentation(
    path: Path,
    series: Path,
    masks: dict[str, np.ndarray],
    *,
    codes: dict[str, Code] | None = None,
    kind: str = "BINARY",
) -> Path:
    """A DICOM SEG as a reader's program writes it: a segment for each name, in files' order of instance numbers.

    ``masks`` are bool [slice, row, column] in the order of the slices' positions.
    """
    sources = sorted((pydicom.dcmread(file) for file in series.glob("*.dcm")), key=lambda one: int(one.InstanceNumber))
    forward = sorted(sources, key=lambda one: _along(one))
    places = [next(k for k, other in enumerate(forward) if other is one) for one in sources]
    pixels = np.stack([mask[places] for mask in masks.values()], -1).astype(np.uint8)
    segments = [
        hd.seg.SegmentDescription(number, name, ANATOMY, (codes or {}).get(name, PROSTATE), "MANUAL")
        for number, name in enumerate(masks, start=1)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    segmentation = hd.seg.Segmentation(
        sources,
        pixels,
        kind,
        segments,
        series_instance_uid=generate_uid(),
        series_number=300,
        sop_instance_uid=generate_uid(),
        instance_number=1,
        manufacturer="Reader",
        manufacturer_model_name="Drawing",
        software_versions="1",
        device_serial_number="1",
    )
    segmentation.save_as(path)
    return path


def draw_structures(
    path: Path, series: Path, rois: Sequence[tuple[int, str, Sequence[tuple[int, np.ndarray, str]]]]
) -> Path:
    """An RT Structure Set as a planning system writes it.

    ``rois``: number, name and contours of each; a contour's slice (in the order of positions), points (column, row)
    and type.
    """
    sources = sorted((pydicom.dcmread(file) for file in series.glob("*.dcm")), key=_along)
    first = sources[0]
    made = _common(STRUCTURE_SET, seed="structures")
    made.SOPInstanceUID, made.Modality = generate_uid(), "RTSTRUCT"
    made.StudyInstanceUID, made.FrameOfReferenceUID = first.StudyInstanceUID, first.FrameOfReferenceUID
    of_series, of_study, of_frame = Dataset(), Dataset(), Dataset()
    of_series.SeriesInstanceUID = first.SeriesInstanceUID
    of_study.RTReferencedSeriesSequence, of_study.ReferencedSOPInstanceUID = [of_series], first.StudyInstanceUID
    of_frame.RTReferencedStudySequence, of_frame.FrameOfReferenceUID = [of_study], first.FrameOfReferenceUID
    made.ReferencedFrameOfReferenceSequence = [of_frame]
    named, drawn = [], []
    for number, name, outlines in rois:
        roi, contours = Dataset(), Dataset()
        roi.ROINumber, roi.ROIName, roi.ReferencedFrameOfReferenceUID = number, name, first.FrameOfReferenceUID
        contours.ReferencedROINumber, contours.ContourSequence = number, []
        for k, points, kind in outlines:
            cosines = np.reshape(np.array(sources[k].ImageOrientationPatient, float), (2, 3))
            between_rows, between_columns = map(float, sources[k].PixelSpacing)
            place = np.array(sources[k].ImagePositionPatient, float)
            in_mm = place + points * [between_columns, between_rows] @ cosines
            contour = Dataset()
            contour.ContourGeometricType, contour.NumberOfContourPoints = kind, len(points)
            contour.ContourData = [f"{value:.3f}" for value in in_mm.ravel()]
            contours.ContourSequence.append(contour)
        named.append(roi)
        drawn.append(contours)
    made.StructureSetROISequence, made.ROIContourSequence = named, drawn
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save_as(path, enforce_file_format=True)
    return path


def _along(one: Dataset) -> float:
    cosines = np.array(one.ImageOrientationPatient, float)
    return float(np.cross(cosines[:3], cosines[3:]) @ np.array(one.ImagePositionPatient, float))


def write_frames(
    path: Path,
    series: Path,
    frames: Sequence[tuple[int, Sequence[float], np.ndarray]],
    *,
    spacing: tuple[float, float],
    thickness: float | None = None,
    between: float | None = None,
    orientation: Sequence[float] | None = None,
    kind: str = "BINARY",
    names: Sequence[str] = ("prostate",),
    change: Callable[[Dataset], None] = lambda made: None,
    syntax: str = ExplicitVRLittleEndian,
) -> Path:
    """A DICOM SEG, frame by frame, with whatever its pixel measures say or leave out.

    ``frames``: segment (not looked at in a label map), position of the first pixel in mm, and pixels; ``spacing``
    between rows and columns. Fractions are of 255.
    """
    first = pydicom.dcmread(sorted(series.glob("*.dcm"))[0])
    made = _common(f"1.2.840.10008.5.1.4.1.1.66.{7 if kind == 'LABELMAP' else 4}", seed="frames")
    made.SOPInstanceUID, made.Modality = generate_uid(), "SEG"
    made.StudyInstanceUID, made.FrameOfReferenceUID = first.StudyInstanceUID, first.FrameOfReferenceUID
    made.SegmentationType = kind
    if kind == "FRACTIONAL":
        made.SegmentationFractionalType, made.MaximumFractionalValue = "PROBABILITY", 255
    made.BitsAllocated = made.BitsStored = 1 if kind == "BINARY" else 8
    made.HighBit = made.BitsStored - 1
    pixels = np.stack([pixels for _, _, pixels in frames]).astype(np.uint8)
    made.NumberOfFrames, made.Rows, made.Columns = pixels.shape
    measures, plane, shared, of_series = Dataset(), Dataset(), Dataset(), Dataset()
    measures.PixelSpacing = list(spacing)
    if thickness is not None:
        measures.SliceThickness = thickness
    if between is not None:
        measures.SpacingBetweenSlices = between
    plane.ImageOrientationPatient = list(orientation or first.ImageOrientationPatient)
    shared.PixelMeasuresSequence, shared.PlaneOrientationSequence = [measures], [plane]
    made.SharedFunctionalGroupsSequence = [shared]
    groups = []
    for number, position, _ in frames:
        group, place, segment = Dataset(), Dataset(), Dataset()
        place.ImagePositionPatient, segment.ReferencedSegmentNumber = _numbers(position), number
        group.PlanePositionSequence, group.SegmentIdentificationSequence = [place], [segment]
        groups.append(group)
    made.PerFrameFunctionalGroupsSequence = groups
    of_series.SeriesInstanceUID = first.SeriesInstanceUID
    made.ReferencedSeriesSequence = [of_series]
    segments = []
    for number, name in enumerate(names, start=1):
        segment = Dataset()
        segment.SegmentNumber, segment.SegmentLabel, segment.SegmentAlgorithmType = number, name, "MANUAL"
        segments.append(segment)
    made.SegmentSequence = segments
    bits = np.packbits(pixels.ravel(), bitorder="little") if kind == "BINARY" else pixels
    made.PixelData = bits.tobytes() + b"\0" * (len(bits.tobytes()) % 2)
    change(made)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.file_meta.TransferSyntaxUID = syntax
    made.save_as(path, enforce_file_format=True)
    return path
