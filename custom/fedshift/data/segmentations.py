"""Segments of a DICOM SEG on the grid of an image (PS3.3, A.51 and C.8.20).

Each frame says where it lies; how thick it is, the distance between frames and the pixel measures say together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.data.dicom_objects import UNREADABLE
from fedshift.data.labels import BACKGROUND
from fedshift.data.scan_file import ScanError
from fedshift.data.scans import Scan
from fedshift.data.slabs import Slab, beyond, draw, is_on_grid, matrix_of
from fedshift.data.structures import CodeKey, Drawing, Remark, Structure, modern
from fedshift.schema.codes import plain_name
from fedshift.schema.names import one_line
from fedshift.schema.reading import Reading

AGAIN = "export the mask on the slices of its image again"
MOST_PIXELS = 2**32  # of all frames; each takes a byte
SAME = 0.01  # millimetres up to which two frames lie in one plane, and a cosine's error
ALONE = 1.5  # times the usual distance: a frame further from the next one is not next to it
LABELMAP = ".7"  # how the class of a label map ends
_SYNTAXES = {"1.2.840.10008.1.2.8.1": "Deflated Image Frame Compression"}
"""Names of transfer syntaxes that pydicom does not know."""
_UNCOMPRESSED = tuple(f"1.2.840.10008.1.2{ending}" for ending in ("", ".1", ".1.99", ".2"))
"""Transfer syntaxes whose pixels are as they are, even if the whole data set is deflated."""


def syntax_name(content: Any) -> str:
    uid = content.file_meta.TransferSyntaxUID
    return _SYNTAXES.get(str(uid), str(uid.name))


def reading_of(content: Any) -> Reading:
    kind = str(content.get("SegmentationType", "LABELMAP")).lower()
    bits = f"{content.BitsStored} of {content.BitsAllocated} bits, unsigned"
    return Reading(format=f"DICOM SEG, {kind}", transfer_syntax=syntax_name(content), bits=bits)


def segments(content: Any, image: Scan, path: Path) -> list[Structure]:
    """The segments of a SEG, to be drawn on the grid of an image."""
    frames = _frames(content, image, path)
    half = _half(content)
    labelled = content.SOPClassUID.endswith(LABELMAP)
    structures: list[Structure] = []
    for segment in content.SegmentSequence:
        number, name = int(segment.SegmentNumber), one_line(segment.get("SegmentLabel", ""))
        if is_background(segment, content):
            continue

        def draw_it(number: int = number, name: str = name) -> Drawing:
            slabs, fractions = [], False
            for frame in frames():
                if labelled or frame.segment == number:
                    pixels = frame.pixels == number if labelled else frame.pixels >= half
                    fractions = fractions or (half > 1 and bool(((frame.pixels > 0) & (frame.pixels < 2 * half)).any()))
                    slabs.append(Slab(pixels, frame.position, frame.steps, frame.below, frame.above))
            _refuse_several_at_one_place(slabs, path, name)
            return drawing(slabs, image, path, name, _fractions(content) if fractions else None)

        code, meaning = code_of(segment.get("SegmentedPropertyTypeCodeSequence"))
        structures.append(Structure(name, code, meaning, draw_it))
    return structures


def _refuse_several_at_one_place(slabs: Sequence[Slab], path: Path, name: str) -> None:
    """Refuse frames of one segment at one place that differ, as of a scan of several times; copies count once."""
    first: dict[tuple[float, ...], Slab] = {}
    for slab in slabs:
        place = (*np.round(slab.position / SAME).tolist(), *np.round(slab.steps, 3).ravel().tolist())
        other = first.setdefault(place, slab)
        if not np.array_equal(other.pixels, slab.pixels):
            what = f"has several frames of {name!r} at one place that differ, as of several times or readers"
            raise ScanError("mask-frames", path, what, "export the one that is meant by itself")


def is_background(segment: Any, content: Any) -> bool:
    """Whether a segment of a label map is what lies outside of the others (PS3.3, C.8.20.2.3.3).

    That is what the pixel padding value says, and where there is none a segment of 0 that is called so.
    """
    if not content.SOPClassUID.endswith(LABELMAP):
        return False
    number, outside = int(segment.SegmentNumber), content.get("PixelPaddingValue")
    if outside is not None:
        return number == int(outside)
    return number == 0 and plain_name(one_line(segment.get("SegmentLabel", ""))) in ("", BACKGROUND)


def _half(content: Any) -> float:
    """The value from which on a pixel is inside."""
    return float(content.MaximumFractionalValue) / 2 if content.get("SegmentationType") == "FRACTIONAL" else 1


def _fractions(content: Any) -> str:
    kind = str(content.get("SegmentationFractionalType", "")).lower()
    what = {"probability": "probabilities", "occupancy": "parts of voxels"}.get(kind, "fractions")
    return f"holds {what}, and a half or more is taken as inside"


def drawing(slabs: Sequence[Slab], image: Scan, path: Path, name: str, fractions: str | None = None) -> Drawing:
    """A structure of slabs on an image's voxels, with what is to be said of it; ``fractions``: which it has."""
    voxels = draw(slabs, image)
    outside, total = beyond(slabs, image)
    if total and not voxels.any():
        what = f"has {name!r} where its image has no voxels"
        raise ScanError("mask-elsewhere", path, what, "name the image that it was drawn on")
    remarks = [Remark(fractions, "export it as a binary segmentation, if another limit is meant")] if fractions else []
    if outside:
        cut = f"has {outside:.3g} of {total:.3g} ml of {name!r} beyond the image, which are cut off"
        remarks.append(Remark(cut, "look whether the image is the one that it was drawn on"))
    other = next((slab for slab in slabs if not is_on_grid(slab, image)), None)
    if other is None:
        return Drawing(voxels, tuple(remarks))
    resampling = _resampled(other.box, image)
    remarks.append(Remark(f"is {resampling}", "look at it on the image, or export it on the image's slices"))
    return Drawing(voxels, tuple(remarks), resampled=resampling)


def _resampled(box: Sequence[float], image: Scan) -> str:
    """In words; ``box``: millimetres of a pixel of the mask."""
    stored, onto = (" x ".join(f"{length:.3g}" for length in lengths) for lengths in (box, image.spacing))
    return f"resampled from {stored} mm (columns, rows, slices) onto {onto} mm (x, y, z) by the nearest voxel"


# --- frames ---------------------------------------------------------------------------------------------------


@dataclass
class _Frame:
    """A frame: its segment (None in a label map), pixels [rows, columns], and place, see `Slab`."""

    segment: int | None
    pixels: np.ndarray
    position: np.ndarray
    steps: np.ndarray
    thick: float
    """Millimetres, as its pixel measures say; 0 if they do not."""
    below: float = 0
    above: float = 0


def _frames(content: Any, image: Scan, path: Path) -> Callable[[], list[_Frame]]:
    """The frames of a segmentation, decoded once when they are first asked for."""
    if "TotalPixelMatrixColumns" in content or content.get("DimensionOrganizationType") == "TILED_FULL":
        what = "is of slides, as in microscopy, and has no place in a patient's scan"
        raise ScanError("mask-of-slides", path, what, "name a mask of the scan")
    size = int(content.Rows) * int(content.Columns) * int(content.get("NumberOfFrames", 1) or 1)
    if size > MOST_PIXELS:
        what = f"has {size:,} pixels, at most {MOST_PIXELS:,} are read"
        raise ScanError("too-large", path, what, "export fewer segments")
    kept: list[_Frame] = []

    def decode() -> list[_Frame]:
        if not kept:
            pixels = _decoded(content, path)
            groups = content.PerFrameFunctionalGroupsSequence
            if len(groups) != len(pixels):
                what = f"has {len(pixels)} frame(s) and says of {len(groups)} which segment and slice they are"
                raise ScanError("mask-frames", path, what, AGAIN)
            shared = content.SharedFunctionalGroupsSequence[0]
            kept.extend(
                _placed(own_groups, shared, frame, path, image)
                for own_groups, frame in zip(groups, pixels, strict=True)
            )
            _set_thickness(kept, image)
        return kept

    return decode


def _decoded(content: Any, path: Path) -> np.ndarray:
    try:
        pixels: np.ndarray = content.pixel_array
    except UNREADABLE:
        if content.file_meta.TransferSyntaxUID in _UNCOMPRESSED:
            raise
        what = f"is compressed ({syntax_name(content)}), and no decoder for it is installed, or its data are damaged"
        raise ScanError("mask-compression", path, what, "export it without compression") from None
    return pixels[None] if pixels.ndim == 2 else pixels


def _placed(own_groups: Any, shared: Any, pixels: np.ndarray, path: Path, image: Scan) -> _Frame:
    def group(name: str) -> Any:
        return (own_groups if name in own_groups else shared)[name][0]

    orientation = np.array(group("PlaneOrientationSequence").ImageOrientationPatient, float)
    measures = group("PixelMeasuresSequence")
    between_rows, between_columns = map(float, measures.PixelSpacing)
    position = np.array(group("PlanePositionSequence").ImagePositionPatient, float)
    axes = orientation.reshape(2, 3)
    numbers = [*orientation, *position, between_rows, between_columns]
    if not np.isfinite(numbers).all() or min(between_rows, between_columns) <= 0:
        raise ScanError("mask-frames", path, "has a frame whose place or size is not in numbers", AGAIN)
    if not np.allclose(axes @ axes.T, np.eye(2), rtol=0, atol=SAME):
        raise ScanError("mask-frames", path, "has a frame whose rows and columns are not at right angles", AGAIN)
    named = "SegmentIdentificationSequence"
    segment = int(group(named).ReferencedSegmentNumber) if named in own_groups or named in shared else None
    steps = np.stack([axes[0] * between_columns, axes[1] * between_rows], 1)
    thick, between = (abs(float(measures.get(key) or 0)) for key in ("SliceThickness", "SpacingBetweenSlices"))
    across = _across(steps, image)
    # Some scanners write the gap between slices in place of their distance, and it is copied from their images.
    if between >= thick / 2 or abs(between - across) < SAME:
        thick = between or thick
    return _Frame(segment, pixels, position, steps, thick)


def _across(steps: np.ndarray, image: Scan) -> float:
    """The image's own distance of slices along the normal of a frame, whichever axis that is nearest to."""
    normal = np.cross(steps[:, 0], steps[:, 1])
    return float(image.spacing[int(np.argmax(np.abs(normal @ matrix_of(image)) / np.array(image.spacing)))])


def _set_thickness(frames: Sequence[_Frame], image: Scan) -> None:
    """Let each frame reach half-way to the next one; where there is none, half of a slice's thickness.

    Frames without a voxel are left out of many files, so that what is next in the file may be further off than a
    slice: then the thickness counts that the file says.
    """
    parallel: dict[tuple[float, ...], list[_Frame]] = {}
    for frame in frames:
        parallel.setdefault(tuple(np.round(_normal(frame), 3).tolist()), []).append(frame)
    for group in parallel.values():
        at = np.array([frame.position for frame in group]) @ _normal(group[0])
        order = np.argsort(at, kind="stable")
        plane = np.zeros(len(at), int)  # the number of each frame's plane, from below
        plane[order] = np.cumsum(np.diff(at[order], prepend=at.min()) > SAME)
        gaps = np.diff(np.bincount(plane, at) / np.bincount(plane))
        least = float(gaps.min(initial=np.inf))
        around = np.concatenate([[np.inf], gaps, [np.inf]])
        for frame, number in zip(group, plane.tolist(), strict=True):
            thick = frame.thick or (least if np.isfinite(least) else _across(frame.steps, image))
            usual = least if least < 2 * thick * (1 - SAME) else thick
            frame.below, frame.above = (
                float(gap if gap < ALONE * usual else usual) / 2 for gap in around[number : number + 2]
            )


def _normal(frame: _Frame) -> np.ndarray:
    across = np.cross(frame.steps[:, 0], frame.steps[:, 1])
    return np.asarray(across / np.linalg.norm(across))


# --- codes ----------------------------------------------------------------------------------------------------


def code_of(sequence: Any) -> tuple[CodeKey | None, str]:
    """The code of a structure and its modifier, and what it means."""
    if not sequence:
        return None, ""
    code = sequence[0]
    modifier = code.get("SegmentedPropertyTypeModifierCodeSequence")
    key = (_pair(code), _pair(modifier[0]) if modifier else None)
    return key, one_line(code.get("CodeMeaning", ""))


def _pair(code: Any) -> tuple[str, str]:
    return modern(str(code.get("CodeValue", "")), str(code.get("CodingSchemeDesignator", "")))
