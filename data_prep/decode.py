"""Decode picture files to upright 8-bit RGB, hash their content and resize them to arrays.

Pictures may be RGB, grey, CMYK, palette images, have transparency (drawn on white), or be rotated by an EXIF tag. Grey
ones with more than 8 bits are a `DeepPicture` first: which range of values they have is known from all of a site.
"""

from __future__ import annotations

import hashlib
import re
import struct
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageOps, ImageSequence, TiffImagePlugin, UnidentifiedImageError

from data_prep.depth import DeepPicture
from data_prep.reading import open_file
from fedshift.schema.errors import DataError

UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)
"""What Pillow raises for files that are damaged or not pictures."""
WITHOUT_COLOURS = ("LAB", "HSV")
"""Modes that Pillow does not convert to RGB as they are meant."""
TIFF_REDUCED, TIFF_PHOTOMETRIC, WHITE_IS_ZERO = 254, 262, 0
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
    with open_file(path) as stream:
        return decode_picture(stream, str(path))


def decode_picture(stream: IO[bytes], name: str) -> Image.Image | DeepPicture:
    """Like `read_picture`, for an open file; errors refer to it as ``name``."""
    try:
        with Image.open(stream) as stored:
            pictures = _pictures_in(stored)
            if pictures > 1:
                raise DataError(
                    "several-pictures", f"{name} holds {pictures} pictures: save the one that is meant by itself"
                )
            modes = [str(tile.args) for tile in stored.tile]
            stored.load()
            picture = ImageOps.exif_transpose(stored)
            if picture.mode in WITHOUT_COLOURS:
                raise DataError(
                    "picture-form", f"{name} has colours of the space {picture.mode}: save it as RGB or grey"
                )
            if picture.mode.startswith(("I", "F")):
                return _deep(stored, picture, name, packed=any("I;12" in mode for mode in modes))
            if any(";16" in mode for mode in modes):
                _require_upper_bits(picture, name)
            if picture.has_transparency_data:
                picture = (picture.convert("LA") if picture.mode == "La" else picture).convert("RGBA")
                return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
            return picture.convert("RGB")
    except UNREADABLE as error:
        if isinstance(error, UnidentifiedImageError) and _is_tiff(stream):
            raise DataError(
                "picture-form", f"{name} is a TIFF of a form that is not read: {SAVE} bits, as PNG"
            ) from None
        reason = re.sub(r" ?<.*>", "", str(error)).strip()
        raise DataError("file-damaged", f"{name} cannot be read ({reason}): download it again") from None


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


def _pictures_in(stored: Image.Image) -> int:
    """How many pictures a file has, without reduced copies in a TIFF and a telephone's further JPEGs (MPO)."""
    if stored.format == "MPO" or not getattr(stored, "is_animated", False):
        return 1
    if not isinstance(stored, TiffImagePlugin.TiffImageFile):
        return int(stored.n_frames)  # type: ignore[attr-defined]
    pages = [page.tag_v2.get(TIFF_REDUCED, 0) & 1 for page in ImageSequence.Iterator(stored)]  # type: ignore[attr-defined]
    stored.seek(0)
    return pages.count(0)


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
    tags = stored.tag_v2 if isinstance(stored, TiffImagePlugin.TiffImageFile) else {}
    return DeepPicture(
        name, values.astype(np.uint16), stored=12 if packed else 16, turned=tags.get(TIFF_PHOTOMETRIC) == WHITE_IS_ZERO
    )


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
