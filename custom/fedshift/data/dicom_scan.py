"""A volume from the files of a DICOM series, or from one enhanced image: its voxels, and how they were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.dicom import DicomFault
from fedshift.data.dicom_frames import Frame, Part, frames_in
from fedshift.data.dicom_objects import UNREADABLE, quiet
from fedshift.data.dicom_pixels import intensities, stored_frames
from fedshift.data.dicom_volumes import Box, Stack, box_of, stack_of
from fedshift.data.scan_file import ScanError, SeveralVolumes
from fedshift.data.series import is_series, list_series, whole_of
from fedshift.data.volume_file import MOST_VOXELS
from fedshift.schema.reading import Reading

NOT_EVEN = ("slices-uneven", "slices-shifted")
WHOLE = (np.int16, np.uint16, np.int32)  # types of voxels, in the order in which they are tried


class DicomSource(NamedTuple):
    """Where the slices of a volume come from."""

    files: tuple[Path, ...]
    """Of classic slices one for each slice, in their order; of an enhanced image its file, or all its parts."""
    frames: tuple[int, ...]
    """Of an enhanced image the number of each slice's frame, from 0 and through all files; otherwise empty."""


def read_dicom(path: Path, volume: int | None) -> tuple[sitk.Image, Reading]:
    """Read a DICOM scan; ``volume``: which one is wanted, from 1, where there are several."""
    stack, _ = _scan_stack(path, volume)
    try:
        return _read_stack(stack)
    except DicomFault as fault:
        remedy = "export the series again" if is_series(path) else "export the series again, or as single slices"
        if fault.code in NOT_EVEN:
            remedy = "resample it onto even slices at right angles"
        raise ScanError(fault.code, path, str(fault), remedy) from None


def dicom_source(path: Path, *, volume: int | None = None) -> DicomSource:
    """The DICOM files of a scan, in the order of the slices of the volume that is read from them.

    Raises:
        ScanError: as for `read_dicom`.
    """
    return _scan_stack(path, volume)[1]


def _scan_stack(path: Path, volume: int | None) -> tuple[Stack, DicomSource]:
    if is_series(path):
        files = list_series(path).files
    else:
        files = (path,)
        if whole := whole_of(path):
            what = f"is one of {len(whole.files)} files of one scan"
            remedy = f"name all of them as {path.parent / whole.uid}, or their folder"
            raise ScanError("part-of-scan", path, what, remedy)
    try:
        stack, source = find_stack(files, volume=volume)
    except DicomFault as fault:
        if fault.code == "several-volumes":
            remedy = "say which one is wanted with --volume N, or export it alone"
            raise SeveralVolumes(fault.code, path, str(fault), remedy) from None
        raise ScanError(fault.code, path, str(fault), "export the series again") from None
    if len(stack.frames) < 3:
        what, remedy = f"has {len(stack.frames)} slice(s)", "at least three are needed, export the whole volume"
        raise ScanError("too-few-slices", path, what, remedy)
    return stack, source


def find_stack(files: Sequence[Path], *, volume: int | None) -> tuple[Stack, DicomSource]:
    """The frames of a volume among those of files: of classic slices, an enhanced image or all its parts.

    ``volume``: which one is wanted, from 1, where they hold several.
    """
    read: list[tuple[Path, list[Frame], Part | None]] = []
    with quiet():
        for file in files:
            try:
                read.append((file, *frames_in(file)))
            except DicomFault as fault:
                subject = "is an image" if len(files) == 1 else f"has a slice {file.name}"
                raise DicomFault(fault.code, f"{subject} {fault}") from None
    parts = {file: part for file, _, part in read if part is not None}
    if parts:
        _refuse_incomplete(parts)
        read.sort(key=lambda each: (each[2].uid, each[2].number) if each[2] else ("", 0))
    frames = [frame for _, of_file, _ in read for frame in of_file]
    stack = stack_of(frames, volume)
    if all(frame.is_classic for frame in frames):
        return stack, DicomSource(tuple(frame.file for frame in stack.frames), ())
    starts = np.cumsum([0, *(len(of_file) for _, of_file, _ in read)])
    begins = dict(zip((file for file, _, _ in read), starts, strict=False))
    numbers = tuple(int(begins[frame.file]) + frame.number for frame in stack.frames)
    return stack, DicomSource(tuple(begins), numbers)


def _read_stack(stack: Stack) -> tuple[sitk.Image, Reading]:
    """Decode the frames of a volume."""
    frames = stack.frames
    box = box_of(frames)
    if len(frames) * frames[0].rows * frames[0].columns > MOST_VOXELS:
        size = f"{frames[0].columns} x {frames[0].rows} x {len(frames)}"
        raise DicomFault("too-large", f"has {size} voxels, at most {MOST_VOXELS:,} are read")
    if len(units := sorted({frame.values.units for frame in frames})) > 1:
        raise DicomFault("units-differ", f"has slices in several units ({', '.join(unit or 'none' for unit in units)})")
    of_file: dict[Path, list[int]] = {}
    for place, frame in enumerate(frames):
        of_file.setdefault(frame.file, []).append(place)
    slices: list[np.ndarray] = [np.empty(0)] * len(frames)
    padded: dict[int, np.ndarray] = {}
    with quiet():
        for file, places in of_file.items():
            places.sort(key=lambda place: frames[place].number)
            wanted = [frames[place] for place in places]
            try:
                decoded = stored_frames(file, [each.number for each in wanted], [each.values for each in wanted])
                for place, stored in zip(places, decoded, strict=True):
                    values = frames[place].values
                    slices[place] = _smallest(intensities(stored, values))
                    if values.padding is not None:
                        outside = (stored >= values.padding[0]) & (stored <= values.padding[1])
                        padded |= {place: outside} if outside.any() else {}
            except DicomFault as fault:
                raise DicomFault(
                    fault.code, str(fault) if len(frames) == len(wanted) else f"has a slice {file.name} that {fault}"
                ) from None
            except UNREADABLE:
                what = f"has pixels in {file.name} that cannot be read, they are damaged"
                raise DicomFault("pixels-damaged", what) from None
    filled = _fill(slices, padded)
    image = sitk.GetImageFromArray(_smallest(np.stack(slices)))
    image.SetSpacing(box.spacing)
    image.SetOrigin(box.origin)
    image.SetDirection(box.direction)
    return image, _reading(stack, box, filled)


def _refuse_incomplete(parts: Mapping[Path, Part]) -> None:
    """Refuse a concatenation of which parts are missing."""
    for uid in dict.fromkeys(part.uid for part in parts.values()):
        files = {part.number: file.name for file, part in parts.items() if part.uid == uid}
        total = max([*files, *(part.total for part in parts.values() if part.uid == uid and part.total is not None)])
        count = sum(part.uid == uid for part in parts.values())
        if count > len(files) or set(files) != set(range(1, total + 1)):
            shown = ", ".join(f"{number} ({name})" for number, name in sorted(files.items()))
            what = f"has part {shown} of an enhanced image in {total} files, and not the others"
            raise DicomFault("parts-missing", what)


def _smallest(voxels: np.ndarray) -> np.ndarray:
    """Whole numbers in the smallest type that holds them; others as they are."""
    if not np.issubdtype(voxels.dtype, np.integer):
        return voxels
    low, high = int(voxels.min()), int(voxels.max())
    for kind in WHOLE:
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return voxels.astype(kind)
    return voxels


def _fill(slices: list[np.ndarray], padded: dict[int, np.ndarray]) -> str | None:
    """Give pixels that are no part of the image the lowest intensity of those that are; what was done, in words."""
    if not padded:
        return None
    inside = [each[~padded[place]] if place in padded else each for place, each in enumerate(slices)]
    lowest = min((each.min() for each in inside if each.size), default=None)
    if lowest is None:
        return None
    for place, outside in padded.items():
        slices[place] = np.where(outside, lowest, slices[place])
    return f"pixels outside the image (pixel padding) were given its lowest intensity, {lowest:g}"


def _reading(stack: Stack, box: Box, filled: str | None) -> Reading:
    frames = stack.frames
    first = frames[0].values
    every = [frame.values for frame in frames]
    turned = sum(values.turned for values in every)
    photometric = " and ".join(sorted({values.photometric for values in every}))
    if turned:
        photometric += ", turned" if turned == len(every) else f", turned in {turned} of {len(every)} slices"
    elif any(values.photometric != "MONOCHROME2" for values in every):
        photometric += ", not turned"
    bits = {f"{each.bits_stored} of {each.bits_allocated} bits, {'' if each.signed else 'un'}signed" for each in every}
    remarks = list(dict.fromkeys(remark for values in every for remark in values.remarks))
    if filled:
        remarks.append(filled)
    if (references := len({frame.reference for frame in frames} - {""})) > 1:
        remarks.append(f"has slices in {references} frames of reference, whose places nobody can compare")
    return Reading(
        format="DICOM series" if frames[0].is_classic else "enhanced DICOM image",
        transfer_syntax=" and ".join(sorted({frame.syntax for frame in frames})),
        bits=" and ".join(sorted(bits)),
        rescale=_rescale(
            [(values.slope, values.intercept) for values in every if values.scaled], first.table is not None
        ),
        photometric=photometric,
        units=first.units or None,
        geometry=f"image positions of {len(frames)} slices",
        volume=stack.chosen,
        gaps=f"up to {box.uneven:.3f} mm beside even distances" if box.uneven >= 0.001 else None,
        tilt=f"slices shifted by up to {box.shift:.3f} mm" if box.shift >= 0.001 else None,
        remarks=tuple(remarks),
    )


def _rescale(pairs: Sequence[tuple[float, float]], table: bool) -> str | None:
    if table:
        return "modality LUT"
    if not pairs:
        return None
    slopes, intercepts = (sorted({pair[k] for pair in pairs}) for k in (0, 1))
    if len(slopes) == len(intercepts) == 1:
        return f"x {slopes[0]:g} {'-' if intercepts[0] < 0 else '+'} {abs(intercepts[0]):g}"
    return f"slopes {slopes[0]:g} to {slopes[-1]:g}, intercepts {intercepts[0]:g} to {intercepts[-1]:g}, of each slice"
