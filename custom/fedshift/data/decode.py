"""Decode picture files to upright 8-bit RGB, hash their content and resize them to arrays.

Pictures may be RGB, grey, CMYK, palette images, have transparency (drawn on white), or be rotated by an EXIF tag. Grey
ones with more than 8 bits are a `DeepPicture` first: which range of values they have is known from all of a site.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from PIL import Image, ImageFile, ImageOps, ImageSequence, TiffImagePlugin, UnidentifiedImageError

from fedshift.data.depth import DICOM, DeepPicture, Depth
from fedshift.data.dicom import looks_like_dicom
from fedshift.data.downloads import open_file
from fedshift.schema.errors import DataError

UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)
"""What Pillow raises for files that are damaged or not pictures."""
WITHOUT_COLOURS = ("LAB", "HSV")
"""Modes that Pillow does not convert to RGB as they are meant."""
GREY = ("1", "L", "LA", "La")
"""Modes of grey pictures with up to 8 bits."""
ORIENTATION, TURNED, QUARTER_TURNS = 0x0112, range(2, 9), range(5, 9)
"""The EXIF tag that says how a picture is to be turned, and its values other than not at all, and on its side."""
TIFF_REDUCED, TIFF_BITS, TIFF_PHOTOMETRIC, TIFF_EXTRA, TIFF_FORMAT = 254, 258, 262, 338, 339
TIFF_DESCRIPTION, TIFF_LENGTHS = 270, 279
WHITE_IS_ZERO, SIGNED, NO_ALPHA = 0, 2, 0
"""Values of the tags of a TIFF's photometric interpretation, sample format and extra samples."""
TIFF_BEGINS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
FEWEST_OF_COLOUR = 64
"""Pillow keeps the upper 8 bits of colours of 16; if none of these reaches this, the file uses 14 bits or fewer."""
SAVE = "save it as a picture of 8 bits, or as a grey one of 16"


def read_picture(path: Path) -> Image.Image | DeepPicture:
    """Read a file as upright 8-bit RGB, or as a grey picture of more bits.

    Raises:
        DataError: the file does not exist, cannot be read, is not a picture, is cut short, holds several pictures, or
            its values are not intensities of a known range.
    """
    if looks_like_dicom(path):
        from fedshift.data.dicom_picture import read_dicom_picture  # needs SimpleITK

        return read_dicom_picture(path)
    with open_file(path) as stream:
        return decode_picture(stream, str(path))


def decode_picture(stream: IO[bytes], name: str) -> Image.Image | DeepPicture:
    """Like `read_picture`, for an open file; errors refer to it as ``name``."""
    picture = decode_file(stream, name).picture
    return picture.convert("RGB") if isinstance(picture, Image.Image) else picture


class PictureFile(NamedTuple):
    """A decoded file.

    ``picture``: upright, 8-bit RGB, 8-bit grey (``L``), or grey with more bits. ``form``: of the file, such as PNG.
    ``stored``: columns and rows before it was turned. ``turned``: whether an EXIF tag has turned it. ``remarks``: what
    else was decided in reading it.
    """

    picture: Image.Image | DeepPicture
    form: str
    stored: tuple[int, int]
    turned: bool
    remarks: tuple[str, ...]


def decode_file(stream: IO[bytes], name: str) -> PictureFile:
    """Like `decode_picture`, with grey pictures as they are and what is known of the file."""
    try:
        with Image.open(stream) as stored:
            pictures = pictures_in(stored)
            if pictures > 1:
                raise DataError(
                    "several-pictures", f"{name} holds {pictures} pictures: save the one that is meant by itself"
                )
            modes, deep = [str(tile.args) for tile in stored.tile], has_deep_colours(stored)
            turned = turned_by_tag(stored)  # of PNG, it loads the file
            size = stored_size(stored)
            if fault := form_fault(stored):
                raise DataError("picture-form", f"{name} {fault}: {SAVE} bits, as PNG")
            stored.load()
            picture = ImageOps.exif_transpose(stored)
            remarks = _remarks(stored, deep=deep)
            if picture.mode in WITHOUT_COLOURS:
                raise DataError(
                    "picture-form", f"{name} has colours of the space {picture.mode}: save it as RGB or grey"
                )
            if picture.mode.startswith(("I", "F")):
                grey = _deep(stored, picture, name, packed=any("I;12" in mode for mode in modes))
                return PictureFile(grey, str(stored.format), size, turned, remarks)
            if deep:
                _require_upper_bits(picture, name)
            shown = "L" if picture.mode in GREY else "RGB"
            if picture.has_transparency_data:
                picture = (picture.convert("LA") if picture.mode == "La" else picture).convert("RGBA")
                if picture.getchannel("A").getextrema()[1] == 0:
                    what = f"{name} is transparent everywhere, so that nothing of it is seen"
                    raise DataError("picture-form", f"{what}: save it without transparency")
                picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
            return PictureFile(picture.convert(shown), str(stored.format), size, turned, remarks)
    except UNREADABLE as error:
        if isinstance(error, UnidentifiedImageError) and _is_tiff(stream):
            raise DataError(
                "picture-form", f"{name} is a TIFF of a form that is not read: {SAVE} bits, as PNG"
            ) from None
        reason = re.sub(r" ?<.*>", "", str(error)).strip()
        raise DataError("file-damaged", f"{name} cannot be read ({reason}): download it again") from None


def turned_by_tag(stored: Image.Image) -> bool:
    """Whether a file that is not loaded yet says that it is to be turned; a TIFF is, and no longer says so, then."""
    return stored.getexif().get(ORIENTATION, 1) in TURNED


def stored_size(stored: Image.Image) -> tuple[int, int]:
    """Columns and rows in a file that is not loaded yet; of a TIFF Pillow says those after a quarter turn."""
    on_side = stored.getexif().get(ORIENTATION, 1) in QUARTER_TURNS
    columns, rows = stored.size
    return (rows, columns) if on_side and isinstance(stored, TiffImagePlugin.TiffImageFile) else (columns, rows)


def form_fault(stored: ImageFile.ImageFile) -> str | None:
    """Why a file that is not loaded yet cannot be: Pillow would take its values for others; None for most files."""
    bits, forms = (tiff_tags(stored).get(tag, ()) for tag in (TIFF_BITS, TIFF_FORMAT))
    if SIGNED in forms and stored.mode == "L":
        return "holds 8 bits with a sign, which are not read"
    if stored.mode.startswith("RGB") and max(bits, default=8) > 8 and not has_deep_colours(stored):
        return f"holds each colour by itself with {max(bits)} bits, which is not read"
    if stored.format == "BMP" and stored.mode == "1":
        coding, row = stored.tile[0].codec_name, tuple(stored.tile[0].args or ())
        if coding != "raw" or int(row[1]) > (stored.width + 31 >> 3) & ~3:  # bytes of a row
            return "has a palette of black and white and several bits for each pixel, which is not read"
    return None


def has_deep_colours(stored: ImageFile.ImageFile) -> bool:
    """Whether a file that is not loaded yet has colours of more than 8 bits, of which Pillow keeps 8."""
    largest = _largest_of_ppm(stored)
    return any(";16" in str(tile.args) for tile in stored.tile) if largest is None else largest > 0xFF


def is_stretched(stored: ImageFile.ImageFile) -> bool:
    """Whether Pillow stretches the values of a file that is not loaded yet to all of 8 or 16 bits.

    That is right for intensities: the largest that the file can have is white. Numbers of classes become others.
    """
    largest = _largest_of_ppm(stored)
    if largest is not None:
        return largest != (0xFFFF if stored.mode == "I" else 0xFF)
    return any(re.search(r"\b(L;[24]|BGR;1[56])", str(tile.args)) for tile in stored.tile)


def _largest_of_ppm(stored: ImageFile.ImageFile) -> int | None:
    """The largest value that a PGM or PPM may have, which Pillow makes white; None where it does nothing to values."""
    args = next((tile.args for tile in stored.tile if tile.codec_name.startswith("ppm")), None)
    return int(args[1]) if isinstance(args, tuple) else None


def tiff_tags(stored: Image.Image) -> Mapping[int, Any]:
    return stored.tag_v2 if isinstance(stored, TiffImagePlugin.TiffImageFile) else {}


def _remarks(stored: Image.Image, *, deep: bool) -> tuple[str, ...]:
    """What was decided of a file's colours, and is said in a record."""
    remarks = {
        "has a colour profile, which is not applied": bool(stored.info.get("icc_profile")),
        "has a gamma, which is not applied": "gamma" in stored.info,
        "has transparent pixels, drawn on white": stored.has_transparency_data,
        "a palette, converted to its colours": stored.mode in ("P", "PA"),
        "CMYK, converted to RGB without a profile": stored.mode == "CMYK",
        "colours of 16 bits, of which the upper 8 are kept": deep and stored.mode.startswith("RGB"),
        "0 is white, turned": stored.mode in GREY and tiff_tags(stored).get(TIFF_PHOTOMETRIC) == WHITE_IS_ZERO,
        "has channels beside its colours, which are not used": NO_ALPHA in tiff_tags(stored).get(TIFF_EXTRA, ()),
    }
    return tuple(text for text, holds in remarks.items() if holds)


def picture_sha256(picture: Image.Image | DeepPicture) -> str:
    """SHA-256 of a picture's size and pixels; it does not depend on the file's format or name.

    Of a `DeepPicture` the stored values count, since its pixels depend on the other pictures of a site.
    """
    content = picture if isinstance(picture, Image.Image) else Image.fromarray(picture.values)
    digest = hashlib.sha256(repr(content.size).encode())
    digest.update(content.tobytes())
    return digest.hexdigest()


def resize_picture(picture: Image.Image, size: int) -> np.ndarray:
    """Resize to uint8 (channels, size, size), with 1 channel for a grey picture.

    Uses Pillow's antialiased bilinear filter, as torchvision's ``Resize((S, S))`` does for a PIL image, and so as the
    papers' loaders do.
    """
    small = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR))
    return small[None] if small.ndim == 2 else small.transpose(2, 0, 1)


def cached_picture(picture: Image.Image | DeepPicture, depth: Depth, *, size: int, channels: int) -> np.ndarray:
    """A picture as it is stored for training, (channels, size, size): uint8, or uint16 where it uses more than 8 bits.

    Raises:
        DataError: a value is larger than the range, or DICOM is in colour where ``channels`` is 1.
    """
    if isinstance(picture, DeepPicture):
        bits = depth.bits_of(picture)
        if bits > 8:
            return np.repeat(picture.resized(size, bits=bits)[None], channels, axis=0)
        picture = picture.shown(bits)
    if channels == 1 and DICOM in picture.info and np.ptp(np.asarray(picture), axis=2).any():
        what = f"{picture.info[DICOM]} is in colour, or has colours burnt in, and the task takes grey pictures"
        raise DataError("colour-voxels", f"{what}: export it in grey, or leave it out")
    return resize_picture(picture.convert("RGB" if channels == 3 else "L"), size)


def pictures_in(stored: Image.Image) -> int:
    """How many pictures a file has, without reduced copies in a TIFF and a telephone's further JPEGs (MPO)."""
    if stored.format == "MPO" or not getattr(stored, "is_animated", False):
        return _in_one_page(stored)
    if not isinstance(stored, TiffImagePlugin.TiffImageFile):
        return int(stored.n_frames)  # type: ignore[attr-defined]
    pages = [page.tag_v2.get(TIFF_REDUCED, 0) & 1 for page in ImageSequence.Iterator(stored)]  # type: ignore[attr-defined]
    stored.seek(0)
    return pages.count(0)


def _in_one_page(stored: Image.Image) -> int:
    """How many pictures a file of one page has: some programs write a stack one after another, and a page of the first.

    The description says how many there are (``images=`` of ImageJ, ``{"shape": …}`` of tifffile); one that a program
    has copied with the first alone does not count.
    """
    tags = tiff_tags(stored)
    description = str(tags.get(TIFF_DESCRIPTION, ""))
    if match := re.match(r"ImageJ=.*?^images=(\d+)", description, re.DOTALL | re.MULTILINE):
        pictures = int(match[1])
    elif match := re.match(r'\{"shape": \[(\d+(?:, ?\d+)*)\]', description):
        values = math.prod(map(int, match[1].split(",")))
        pictures = values // (stored.width * stored.height * len(stored.getbands()))
    else:
        return 1
    if stored.fp is None:  # type: ignore[attr-defined]
        return 1
    at = stored.fp.tell()  # type: ignore[attr-defined]
    length = stored.fp.seek(0, os.SEEK_END)  # type: ignore[attr-defined]
    stored.fp.seek(at)  # type: ignore[attr-defined]
    return pictures if pictures > 1 and pictures * sum(tags.get(TIFF_LENGTHS, ())) <= length else 1


def _deep(stored: Image.Image, picture: Image.Image, name: str, *, packed: bool) -> DeepPicture:
    """A grey picture's values; ``packed``: whether the file has 12 bits for each."""
    if picture.mode.startswith("F"):
        raise DataError(
            "picture-form", f"{name} holds fractional values, of which nothing says which one is white: {SAVE} bits"
        )
    if "transparency" in stored.info:
        raise DataError(
            "picture-form", f"{name} is grey with 16 bits and transparent pixels: save it without transparency"
        )
    values = np.asarray(picture)
    if values.min() < 0 or values.max() > 0xFFFF:
        raise DataError(
            "picture-form",
            f"{name} holds values from {values.min()} to {values.max()}, and those of a picture are from 0 to 65535: "
            f"{SAVE} bits and no sign",
        )
    turned = tiff_tags(stored).get(TIFF_PHOTOMETRIC) == WHITE_IS_ZERO
    return DeepPicture(name, values.astype(np.uint16), stored=12 if packed else 16, turned=turned)


def _require_upper_bits(picture: Image.Image, name: str) -> None:
    """Refuse a colour picture of 16 bits, of which Pillow keeps the upper 8, if these hold little of it."""
    colours = picture.getbands().index("A") if "A" in picture.getbands() else len(picture.getbands())
    if np.asarray(picture)[..., :colours].max() < FEWEST_OF_COLOUR:
        raise DataError(
            "picture-form", f"{name} is a colour picture of 16 bits that uses 14 of them at most: {SAVE} bits"
        )


def _is_tiff(stream: IO[bytes]) -> bool:
    stream.seek(0)
    return stream.read(4) in TIFF_BEGINS
