"""Masks whose structures have names: DICOM segmentations (SEG), RT Structure Sets, 3D Slicer's, and of pictures.

A DICOM mask also says which image it is of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedshift.data import segmentations, slicer_masks, structure_sets
from fedshift.data.dicom import MOST_WHOLE, identify, is_dicom_mask, is_too_large
from fedshift.data.dicom_objects import MASKS, STRUCTURE_SET, UNREADABLE, need_highdicom, quiet
from fedshift.data.labels import Labels
from fedshift.data.picture_structures import (
    names_picture_structures,
    read_picture_structures,
    structures_in_picture,
)
from fedshift.data.scan_file import ScanError
from fedshift.data.scans import Scan
from fedshift.data.segmentations import AGAIN
from fedshift.data.series import first_file, is_series, list_series
from fedshift.data.slicer_masks import is_slicer_mask
from fedshift.data.structures import Remark, paint
from fedshift.schema.names import one_line

GROUPS = ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence", "DerivationImageSequence")
"""What in a SEG holds references to source images, each within the one before it or at the top."""


def names_structures(path: Path) -> bool:
    """Whether a mask names its structures; of another one the values have to be known.

    Raises:
        ScanError: it may not be read.
    """
    return names_picture_structures(path) or is_slicer_mask(path) or is_dicom_mask(path)


def structures_in(path: Path) -> tuple[str, ...]:
    if names_picture_structures(path):
        return structures_in_picture(path)
    if is_slicer_mask(path):
        return slicer_masks.segment_names(path)
    with quiet():
        try:
            content = _open(path, pixels=False)
            segments, rois = content.get("SegmentSequence", []), content.get("StructureSetROISequence", [])
            shown = [segment for segment in segments if not segmentations.is_background(segment, content)]
            labels = [segment.get("SegmentLabel", "") for segment in shown]
            return tuple(one_line(name) for name in (*labels, *(roi.get("ROIName", "") for roi in rois)))
        except UNREADABLE:
            raise ScanError("mask-unreadable", path, "cannot be read as a DICOM mask", AGAIN) from None


def read_mask(
    path: Path,
    image: Scan,
    labels: Labels | None,
    *,
    interpolate: bool = False,
    direction: tuple[float, ...] | None = None,
    sets: bool = False,
    frame: str = "",
) -> tuple[Scan, list[Remark]]:
    """Read a mask that names its structures on the grid of its image.

    ``labels``: what is wanted, see `fedshift.data.structures.paint`; so for ``sets``, of DICOM only. ``interpolate``:
    fill slices between two contours of a structure set, see `fedshift.data.contours`. ``direction``: of 3D Slicer's
    segmentations, see `fedshift.data.slicer_masks.read_slicer_mask`. ``frame``: the image's frame of reference, where
    that is known (`frame_of`).

    Returns:
        The mask, with the first of each class's values in ``labels``; and remarks.

    Raises:
        ScanError: it cannot be read, does not lie on the image, or its structures are not the classes.
        ConfigError: it is DICOM, and highdicom is not installed.
    """
    if names_picture_structures(path):
        return read_picture_structures(path, image, labels)
    if is_slicer_mask(path):
        return slicer_masks.read_slicer_mask(path, image, labels, direction=direction)
    with quiet():
        try:
            content = _open(path)
            if content.SOPClassUID == STRUCTURE_SET:
                structures = structure_sets.regions(content, image, path, interpolate=interpolate, frame=frame)
                record = structure_sets.reading_of(content)
            else:
                structures = segmentations.segments(content, image, path)
                record = segmentations.reading_of(content)
            mask, remarks = paint(structures, image, labels, path, record, sets=sets)
            segments = content.get("SegmentSequence", [])
            if any(segment.get("SegmentAlgorithmType") == "AUTOMATIC" for segment in segments):
                remarks.append(Remark("says that a program drew it, and nobody by hand"))
        except UNREADABLE:
            raise ScanError("mask-unreadable", path, "cannot be read as a DICOM mask", AGAIN) from None
    return mask, remarks


# --- which image a DICOM mask is of -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class References:
    """What a mask says of its image: UIDs of the series, of single images, and of frames of reference.

    Images are looked up only where it names no series.
    """

    series: tuple[str, ...]
    images: tuple[str, ...]
    frames: tuple[str, ...]


class OtherImage(NamedTuple):
    """Why a mask is not of an image; ``elsewhere``: places in both are not the same, as of another patient or day."""

    what: str
    elsewhere: bool


def references(path: Path) -> References:
    with quiet():
        try:
            content = _open(path, pixels=False)
            series = (str(uid) for item in _series_items(content) if (uid := item.get("SeriesInstanceUID")))
            others = content.get("ReferencedFrameOfReferenceSequence", [])
            frames = (str(item.get("FrameOfReferenceUID") or "") for item in [content, *others])
            images = tuple(dict.fromkeys(_images(content)))
            return References(tuple(dict.fromkeys(series)), images, tuple(dict.fromkeys(filter(None, frames))))
        except UNREADABLE:
            raise ScanError("mask-unreadable", path, "does not say of which image it is", AGAIN) from None


def wrong_image(path: Path, image: Path) -> OtherImage | None:
    """Why a DICOM mask is not of a DICOM image, by what both say; None if nothing speaks against it."""
    refers = references(path)
    file = first_file(image)
    first, frame = identify(file), frame_of(file)
    elsewhere = bool(refers.frames and frame and frame not in refers.frames)
    if refers.series and first is not None and first.series not in refers.series:
        return OtherImage("refers to another series than that of its image", elsewhere)
    if refers.images and not refers.series:
        files = list_series(image).files if is_series(image) else (image,)
        if not any(identity.instance in refers.images for identity in map(identify, files) if identity):
            return OtherImage("refers to other images than its image", elsewhere)
    return OtherImage("has another frame of reference than its image", elsewhere) if elsewhere else None


def frame_of(file: Path) -> str:
    """The frame of reference of a DICOM file, "" if it does not say it."""
    need_highdicom(f"{file} is DICOM, and reading its frame of reference")
    import pydicom

    with quiet():
        return str(pydicom.dcmread(file, specific_tags=["FrameOfReferenceUID"]).get("FrameOfReferenceUID", "") or "")


def _open(path: Path, *, pixels: bool = True) -> Any:
    need_highdicom(f"{path} is a DICOM mask, and reading it")
    import pydicom

    if is_too_large(path):
        what = f"has more than {MOST_WHOLE:,} bytes when it is inflated"
        raise ScanError("too-large", path, what, "export fewer segments")
    content = pydicom.dcmread(path, stop_before_pixels=not pixels)
    if content.SOPClassUID not in MASKS:
        raise ScanError("not-a-mask", path, "is no DICOM SEG or RT Structure Set", "name the mask")
    return content


def _series_items(content: Any) -> Iterator[Any]:
    yield from content.get("ReferencedSeriesSequence", [])
    for frame in content.get("ReferencedFrameOfReferenceSequence", []):
        for study in frame.get("RTReferencedStudySequence", []):
            yield from study.get("RTReferencedSeriesSequence", [])


def _images(content: Any) -> Iterator[str]:
    """The single images that a mask names: of a SEG its sources, of a structure set those that contours lie on."""
    for item in _series_items(content):
        yield from _instances(item, "ReferencedInstanceSequence", "ContourImageSequence")
    for holder in _within([content], GROUPS):
        yield from _instances(holder, "SourceImageSequence", "ReferencedInstanceSequence")
    for roi in content.get("ROIContourSequence", []):
        for contour in roi.get("ContourSequence", []):
            yield from _instances(contour, "ContourImageSequence")


def _within(holders: Iterable[Any], names: tuple[str, ...]) -> Iterator[Any]:
    """The holders themselves, and the items of the sequences of these names in them."""
    for holder in holders:
        yield holder
        for name in names:
            yield from _within(holder.get(name, []), names)


def _instances(holder: Any, *sequences: str) -> Iterator[str]:
    for sequence in sequences:
        for item in holder.get(sequence, []):
            if uid := item.get("ReferencedSOPInstanceUID"):
                yield str(uid)
