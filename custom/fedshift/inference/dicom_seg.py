"""Write a mask as DICOM SEG that refers to its source images, and verify it by reading it back."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.data.scans import Scan
from fedshift.inference.dicom_source import Origin, Source, check_written, digest_of, making, object_fields, uids_of
from fedshift.inference.geometry import stored_grid
from fedshift.runtime.regions import voxels_of
from fedshift.schema.codes import ClassCodes, Code


def write_segmentation(
    mask: np.ndarray,
    scan: Scan,
    path: Path,
    *,
    source: Source,
    origin: Origin,
    classes: Sequence[str],
    regions: bool = False,
) -> Any:
    """Write the classes of a mask as the segments of a DICOM SEG; of ``regions``, segments may overlap.

    A segment has the number of its class; slices without it have no frame.

    Args:
        mask: classes or sets of regions, uint8 ``[z, y, x]`` in RAS, as ``scan.voxels``, not empty.
        scan: its geometry.
        path: the file.
        source: the scan's DICOM objects.
        origin: what is said of the model.
        classes: names, without the background.
        regions: whether these are regions.

    Returns:
        The object as it was written.

    Raises:
        DataError: the source lacks what a SEG needs, or reading it back gives another mask; there is no file then.
    """
    import highdicom as hd
    from pydicom.sr.codedict import codes

    _, grid = stored_grid(mask, scan)
    acquired = next(axis for axis, ends in enumerate(("RL", "AP", "SI")) if scan.stored[2] in ends)
    between_slices = float(scan.spacing[acquired])  # whichever axis they lie along in RAS
    uid = uids_of(source, origin, "seg", digest_of(mask), *classes, regions)
    with making(path, "DICOM SEG"):
        algorithm = hd.AlgorithmIdentificationSequence(
            name=origin.algorithm,
            family=codes.DCM.ArtificialIntelligence,
            version=origin.full_version,
            source="fedshift",
        )
        segments = [
            _segment(number, name, origin.codes[name], algorithm, uid(f"segment {number}"))
            for number, name in enumerate(classes, start=1)
        ]
        measured = source.group("PixelMeasuresSequence")
        measures = hd.PixelMeasuresSequence(
            pixel_spacing=[float(value) for value in measured.PixelSpacing],
            slice_thickness=float(measured.get("SliceThickness") or between_slices),
            spacing_between_slices=between_slices,
        )
        segmentation = hd.seg.Segmentation(
            source_images=list(source.objects),
            pixel_array=_segment_masks(grid, len(classes)) if regions else grid,
            segmentation_type=hd.seg.SegmentationTypeValues.BINARY,
            segment_descriptions=segments,
            pixel_measures=measures,
            omit_empty_frames=True,
            content_label="SEGMENTATION",
            content_description=origin.description,
            **object_fields(source, origin, uid),
        )
        for item in (*segmentation.DimensionOrganizationSequence, *segmentation.DimensionIndexSequence):
            item.DimensionOrganizationUID = uid("dimensions")
        if source.is_enhanced:
            _refer_to_files(segmentation, source)
        segmentation.save_as(path)
    check_written(path, mask, scan, regions=regions)
    return segmentation


def _segment_masks(grid: np.ndarray, count: int) -> np.ndarray:
    """Each segment's own voxels, (z, y, x, segments) uint8, as highdicom takes those that overlap."""
    masks = [voxels_of(grid, number, regions=True) for number in range(1, count + 1)]
    return np.stack(masks, axis=-1).astype(np.uint8)


def _refer_to_files(segmentation: Any, source: Source) -> None:
    """Refer to the files and frames that the slices are in, in place of the one object that highdicom was given."""
    for series in segmentation.ReferencedSeriesSequence:
        first = series.ReferencedInstanceSequence[0]
        series.ReferencedInstanceSequence = [copy.deepcopy(first) for _ in source.files]
        for item, uid in zip(series.ReferencedInstanceSequence, source.files, strict=True):
            item.ReferencedSOPInstanceUID = uid
    derivations = [group.get("DerivationImageSequence", []) for group in segmentation.PerFrameFunctionalGroupsSequence]
    images = [image for items in derivations for item in items for image in item.SourceImageSequence]
    for image in {id(image): image for image in images}.values():  # frames of several segments share them
        uid, frame = source.references[int(image.ReferencedFrameNumber) - 1]
        image.ReferencedSOPInstanceUID, image.ReferencedFrameNumber = uid, frame


def _segment(number: int, name: str, codes: ClassCodes, algorithm: Any, uid: str) -> Any:
    import highdicom as hd

    segment = hd.seg.SegmentDescription(
        segment_number=number,
        segment_label=name,
        segmented_property_category=concept(codes.category),
        segmented_property_type=concept(codes.type),
        algorithm_type=hd.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
        algorithm_identification=algorithm,
        tracking_uid=hd.UID(uid),
        tracking_id=name,
    )
    if codes.modifier is not None:
        kind = segment.SegmentedPropertyTypeCodeSequence[0]
        kind.SegmentedPropertyTypeModifierCodeSequence = [concept(codes.modifier)]
    return segment


def concept(code: Code) -> Any:
    """A code as highdicom has it."""
    import highdicom as hd

    return hd.sr.CodedConcept(value=code.value, scheme_designator=code.scheme, meaning=code.meaning)
