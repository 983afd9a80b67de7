"""Read a case before preparation, and check its images and its mask together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from fedshift.data.cases import CaseFiles
from fedshift.data.dicom import is_dicom_mask
from fedshift.data.labels import Labels
from fedshift.data.named_masks import frame_of, names_structures, read_mask, wrong_image
from fedshift.data.picture_files import is_picture
from fedshift.data.picture_scan import as_voxels, read_picture_mask
from fedshift.data.scan_file import LOOK_AT_SCAN, Finding, ScanError, SeveralVolumes
from fedshift.data.scans import (
    ORIGIN_TOLERANCE,
    Scan,
    content_hash,
    odd_size,
    read_scan,
    read_volumes,
    slice_scan,
)
from fedshift.data.series import first_file, is_dicom
from fedshift.data.slicer_masks import refuse_layers
from fedshift.data.stripes import stripes
from fedshift.data.structures import LOOK
from fedshift.runtime.regions import IGNORED
from fedshift.schema.manifest import DIRECTION_TOLERANCE, SPACING_TOLERANCE, is_dummy_geometry
from fedshift.schema.reading import Reading

STRUCTURE = "structure"  # what a mask outlines, where the classes are not known
MOST_OF_A_MASK, MOST_OF_A_SCAN = 32, 16
"""Different values: a mask with more whose image has at most so few is the scan itself."""
FEW_VALUES = 2
"""Different values that nobody has named; with more a picture's mask may have been smoothed."""
SWAPPED = "are --images and --masks swapped?"


@dataclass(frozen=True)
class Decoded:
    """A decoded case in RAS orientation: its sequences, and its mask as uint8.

    The mask holds the index of each voxel's class, or, if nothing says what the values mean, the values as stored.
    """

    images: tuple[Scan, ...]
    mask: Scan

    @property
    def image(self) -> Scan:
        return self.images[0]

    @property
    def sha256(self) -> str:
        """The content's hash, of one volume, or of all sequences stacked (sequences, z, y, x)."""
        if len(self.images) == 1:
            return self.image.sha256
        return content_hash(np.stack([image.voxels for image in self.images]))

    @property
    def contents(self) -> tuple[str, ...]:
        """Hashes that no other case has: of each sequence, or of a picture, whose colours may be empty, of all."""
        return (self.sha256,) if self.image.is_picture else tuple(image.sha256 for image in self.images)

    def reading(self, sequences: Sequence[str]) -> dict[str, Reading]:
        """How its files were read, under the names that ``sequences`` have in a record, and ``mask``."""
        images = {"image": self.image.reading} if self.image.is_picture else readings_of(self.images, sequences)
        return {**images, "mask": self.mask.reading}


def readings_of(scans: Sequence[Scan], sequences: Sequence[str]) -> dict[str, Reading]:
    """How each sequence of a case was read, under its name; under ``image`` if it has none."""
    names = list(sequences) if len(sequences) == len(scans) else ["image", *(f"image {k}" for k in range(2, 100))]
    return {name: scan.reading for name, scan in zip(names, scans, strict=False)}


Draw = Callable[[CaseFiles], np.ndarray]
"""Puts a picture's mask together, (rows, columns) of whole numbers, from files that a data set has in its own way."""


def read_case(case: CaseFiles, *, draw: Draw | None = None) -> tuple[Decoded | None, list[Finding]]:
    """Read a case and list everything that is wrong with it; what was read is None if there is an error.

    ``draw`` gives the mask in place of the case's file, which is then the one that findings name.
    """
    findings: list[Finding] = []
    images = _read_images(case, findings)
    first = images[0]
    trusted = first.stored_direction if first and case.trust_voxels else None
    mask = None
    try:
        if draw is not None and first is not None:
            put_together = Reading(format="put together as its data set says")
            mask = slice_scan(as_voxels(draw(case)), put_together, spacing=first.spacing)
        elif first is not None and first.is_picture and not names_structures(case.mask):
            mask = _read_picture_mask(case, first, findings)
        elif not names_structures(case.mask):
            mask = read_values(case.mask, channel=case.mask_channel, direction=trusted)
        elif first is not None:
            mask = _read_mask(case, first, trusted, findings)
    except ScanError as error:
        findings.append(Finding.from_error(error))
    for number, image in enumerate(images):
        if image is not None:
            findings += _image_findings(case, number, images)
    findings += _same_sequences(case, images)
    if mask is not None and (copies := list(_same_as_mask(case, images, mask))):
        findings += copies
    elif mask is not None and first is not None and look_swapped(first.voxels, mask.voxels):
        what = f"has {np.unique(mask.voxels).size} different values, and its image {case.image.name} only a few"
        remedy = f"name the folder of the scans as --images; {SWAPPED}"
        findings.append(Finding("error", "images-swapped", case.mask, what, remedy))
    else:
        findings += _like_masks(case, images)
        findings += _mask_findings(case, mask) if mask is not None else []
    if first is not None:
        for number, image in enumerate(images[1:], start=1):
            if image is not None:
                images[number] = fitted = _trusted(case, first, image)
                findings += _grid_findings(case, number, first, fitted)
        if mask is not None:
            mask = _trusted(case, first, mask)
            findings += _grid_findings(case, None, first, mask)
    read = tuple(image for image in images if image is not None)
    if len(read) < len(images) or mask is None or any(finding.level == "error" for finding in findings):
        return None, findings
    classes = replace(read[0], voxels=_classes(mask.voxels, case.labels), reading=mask.reading)
    findings += _stripes(case, classes)
    return Decoded(read, classes), findings


def read_values(path: Path, *, channel: int | None = None, direction: tuple[float, ...] | None = None) -> Scan:
    """Read a mask that is no DICOM; ``channel`` and ``direction``: see `fedshift.data.scans.read_scan`.

    Raises:
        ScanError: as there.
    """
    if is_picture(path):
        mask = read_picture_mask(path)
        return slice_scan(mask.voxels, mask.reading)
    refuse_layers(path)
    try:
        return read_scan(path, channel=channel, direction=direction)
    except SeveralVolumes as error:
        remedy = "save it as one 3D mask in which each voxel has the value of its class"
        raise ScanError(error.code, error.path, error.what, remedy) from None


def look_swapped(image: np.ndarray, mask: np.ndarray) -> bool:
    """Whether a mask has many values and its image a few whole ones, so that each is the other."""
    few = np.issubdtype(mask.dtype, np.integer) and int(mask.max()) - int(mask.min()) < MOST_OF_A_MASK
    if few or np.unique(mask).size <= MOST_OF_A_MASK:
        return False
    return _few_whole_numbers(image) > 0


def _few_whole_numbers(image: np.ndarray) -> int:
    """How many different values an image has, if they are so few and whole as those of a mask; otherwise 0."""
    if np.unique(image.ravel()[::997]).size > MOST_OF_A_SCAN:  # most images are told by a few of their voxels
        return 0
    values = np.unique(image)
    return values.size if values.size <= MOST_OF_A_SCAN and bool((values == np.rint(values)).all()) else 0


def _read_mask(case: CaseFiles, image: Scan, trusted: tuple[float, ...] | None, findings: list[Finding]) -> Scan:
    both = is_dicom(case.image) and is_dicom_mask(case.mask)
    frame = frame_of(first_file(case.image)) if both else ""
    mask, remarks = read_mask(
        case.mask, image, case.labels, interpolate=case.interpolate, direction=trusted, frame=frame
    )
    other = wrong_image(case.mask, case.image) if both else None
    if other is not None and other.elsewhere and mask.reading.resampled is not None:
        what = f"{other.what}, and does not lie on its voxels either"
        raise ScanError("mask-of-other-image", case.mask, what, "name the image that it was drawn on")
    findings += [Finding("warning", "mask-remark", case.mask, remark.what, remark.remedy) for remark in remarks]
    findings += [Finding("warning", "mask-of-other-image", case.mask, other.what, LOOK)] if other else []
    return mask


def _read_picture_mask(case: CaseFiles, image: Scan, findings: list[Finding]) -> Scan:
    mask = read_picture_mask(case.mask, case.labels, prepared=case.reading is not None)
    _, rows, columns = mask.voxels.shape
    if image.as_stored is not None and not mask.turned:
        upright, stored = image.voxels.shape[:0:-1], image.as_stored
        if (columns, rows) == stored != upright:
            after = " x ".join(map(str, upright))
            what = f"has {columns} x {rows} pixels, as its image before an EXIF tag turns it to {after}"
            raise ScanError(
                "mask-grid", case.mask, what, "save the image upright without the tag, and draw or turn the mask on it"
            )
        if stored == upright:
            what = f"has no EXIF tag, and its image {case.image.name} is turned by one"
            findings.append(
                Finding("warning", "mask-turned", case.mask, what, "look whether it lies on the upright image")
            )
    return slice_scan(mask.voxels, mask.reading, spacing=image.spacing)


def _stripes(case: CaseFiles, mask: Scan) -> Iterator[Finding]:
    """Find classes that lack slices between two of their slices; of contours that was said when they were filled."""
    if mask.reading.gaps is not None or mask.is_picture:
        return
    names = case.labels.classes[1:] if case.labels else [f"value {value}" for value in range(1, 256)]
    along = next(axis for axis, ends in enumerate(("RL", "AP", "SI")) if mask.stored[2] in ends)
    remedy = "look whether slices were forgotten, or whether it was drawn on thicker slices than the image's"
    for what in stripes(mask.voxels, names, mask.spacing, slices_along=along):
        yield Finding("warning", "mask-gaps", case.mask, what, remedy)


def known_spacing(scan: Scan, *, true: bool) -> tuple[float, float, float] | None:
    """A scan's voxel size in mm along z, y, x; None if its header holds a placeholder.

    ``true``: whether somebody has said that voxels of 1 x 1 x 1 mm are no placeholder; of a prepared site the manifest
    knows it (`fedshift.schema.manifest.Manifest.known_spacing`).
    """
    x, y, z = scan.spacing
    return None if is_dummy_geometry(scan.spacing, scan.direction) and not true else (z, y, x)


def _read_images(case: CaseFiles, findings: list[Finding]) -> list[Scan | None]:
    """The sequences; a file with several of them is decoded once."""
    channels = case.channels or (None,) * len(case.images)
    images: list[Scan | None] = []
    for path, group in groupby(zip(case.images, channels, strict=True), key=lambda pair: pair[0]):
        wanted = [channel for _, channel in group]
        trusted = images[0].stored_direction if images and images[0] and case.trust_voxels else None
        try:
            images += read_volumes(path, wanted, volume=case.volume, direction=trusted)
        except ScanError as error:
            what = f"{case.named(len(images))}{error.what}"
            findings.append(Finding("error", error.code, error.path, what, error.remedy))
            images += [None] * len(wanted)
    return images


def _image_findings(case: CaseFiles, number: int, images: Sequence[Scan | None]) -> Iterator[Finding]:
    image = images[number]
    assert image is not None
    path, named, voxels = case.images[number], case.named(number), image.voxels
    if path not in case.images[:number]:  # a 4D file is looked at once
        yield from remarks_of(path, image, named)
    if image.is_picture:
        if number == 0 and all(each.voxels.min() == each.voxels.max() for each in images if each is not None):
            yield Finding("error", "scan-empty", path, "has the same colour everywhere", "save the picture again")
        return
    if voxels.min() == voxels.max():
        what = f"{named}has the same value everywhere ({voxels.flat[0]:g})"
        yield Finding("error", "scan-empty", path, what, "export the scan again")
    x, y, z = image.spacing
    if number == 0 and (odd := odd_size(image)):
        yield Finding("warning", "voxel-size", path, odd, "look at the unit of the lengths in its header")
    if number == 0 and z < 0.5 * max(x, y):
        yield Finding(
            "warning",
            "not-axial",
            path,
            f"has voxels of {x:.2f} x {y:.2f} x {z:.2f} mm (right-left, front-back, foot-head), "
            "which looks like a sagittal or coronal series",
            "give the axial series, because slices are cut axially",
        )


def remarks_of(path: Path, scan: Scan, named: str = "") -> Iterator[Finding]:
    """What is to be said of how a scan was read; ``named``: its sequence, before what is said of DICOM."""
    for unclear in scan.unclear:
        yield Finding("warning", unclear.code, path, f"{unclear.what}, {unclear.used}", unclear.remedy)
    for remark in scan.reading.remarks if is_dicom(path) else scan.warnings:
        yield Finding("warning", "scan-remark", path, f"{named}{remark}", LOOK_AT_SCAN)


def _same_sequences(case: CaseFiles, images: Sequence[Scan | None]) -> Iterator[Finding]:
    """Find a sequence that is a copy of another one, as when a file was exported twice."""
    for number, image in enumerate(images):
        for earlier, other in enumerate(images[:number]):
            if image is None or other is None or not np.array_equal(image.voxels, other.voxels):
                continue
            if image.is_picture:
                continue  # grey in three colours
            if image.voxels.min() < image.voxels.max():  # otherwise it is found to be empty
                what = f"{case.named(number)}has the same voxels as {case.named(earlier).strip(' ()')}"
                yield Finding("error", "same-content", case.images[number], what, "export the sequence again")


def _same_as_mask(case: CaseFiles, images: Sequence[Scan | None], mask: Scan) -> Iterator[Finding]:
    """Find a sequence that is the mask, as when one file was given as both."""
    for number, image in enumerate(images):
        if image is not None and mask.voxels.any() and np.array_equal(image.voxels, mask.voxels):
            what = f"{case.named(number)}has the same voxels as its mask"
            yield Finding("error", "same-content", case.images[number], what, "name the scan")


def _like_masks(case: CaseFiles, images: Sequence[Scan | None]) -> Iterator[Finding]:
    """Find a sequence that may be a mask, such as that of a second reader: a network would learn to copy it."""
    if any(image is not None and image.is_picture and not _few_whole_numbers(image.voxels) for image in images):
        return  # a picture of which a colour is empty
    for number, image in enumerate(images):
        if image is not None and (few := _few_whole_numbers(image.voxels)) > 1:
            what = f"{case.named(number)}has {few} different values, all whole numbers, as a mask has"
            remedy = "look whether it is a scan, and remove it if it is not"
            yield Finding("warning", "looks-like-mask", case.images[number], what, remedy)


def _mask_findings(case: CaseFiles, mask: Scan) -> Iterator[Finding]:
    path, labels = case.mask, case.labels
    values = np.unique(mask.voxels)
    fractional = values[values != np.rint(values)]
    structure = labels.structure if labels else STRUCTURE
    known = f"0 outside, 1 {structure}" if labels is None else str(labels)
    unknown = (
        values[(values < 0) | (values > 255)]
        if labels is None
        else values[~np.isin(values, [0, *labels.class_of, *labels.ignored])]
    )
    if fractional.size:
        remedy = "it was resampled or scaled, so export the mask with nearest-neighbour interpolation"
        yield Finding("error", "mask-values", path, f"has fractional values such as {fractional[0]:.9g}", remedy)
    elif unknown.size:
        shown = ", ".join(f"{value:g}" for value in unknown[:5])
        what = f"has unknown label(s) {shown}"
        remedy = _remedy_of_unknown(unknown, labels, known)
        if mask.is_picture and unknown.size > FEW_VALUES:
            remedy = f"if it was smoothed or made smaller, export it again without that; otherwise {remedy}"
        yield Finding("error", "mask-values", path, what, remedy)
    elif not any(value > 0 if labels is None else labels.class_of.get(int(value)) for value in values):
        remedy = (
            f"draw the {structure} ({known}) or leave the case out; if the patient has none, name a task with "
            "data.empty=true, or add --empty"
        )
        if not case.may_be_empty:
            yield Finding("error", "mask-empty", path, "is an empty mask", remedy)
    elif mask.is_picture:
        return
    elif mask.voxels.any(axis=(1, 2)).all() and (labels is not None or not names_structures(path)):
        what = f"covers every one of the {mask.voxels.shape[0]} slices"
        remedy = f"look whether it was drawn past the ends of the {structure}"
        yield Finding("warning", "mask-covers-all", path, what, remedy)


def _remedy_of_unknown(unknown: np.ndarray, labels: Labels | None, known: str) -> str:
    first = f"{unknown[0]:g}"
    if labels is None or unknown[0] < 0:
        return f"relabel it so that values are {known}"
    name, values = next(iter(labels.values.items()))
    merged = f"--label {name}={','.join(map(str, [*values, first]))}"
    return (
        f"relabel it so that values are {known}, or say what {first} is, as in {merged} to merge it, or --label "
        f"background=0,{first} beside the other classes to leave it out"
    )


def _classes(voxels: np.ndarray, labels: Labels | None) -> np.ndarray:
    if labels is None:
        return voxels.astype(np.uint8)
    if labels.by_colour:
        values, places = np.unique(voxels, return_inverse=True)
        numbers = {**labels.class_of, **dict.fromkeys(labels.ignored, IGNORED)}
        classes = np.array([numbers.get(value, 0) for value in values.tolist()], np.uint8)
        return np.asarray(classes[places].reshape(voxels.shape))
    table = np.zeros(max([0, *labels.class_of, *labels.ignored]) + 1, np.uint8)
    for value, index in labels.class_of.items():
        table[value] = index
    table[list(labels.ignored)] = IGNORED
    return np.asarray(table[voxels.astype(np.intp)])


def _trusted(case: CaseFiles, first: Scan, other: Scan) -> Scan:
    if case.trust_voxels and first.voxels.shape == other.voxels.shape:
        remark = "its places are those of the first image, whatever its header says (--trust-voxels)"
        reading = other.reading.model_copy(update={"remarks": (*other.reading.remarks, remark)})
        return replace(first, voxels=other.voxels, reading=reading)
    return other


def _grid_findings(case: CaseFiles, number: int | None, first: Scan, other: Scan) -> Iterator[Finding]:
    """Compare a further sequence, or the mask (``number`` None), with the first sequence.

    At most one finding: a wrong shape hides all other differences.
    """
    code = "mask-grid" if number is None else "sequence-grid"
    path = case.mask if number is None else case.images[number]
    named = "" if number is None else case.named(number)
    whose = "its image" if number is None else case.named(0).strip(" ()")
    what = "export the mask" if number is None else "register the sequence to it and export it"
    remedy = f"{what} on the grid of {case.image.name}"
    stored = f" (stored as {first.stored} and {other.stored})" if first.stored != other.stored else ""
    if first.voxels.shape != other.voxels.shape and first.is_picture and other.is_picture:
        size, wanted = (" x ".join(map(str, scan.voxels.shape[:0:-1])) for scan in (other, first))
        yield Finding(
            "error", code, path, f"has {size} pixels, {case.image.name} {wanted}", f"{what} in the image's size"
        )
        return
    if first.voxels.shape != other.voxels.shape:
        size, wanted = (" x ".join(map(str, scan.voxels.shape[::-1])) for scan in (other, first))
        yield Finding("error", code, path, f"{named}has {size} voxels, {whose} {wanted}{stored}", remedy)
        return
    differences = []
    for name, unit, tolerance, of_first, of_other in (
        ("spacing", " mm", SPACING_TOLERANCE, first.spacing, other.spacing),
        ("direction", "", DIRECTION_TOLERANCE, first.direction, other.direction),
        ("origin", " mm", ORIGIN_TOLERANCE, first.origin, other.origin),
    ):
        gap = np.abs(np.subtract(of_other, of_first))
        if not gap.max() <= tolerance:  # also where it is NaN
            differences.append(f"{name} by up to {gap.max():.3g}{unit} (tolerance {tolerance:g}{unit})")
    if differences:
        remedy += ", or, if you know that only its header is wrong, add --trust-voxels"
        yield Finding("error", code, path, f"{named}differs from {whose} in {', '.join(differences)}{stored}", remedy)
