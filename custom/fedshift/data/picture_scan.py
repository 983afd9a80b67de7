"""A picture to segment, as a scan of one slice whose sequences are its colours; and a mask that is a picture.

Arrays are (1, rows, columns) in RAS orientation like those of every scan, so that `fedshift.runtime.grids.radiological`
shows the picture's first row at the top. A picture has no voxel size unless its file says one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from fedshift.data.decode import (
    GREY,
    TIFF_PHOTOMETRIC,
    UNREADABLE,
    WHITE_IS_ZERO,
    decode_file,
    form_fault,
    has_deep_colours,
    is_stretched,
    pictures_in,
    tiff_tags,
    turned_by_tag,
)
from fedshift.data.depth import WHITE, DeepPicture, warnings_of
from fedshift.data.dicom import LARGEST, SMALLEST
from fedshift.data.dicom_objects import RADIOGRAPHS, quiet
from fedshift.data.dicom_objects import UNREADABLE as DICOM_UNREADABLE
from fedshift.data.dicom_picture import read_dicom_picture
from fedshift.data.downloads import open_file
from fedshift.data.labels import COLOUR, MOST_VALUE, Labels, is_colour, shown
from fedshift.data.picture_files import is_dicom_picture
from fedshift.data.scan_file import ScanError, has_picture_name, is_broken_link
from fedshift.schema.errors import DataError
from fedshift.schema.names import few_names
from fedshift.schema.reading import Reading

COLOURS = ("red", "green", "blue")
INSIDE = 255
"""What one structure has in a mask that is saved as black and white."""
LOSSY = ("JPEG", "MPO", "JPEG2000", "WEBP")
LOSSY_IN_TIFF = ("jpeg", "tiff_jpeg", "webp")
MOST_OF_A_MASK = 64
"""Different values; a mask with more was smoothed."""
AGAIN = "copy or export it again"
ANY_FORM = "save it as PNG, in grey of 8 bits, with a whole number for each class"


class PictureSlice(NamedTuple):
    """``voxels``: a colour's (1, rows, columns) each, uint8 or uint16. ``turned``: whether by an EXIF tag.

    ``stored``: columns and rows in the file. ``spacing``: mm from column to column and from row to row, where known.
    ``warnings``: as of `fedshift.data.depth.warnings_of`.
    """

    voxels: list[np.ndarray]
    reading: Reading
    turned: bool
    stored: tuple[int, int]
    spacing: tuple[float, float] | None = None
    warnings: tuple[str, ...] = ()


def in_colour(path: Path) -> bool:
    """Whether a picture is in colour by its header; False for a file that cannot be read, of which its reader says so.

    A file in colour may hold grey only.
    """
    if is_dicom_picture(path):
        return _of_header(path, "SamplesPerPixel", "PhotometricInterpretation") not in (
            (1, "MONOCHROME1"),
            (1, "MONOCHROME2"),
        )
    with suppress(DataError, *UNREADABLE), open_file(path) as stream, Image.open(stream) as stored:
        return stored.mode not in GREY and not stored.mode.startswith(("I", "F"))
    return False


def read_picture_slice(path: Path, colours: Sequence[int | None]) -> PictureSlice:
    """Read some colours of a picture, by their number in `COLOURS`; None for the intensity of a grey one.

    A colour of a grey picture is its intensity. The intensity of a picture in colour is any of its colours, if these
    are the same everywhere.

    Raises:
        ScanError: it cannot be read, or it is in colour and its intensity is wanted.
    """
    _refuse_absent(path)
    of_dicom, spacing, how = is_dicom_picture(path), None, None
    remarks: tuple[str, ...] = ()
    try:
        if of_dicom:
            spacing, how = _pixel_spacing(path)
            picture, form, turned = read_dicom_picture(path, sized=spacing is not None), "DICOM", False
            stored, remarks = (0, 0), warnings_of(picture) if isinstance(picture, Image.Image) else ()
        else:
            with open_file(path) as stream:
                picture, form, stored, turned, remarks = decode_file(stream, "")
    except DataError as error:
        what, _, remedy = str(error).removeprefix(str(path)).strip().rpartition(": ")
        raise ScanError(error.code, path, what, AGAIN if error.code == "file-damaged" else remedy) from None
    notes, photometric = [*remarks, *([how] if how else [])], None
    if isinstance(picture, Image.Image):
        values, bits = np.asarray(picture), "8 bits, unsigned"
    else:
        white = WHITE if picture.known else (1 << picture.stored) - 1
        values, bits = picture.values, f"{picture.stored} bits, unsigned"
        if picture.turned:
            values, photometric = white - values, "0 is white, turned"
    if values.ndim == 2:
        if len(colours) > 1 and values.dtype != np.uint8:
            values = _in_eight_bits(path, values, known=isinstance(picture, DeepPicture) and bool(picture.known))
        planes = [values] * len(colours)
        notes += ["grey, taken for equal colours"] if any(number is not None for number in colours) else []
    elif None in colours:
        if (values != values[..., :1]).any():
            burnt = " or has colours burnt in" if of_dicom else ""
            what = f"is a picture in colour{burnt}, and grey ones are asked for"
            remedy = "name the colours in the task's data.sequences, choose one with --sequence, or save it in grey"
            raise ScanError("colour-voxels", path, what, remedy)
        planes = [values[..., 0]] * len(colours)
        notes.append("its colours are the same everywhere: taken for grey")
    else:
        planes = [values[..., number or 0] for number in colours]
    if turned:
        notes.append("turned by its EXIF tag")
    record = Reading(format=f"{form} picture", bits=bits, photometric=photometric, remarks=tuple(notes))
    if not isinstance(picture, Image.Image) and picture.how is not None:
        record = picture.how.model_copy(update={"remarks": (*picture.how.remarks, *notes)})
    voxels = [as_voxels(plane) for plane in planes]
    return PictureSlice(voxels, record, turned, stored, spacing, warnings_of(picture) if of_dicom else ())


def _in_eight_bits(path: Path, values: np.ndarray, *, known: bool) -> np.ndarray:
    """A grey picture for three colours, which have 8 bits; ``known``: whether its values are from 0 to `WHITE`."""
    if not known:
        what = "is grey with 16 bits, and colours are asked for, which have 8"
        raise ScanError("picture-form", path, what, "save it with 8 bits, or prepare grey pictures as a data set")
    return np.rint(values / (WHITE // INSIDE)).astype(np.uint8)


def _of_header(path: Path, *names: str) -> tuple[Any, ...]:
    """Attributes of a DICOM file; None where it lacks them or cannot be read."""
    import pydicom

    try:
        with quiet():
            header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=list(names))
            return tuple(header.get(name) for name in names)
    except DICOM_UNREADABLE:
        return (None,) * len(names)


def _pixel_spacing(path: Path) -> tuple[tuple[float, float] | None, str | None]:
    """The distances of a DICOM image's pixels in the patient, in mm, and what is to be said of them.

    Of a radiograph, Pixel Spacing is that in the patient if it was calibrated, or differs from what Imager Pixel
    Spacing says of the detector or Nominal Scanned Pixel Spacing of a film; without these nobody can tell (PS3.3,
    10.7.1.1). Distances at the detector are not used, as a shadow is larger than what throws it.
    """
    names = (
        *("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing"),
        *("PixelSpacingCalibrationType", "SOPClassUID"),
    )
    spacing, detector, film, calibrated, sop_class = _of_header(path, *names)
    if spacing is None:
        alone = "distances at the detector (Imager Pixel Spacing) are not those in the patient, and are not used"
        return None, alone if detector is not None else None
    try:
        rows, columns = (float(length) for length in spacing)
        others = [[float(length) for length in other] for other in (detector, film) if other is not None]
    except (TypeError, ValueError):
        return None, "its Pixel Spacing is no pair of numbers, and is not used"
    if not (SMALLEST < rows < LARGEST and SMALLEST < columns < LARGEST):
        return None, "its Pixel Spacing is none that an image has, and is not used"
    if sop_class in RADIOGRAPHS and not calibrated and (not others or [rows, columns] in others):
        whose = "is the detector's" if others else "may be the detector's"
        return None, f"its Pixel Spacing {whose}, not that in the patient, and is not used"
    return (columns, rows), f"pixels of {columns:g} x {rows:g} mm, by Pixel Spacing"


def as_voxels(picture: np.ndarray) -> np.ndarray:
    """A picture's (rows, columns) as a slice (1, rows, columns) in RAS orientation."""
    return np.ascontiguousarray(picture[::-1, ::-1])[None]


def as_picture(voxels: np.ndarray) -> np.ndarray:
    """The reverse of `as_voxels`."""
    return np.ascontiguousarray(voxels[0, ::-1, ::-1])


def has_colours(path: Path) -> bool:
    """Whether pixels of a mask are in colour, other than by a palette; False for a file that cannot be read."""
    with suppress(DataError, *UNREADABLE), open_file(path) as stream, Image.open(stream) as stored:
        if stored.mode in ("RGB", "RGBA"):
            pixels = np.asarray(stored)
            return bool((pixels[..., :3] != pixels[..., :1]).any())
    return False


# --- masks ------------------------------------------------------------------------------------------------------------


class PictureMask(NamedTuple):
    """``voxels``: (1, rows, columns) int32, the value of each pixel. ``turned``: whether by an EXIF tag."""

    voxels: np.ndarray
    reading: Reading
    turned: bool


def read_picture_mask(path: Path, labels: Labels | None = None, *, prepared: bool = False) -> PictureMask:
    """Read a mask; where it has no values but 0 and 255 and labels have one class whose value is 1, 255 becomes 1.

    ``labels``: what the values mean; None if nobody has said it, and a mask of 0 and 255 is then one of one class.
    Where colours stand for classes, pixels have the values of colours (`fedshift.data.labels.COLOUR`), black ones 0.
    ``prepared``: whether the values are those of a prepared site, which are as they are.

    Raises:
        ScanError: it cannot be read, or its values are not those that were drawn.
    """
    _refuse_absent(path)
    if not has_picture_name(path):
        raise ScanError("mask-format", path, "is no picture, and its image is one", ANY_FORM)
    try:
        with open_file(path) as stream, Image.open(stream) as stored:
            if stored.format in LOSSY or stored.info.get("compression") in LOSSY_IN_TIFF:
                what = f"is a mask in {stored.format}, which changes values along edges"
                raise ScanError("mask-lossy", path, what, "export it again as PNG")
            if (several := pictures_in(stored)) > 1:
                what = f"holds {several} pictures"
                raise ScanError("several-pictures", path, what, "save the mask by itself, one value for each class")
            deep = has_deep_colours(stored) and stored.mode.startswith("RGB")
            stretched = is_stretched(stored)  # first: of PNG, looking for a tag loads it
            turned = turned_by_tag(stored)
            if fault := form_fault(stored):
                raise ScanError("mask-form", path, fault, ANY_FORM)
            stored.load()
            if stored.mode in ("1", "L") and tiff_tags(stored).get(TIFF_PHOTOMETRIC) == WHITE_IS_ZERO:
                what = "is a mask in which 0 is white, so that some programs show 0 as inside and others as outside"
                raise ScanError("mask-form", path, what, ANY_FORM)
            by_colour = labels is not None and labels.by_colour
            if stretched and not by_colour and not _is_all_black_or_white(stored):
                what = "is a mask of other than 8 or 16 bits, whose numbers readers stretch, as 1 of 2 bits to 85 of 8"
                raise ScanError("mask-form", path, what, ANY_FORM)
            values, how = _values(ImageOps.exif_transpose(stored), path, labels, deep=deep)
            form = f"{stored.format} picture"
    except (DataError, *UNREADABLE) as error:
        if isinstance(error, ScanError):
            raise
        raise ScanError(
            "file-damaged", path, "cannot be read, it is damaged, cut short or no picture", ANY_FORM
        ) from None
    notes = [how] if how else []
    notes += ["turned by its EXIF tag"] if turned else []
    structures = None
    if labels is not None and labels.by_colour:
        structures = ", ".join(f"{shown(value)} is {labels.classes[index]}" for value, index in labels.class_of.items())
    elif not prepared:
        held = np.flatnonzero(np.bincount(values.ravel()))
        if held.size > MOST_OF_A_MASK:
            what = f"has {held.size} different values from {held[0]} to {held[-1]}, as a mask has that was smoothed"
            raise ScanError("mask-values", path, what, "export it again without smoothing, or draw a threshold")
        if set(held.tolist()) <= {0, INSIDE} and _is_black_and_white(labels):
            values = (values == INSIDE).astype(np.int32)
            structures = f"{INSIDE} is {labels.structure if labels else 'inside'}"
    record = Reading(format=form, structures=structures, remarks=tuple(notes))
    return PictureMask(as_voxels(values), record, turned)


def _is_all_black_or_white(picture: Image.Image) -> bool:
    return picture.mode == "L" and bool(np.isin(np.asarray(picture), (0, INSIDE)).all())


def _is_black_and_white(labels: Labels | None) -> bool:
    """Whether 255 can only stand for the one class, whose value is said to be 1."""
    return labels is None or set(labels.class_of) == {1}


def _values(picture: Image.Image, path: Path, labels: Labels | None, *, deep: bool) -> tuple[np.ndarray, str | None]:
    """The value of each pixel (rows, columns) int32, and what was decided."""
    if "A" in picture.getbands():
        if np.asarray(picture.getchannel("A")).min() < 255:
            raise ScanError("mask-form", path, "is a mask with transparent pixels", ANY_FORM)
        picture = picture.convert("L" if picture.mode.startswith("L") else "RGB")
    if labels is not None and labels.by_colour and not deep and picture.mode in ("1", "L", "P", "RGB"):
        return _coloured(np.asarray(picture.convert("RGB")), labels, path), None
    if picture.mode == "P":
        _refuse_background(picture, path)
        return np.asarray(picture).astype(np.int32), "the numbers of its palette, whatever their colours"
    if picture.mode == "1":
        picture = picture.convert("L")
    if picture.mode == "L" or picture.mode.startswith("I"):
        numbers = np.asarray(picture)
        if numbers.min() < 0 or numbers.max() > MOST_VALUE:
            what = f"has values from {numbers.min()} to {numbers.max()}, and those of a mask are from 0 to {MOST_VALUE}"
            raise ScanError("mask-values", path, what, ANY_FORM)
        return numbers.astype(np.int32), None
    if picture.mode != "RGB" or deep:
        raise ScanError("mask-form", path, f"is a mask of a form that is not read ({picture.mode})", ANY_FORM)
    colours = np.asarray(picture)
    if (colours != colours[..., :1]).any():
        held = [colour for colour in np.unique(_coded(colours)).tolist() if colour != COLOUR]
        first = f"--label NAME={','.join(map(str, rgb(held[0])))}"
        what = f"is a mask in colours ({few_names([shown(colour) for colour in held])}), and nothing says what they are"
        raise ScanError("mask-colours", path, what, f"say which colour is which class, as in {first}")
    return colours[..., 0].astype(np.int32), None


def _refuse_background(picture: Image.Image, path: Path) -> None:
    """Refuse a palette by whose colours another number than 0 is outside, as programs sort them who save few colours.

    That is black or white where the colour of 0 is neither that nor black.
    """
    palette = np.array(picture.getpalette("RGB") or [0, 0, 0]).reshape(-1, 3)
    first, used = palette[0], np.flatnonzero(np.bincount(np.asarray(picture).ravel()))
    ends = (palette == palette[:, :1]).all(1) & np.isin(palette[:, 0], (0, 255)) & (palette != first).any(1)
    if first.any() and (others := [number for number in used.tolist() if number < len(palette) and ends[number]]):
        colours = [shown(int(_coded(palette[None, [number]])[0, 0])) for number in (0, others[0])]
        what = (
            f"is a mask with a palette in which 0 is {colours[0]} and {others[0]} is {colours[1]}, so that numbers and"
        )
        what += " colours may say different things"
        remedy = f"save it in grey, or say what colours mean, as in --label NAME={colours[0]}"
        raise ScanError("mask-palette", path, what, remedy)


def rgb(value: int) -> tuple[int, int, int]:
    """Red, green and blue of a colour's value."""
    return value >> 16 & 255, value >> 8 & 255, value & 255


def _coded(colours: np.ndarray) -> np.ndarray:
    """The value of each pixel's colour: (rows, columns) int32 of (rows, columns, 3) uint8."""
    red, green, blue = (colours[..., k].astype(np.int32) for k in range(3))
    return np.asarray(COLOUR + (red << 16) + (green << 8) + blue)


def _coloured(colours: np.ndarray, labels: Labels, path: Path) -> np.ndarray:
    """The values of colours, 0 for black unless that is a class."""
    coded = _coded(colours)
    values, counts = np.unique(coded, return_counts=True)
    known = [value for value in labels.class_of if is_colour(value)]
    known += [COLOUR] if 0 not in map(labels.class_of.get, known) else []
    unknown = [
        (count, value) for value, count in zip(values.tolist(), counts.tolist(), strict=True) if value not in known
    ]
    if unknown:
        count, value = max(unknown)
        others = f", and {len(unknown) - 1} other colours" if len(unknown) > 1 else ""
        near = min(known, key=lambda other: sum((a - b) ** 2 for a, b in zip(rgb(value), rgb(other), strict=True)))
        whose = labels.classes[labels.class_of.get(near, 0)]
        nearest = f"the nearest is {shown(near)} ({whose})"
        what = f"has {count} pixel(s) of {shown(value)}{others}, which no class has; {nearest}"
        remedy = "export it without smoothing, or name that colour too, as in --label NAME=#RRGGBB"
        raise ScanError("mask-colours", path, what, remedy)
    return np.where(coded == COLOUR, COLOUR if COLOUR in labels.class_of else 0, coded)


def _refuse_absent(path: Path) -> None:
    if is_broken_link(path) or not path.is_file():
        raise ScanError("file-missing", path, "does not exist", "name a picture that is there")
    if path.stat().st_size == 0:
        raise ScanError("file-empty", path, "is an empty file", AGAIN)


# --- prepared pictures ------------------------------------------------------------------------------------------------


def write_picture(voxels: Sequence[np.ndarray], path: Path) -> None:
    """Write the sequences of a slice, or its mask, as one PNG: grey, or red, green and blue.

    Raises:
        ValueError: values that a PNG does not hold, or another number of sequences.
    """
    planes = [as_picture(plane) for plane in voxels]
    if len(planes) not in (1, len(COLOURS)) or any(plane.dtype not in (np.uint8, np.uint16) for plane in planes):
        raise ValueError("a picture has one sequence of 8 or 16 bits, or three of 8")
    Image.fromarray(planes[0] if len(planes) == 1 else np.stack(planes, -1)).save(path, compress_level=COMPRESSION)


COMPRESSION = 1
"""Of what is written: the fastest, whose files are about a tenth larger than those of the default."""
