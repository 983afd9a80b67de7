"""Masks in DICOM: segmentations (SEG) and RT Structure Sets, brought onto the grid of their image.

Which structure of a file is which class is found by name or by code, never by its number: a number says nothing, and
differs from file to file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.data.contours import filled
from fedshift.data.dicom import identify
from fedshift.data.dicom_classes import SEGMENTATIONS, STRUCTURE_SET, is_mask
from fedshift.data.dicom_extra import UNREADABLE, need_highdicom, quiet
from fedshift.data.labels import BACKGROUND, Labels
from fedshift.data.scan_file import ScanError
from fedshift.data.scans import Scan
from fedshift.data.series import first_file
from fedshift.schema.codes import plain_name
from fedshift.schema.names import one_line

OFF = 0.1
"""Of a voxel: how far a frame may lie beside the image's voxels, and a contour beside its slice."""
AGAIN = "export the mask on the slices of its image again"
MOST_STRUCTURES = 255
"""That are drawn where nobody says which are wanted: values of a mask without names go up to this."""
CodeKey = tuple[tuple[str, str], tuple[str, str] | None]


@dataclass(frozen=True)
class Structure:
    """A segment, or a region of interest (ROI): its number, name, code, and how to draw it on the image's grid."""

    number: int
    name: str
    code: CodeKey | None
    meaning: str
    """The code in words."""
    draw: Callable[[], np.ndarray]
    """Its voxels: bool [z, y, x]."""


@dataclass(frozen=True)
class References:
    """What a mask says of its image: UIDs of the series, and of the frame of reference ("" if it does not say)."""

    series: tuple[str, ...]
    frame: str


def is_dicom_mask(path: Path) -> bool:
    """Whether a file is a DICOM SEG or an RT Structure Set.

    Raises:
        ScanError: it may not be read, and its name does not say what it is.
    """
    found = identify(path)
    return found is not None and is_mask(found.sop_class)


def references(path: Path) -> References:
    """What a DICOM mask refers to.

    Raises:
        ScanError: it cannot be read.
        ConfigError: highdicom is not installed.
    """
    with quiet():
        try:
            return _references(_open(path))
        except UNREADABLE:
            raise ScanError(path, "does not say of which image it is", AGAIN) from None


def structures_in(path: Path) -> tuple[str, ...]:
    """The names of a DICOM mask's structures, in the file's order.

    Raises:
        ScanError: it cannot be read.
        ConfigError: highdicom is not installed.
    """
    with quiet():
        try:
            content = _open(path)
            segments, rois = content.get("SegmentSequence", []), content.get("StructureSetROISequence", [])
            labels = [segment.get("SegmentLabel", "") for segment in segments if segment.get("SegmentNumber") != 0]
            return tuple(one_line(name) for name in (*labels, *(roi.get("ROIName", "") for roi in rois)))
        except UNREADABLE:
            raise ScanError(path, "cannot be read as a DICOM mask", AGAIN) from None


def read_mask(path: Path, image: Scan, labels: Labels | None) -> tuple[Scan, list[str]]:
    """Read a DICOM mask on the grid of its image.

    Args:
        path: a SEG or an RT Structure Set.
        image: the image that it belongs to.
        labels: what is wanted; without them all structures that can be drawn are, with the values 1, 2 and so on in
            the file's order, and where two overlap the later one has the voxel.

    Returns:
        The mask, with the first of each class's values in ``labels``; and remarks.

    Raises:
        ScanError: it cannot be read, does not lie on the image's grid, or its structures are not the classes.
        ConfigError: highdicom is not installed.
    """
    with quiet():
        try:
            content = _open(path)
            found = list(
                _segments(content, image, path) if "SegmentSequence" in content else _rois(content, image, path)
            )
            chosen, remarks = _choose(found, labels, path) if labels else _all_drawn(found)
            if any(one.get("SegmentAlgorithmType") == "AUTOMATIC" for one in content.get("SegmentSequence", [])):
                remarks.append("says that a program drew it, and nobody by hand")
            voxels = np.zeros(image.voxels.shape, np.uint16)
            for structure, value in chosen:
                drawn = structure.draw()
                both = drawn & (voxels != 0) & (voxels != value) & (labels is not None)
                if both.any():
                    raise ScanError(
                        path,
                        f"has {int(both.sum())} voxel(s) of {structure.name!r} that are of another class too",
                        "give each voxel one class",
                    )
                voxels[drawn] = value
        except UNREADABLE:
            raise ScanError(path, "cannot be read as a DICOM mask", AGAIN) from None
    mask = Scan(voxels, image.spacing, image.origin, image.direction, image.stored, image.stored_direction)
    return mask, remarks


def wrong_image(path: Path, image: Path) -> str | None:
    """Why a DICOM mask is not of a DICOM image, by what both say; None if nothing speaks against it."""
    said = references(path)
    first = first_file(image)
    found = identify(first)
    if said.series and found is not None and found.series not in said.series:
        return "refers to another series than that of its image"
    frame = _frame_of(first)
    if said.frame and frame and said.frame != frame:
        return "has another frame of reference than its image"
    return None


def _frame_of(file: Path) -> str:
    import pydicom

    with quiet():
        return str(pydicom.dcmread(file, specific_tags=["FrameOfReferenceUID"]).get("FrameOfReferenceUID", "") or "")


def _open(path: Path) -> Any:
    need_highdicom(f"{path} is a DICOM mask, and reading it")
    import pydicom

    content = pydicom.dcmread(path)
    if content.SOPClassUID not in (*SEGMENTATIONS, STRUCTURE_SET):
        raise ScanError(path, "is no DICOM SEG or RT Structure Set", "name the mask")
    return content


def _references(content: Any) -> References:
    frame = str(content.get("FrameOfReferenceUID", "") or "")
    series = [str(one.SeriesInstanceUID) for one in content.get("ReferencedSeriesSequence", [])]
    for other in content.get("ReferencedFrameOfReferenceSequence", []):
        frame = frame or str(other.get("FrameOfReferenceUID", "") or "")
        for study in other.get("RTReferencedStudySequence", []):
            series += [str(one.SeriesInstanceUID) for one in study.get("RTReferencedSeriesSequence", [])]
    return References(tuple(dict.fromkeys(series)), frame)


def _all_drawn(found: Sequence[Structure]) -> tuple[list[tuple[Structure, int]], list[str]]:
    """All structures that can be drawn with their values, where nobody says which are wanted; remarks on the others.

    Raises:
        ScanError: none can.
    """
    chosen: list[tuple[Structure, int]] = []
    faults: list[ScanError] = []
    for structure in found[:MOST_STRUCTURES]:
        try:
            drawn = structure.draw()
        except ScanError as error:  # a point or a couch, for example, that no task asks for
            faults.append(error)
            continue
        chosen.append((replace(structure, draw=partial(np.asarray, drawn)), len(chosen) + 1))
    if faults and not chosen:
        raise faults[0]
    return chosen, [f"{fault.what}, which does not matter unless it is a class" for fault in faults]


def _choose(found: Sequence[Structure], labels: Labels, path: Path) -> tuple[list[tuple[Structure, int]], list[str]]:
    """The structures that are wanted with their values, and remarks on the others."""
    wanted = [name for name in (labels.annotated or labels.classes[1:]) if name in labels.values]
    by_name = {plain_name(name): name for name in wanted if name not in labels.structures.values()}
    by_code = {labels.codes[name].same_as: name for name in by_name.values() if name in labels.codes}
    chosen: list[tuple[Structure, int]] = []
    left: list[str] = []
    remarks: list[str] = []
    seen: dict[str, str] = {}
    for structure in found:
        key = plain_name(structure.name)
        if key in labels.structures:
            name: str | None = labels.structures[key]
        else:
            name = by_name.get(key)
            coded = None if structure.code is None else by_code.get(structure.code)
            if name is not None and coded not in (None, name):
                raise ScanError(
                    path,
                    f"has a structure called {structure.name!r} with the code of {coded}",
                    f"correct its code, or say what it is, as in --label {name}={structure.name!r}",
                )
            if name is not None and coded is None and structure.code is not None and name in labels.codes:
                meaning = labels.codes[name].type.meaning
                remarks.append(
                    f"calls a structure {structure.name!r} and codes it as {structure.meaning!r}, not {meaning!r}"
                )
            name = name or coded
            if name in seen:
                raise ScanError(
                    path,
                    f"has two structures that are {name}, {seen[name]!r} and {structure.name!r}",
                    f"keep one of them, or say which, as in --label {name}={structure.name!r}",
                )
            if name is not None:
                seen[name] = structure.name
        if name is None:
            left.append(structure.name)
        elif name != BACKGROUND and name in wanted:
            chosen.append((structure, labels.values[name][0]))
    if not chosen:
        named = ", ".join(repr(structure.name) for structure in found[:8]) or "no structure"
        first = repr(found[0].name) if found else "NAME"
        raise ScanError(
            path,
            f"has {named}, none of which is {' or '.join(wanted)}",
            f"say which one is, as in --label {wanted[0] if wanted else 'NAME'}={first}",
        )
    if left:
        shown = ", ".join(map(repr, left[:8]))
        remarks.append(f"has structures that are no class of the data set and are left out: {shown}")
    return chosen, remarks


# --- segmentations ------------------------------------------------------------------------------------------


def _segments(content: Any, image: Scan, path: Path) -> Iterator[Structure]:
    if content.get("SegmentationType") == "FRACTIONAL":
        levels = set(np.unique(content.pixel_array).tolist())
        if not levels <= {0, int(content.MaximumFractionalValue)}:
            raise ScanError(path, "has fractional segments", "export it as a binary segmentation")
    frames = _frames(content, image, path)
    labelled = content.SOPClassUID.endswith(".7")
    for segment in content.SegmentSequence:
        number = int(segment.SegmentNumber)
        if not number:
            continue  # the background of a label map

        def draw(number: int = number) -> np.ndarray:
            return _draw(frames(), number, image, path, labelled=labelled)

        code, meaning = _code(segment.get("SegmentedPropertyTypeCodeSequence"))
        yield Structure(number, one_line(segment.get("SegmentLabel", "")), code, meaning, draw)


Frame = tuple[int | None, np.ndarray, np.ndarray]
"""Its segment (None in a label map), its pixels [rows, columns], and the affine from its (column, row) to x, y, z."""


def _frames(content: Any, image: Scan, path: Path) -> Callable[[], list[Frame]]:
    """The frames of a segmentation, decoded once when they are first asked for."""
    kept: list[Frame] = []

    def decode() -> list[Frame]:
        if not kept:
            pixels = content.pixel_array
            pixels = pixels[None] if pixels.ndim == 2 else pixels
            shared = content.SharedFunctionalGroupsSequence[0]
            described = len(content.PerFrameFunctionalGroupsSequence)
            if described != len(pixels):
                what = f"has {len(pixels)} frame(s) and says of {described} which segment and slice they are"
                raise ScanError(path, what, AGAIN)
            for number, own in enumerate(content.PerFrameFunctionalGroupsSequence):
                kept.append((_segment_of(own, shared), pixels[number], _affine(own, shared, image, path)))
        return kept

    return decode


def _segment_of(own: Any, shared: Any) -> int | None:
    group = own if "SegmentIdentificationSequence" in own else shared
    found = group.get("SegmentIdentificationSequence")
    return int(found[0].ReferencedSegmentNumber) if found else None


def _affine(own: Any, shared: Any, image: Scan, path: Path) -> np.ndarray:
    """From (column, row, 1) of a frame to the indices x, y, z of the image's voxels: whole numbers.

    Raises:
        ScanError: the frame does not lie on the image's voxels.
    """

    def of(name: str) -> Any:
        return (own if name in own else shared)[name][0]

    orientation = np.array(of("PlaneOrientationSequence").ImageOrientationPatient, float)
    between_rows, between_columns = map(float, of("PixelMeasuresSequence").PixelSpacing)
    steps = np.stack([orientation[:3] * between_columns, orientation[3:] * between_rows], 1)
    position = np.array(of("PlanePositionSequence").ImagePositionPatient, float)
    inverse = np.linalg.inv(_matrix(image))
    exact = np.column_stack([inverse @ steps, inverse @ (position - np.array(image.origin))])
    whole = np.rint(exact)
    most = np.abs(exact - whole) @ np.array([*reversed(image.voxels.shape[1:]), 1.0])
    if most.max() > OFF or (np.abs(whole[:, :2]).sum(0) != 1).any() or (whole[:, 0] == whole[:, 1]).all():
        raise ScanError(path, "does not lie on the voxels of its image", AGAIN)
    affine: np.ndarray = whole.astype(int)
    return affine


def _draw(frames: Iterable[Frame], number: int, image: Scan, path: Path, *, labelled: bool) -> np.ndarray:
    voxels = np.zeros(image.voxels.shape, bool)
    limits = np.array(image.voxels.shape[::-1])
    for segment, pixels, affine in frames:
        if not labelled and segment != number:
            continue
        rows, columns = np.nonzero(pixels == number if labelled else pixels)
        at = affine @ np.stack([columns, rows, np.ones_like(rows)])
        if ((at < 0) | (at >= limits[:, None])).any():
            raise ScanError(path, "has voxels outside its image", AGAIN)
        x, y, z = at
        voxels[z, y, x] = True
    return voxels


# --- structure sets -----------------------------------------------------------------------------------------


def _rois(content: Any, image: Scan, path: Path) -> Iterator[Structure]:
    contours = {
        int(one.ReferencedROINumber): one.get("ContourSequence", []) for one in content.get("ROIContourSequence", [])
    }
    observed = {
        int(one.ReferencedROINumber): one.get("RTROIIdentificationCodeSequence")
        for one in content.get("RTROIObservationsSequence", [])
    }
    for roi in content.StructureSetROISequence:
        number = int(roi.ROINumber)
        name = one_line(roi.get("ROIName", ""))

        def draw(number: int = number, name: str = name) -> np.ndarray:
            return _fill(contours.get(number, []), image, path, name)

        code, meaning = _code(observed.get(number))
        yield Structure(number, name, code, meaning, draw)


def _fill(contours: Iterable[Any], image: Scan, path: Path, name: str) -> np.ndarray:
    """The voxels whose centres are within the contours of their slice, see `fedshift.data.contours.filled`."""
    inverse = np.linalg.inv(_matrix(image))
    drawn: list[np.ndarray] = []
    odd = False
    for contour in contours:
        kind = contour.get("ContourGeometricType")
        if kind not in ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR"):
            raise ScanError(
                path, f"outlines {name!r} with something else than closed contours", "export it as closed contours"
            )
        points = np.array(contour.ContourData, float).reshape(-1, 3)
        if not np.isfinite(points).all():
            raise ScanError(path, f"has a contour of {name!r} that is not in numbers", AGAIN)
        odd = odd or kind == "CLOSEDPLANAR_XOR"
        drawn.append((points - np.array(image.origin)) @ inverse.T)
    voxels = np.zeros(image.voxels.shape, bool)
    if not drawn:
        return voxels
    axis = int(np.argmin(np.max([np.ptp(points, axis=0) for points in drawn], axis=0)))  # across the slices
    across = [other for other in range(3) if other != axis]
    slices: dict[int, list[np.ndarray]] = {}
    for points in drawn:
        at = int(np.rint(points[:, axis].mean()))
        if np.abs(points[:, axis] - at).max() > OFF or not 0 <= at < image.voxels.shape[2 - axis]:
            raise ScanError(path, f"has a contour of {name!r} that does not lie in a slice of its image", AGAIN)
        slices.setdefault(at, []).append(points[:, across])
    by_axis: np.ndarray = np.moveaxis(voxels, 2 - axis, 0)  # [slice, the later axis, the earlier axis]
    rows, columns = by_axis[0].shape
    for at, polygons in slices.items():
        by_axis[at] = filled(polygons, (rows, columns), odd=odd)
    return voxels


# --- both ---------------------------------------------------------------------------------------------------


def _matrix(image: Scan) -> np.ndarray:
    """From index x, y, z to millimetres."""
    matrix: np.ndarray = np.reshape(image.direction, (3, 3)) * np.array(image.spacing)
    return matrix


def _code(sequence: Any) -> tuple[CodeKey | None, str]:
    """The code of a structure and its modifier, and what it means."""
    if not sequence:
        return None, ""
    code = sequence[0]
    modifier = code.get("SegmentedPropertyTypeModifierCodeSequence")
    key = (_pair(code), _pair(modifier[0]) if modifier else None)
    return key, one_line(code.get("CodeMeaning", ""))


def _pair(code: Any) -> tuple[str, str]:
    return str(code.get("CodeValue", "")), str(code.get("CodingSchemeDesignator", ""))
