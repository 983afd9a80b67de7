"""Decode picture files to upright 8-bit RGB, hash their content and resize them to arrays.

Pictures may be RGB, grey, CMYK, palette images, have transparency (drawn on white), be 16 bits deep, or be rotated by
an EXIF tag.
"""

from __future__ import annotations

import hashlib
import re
import struct
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageOps

from data_prep.reading import open_file
from fedshift.schema.errors import DataError

UNREADABLE = (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)
"""What Pillow raises for files that are damaged or not pictures."""


def read_picture(path: Path) -> Image.Image:
    """Read a file as upright 8-bit RGB.

    Raises:
        DataError: the file does not exist, cannot be read, is not a picture, is cut short, or its values are not
            intensities.
    """
    with open_file(path) as stream:
        return decode_picture(stream, str(path))


def decode_picture(stream: IO[bytes], name: str) -> Image.Image:
    """Like `read_picture`, for an open file; errors refer to it as ``name``."""
    try:
        with Image.open(stream) as stored:
            stored.load()
            picture = ImageOps.exif_transpose(stored)
            if picture.mode.startswith(("I", "F")):
                return _from_numbers(picture, name)
            if picture.has_transparency_data:
                picture = picture.convert("RGBA")
                return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
            return picture.convert("RGB")
    except UNREADABLE as error:
        reason = re.sub(r" ?<.*>", "", str(error)).strip()
        raise DataError(f"{name} cannot be read ({reason}): download it again") from None


def picture_sha256(picture: Image.Image) -> str:
    """SHA-256 of a picture's size and pixels; it does not depend on the file's format or name."""
    digest = hashlib.sha256(repr(picture.size).encode())
    digest.update(picture.tobytes())
    return digest.hexdigest()


def resize_picture(picture: Image.Image, size: int) -> np.ndarray:
    """Resize to uint8 (channels, size, size), with 1 channel for a grey picture.

    Uses Pillow's antialiased bilinear filter, as torchvision's ``Resize((S, S))`` does for a PIL image, and so as the
    papers' loaders do.
    """
    small = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR))
    return small[None] if small.ndim == 2 else small.transpose(2, 0, 1)


def _from_numbers(picture: Image.Image, name: str) -> Image.Image:
    """Convert 16-bit grey to 8 bits. Pillow itself would clip all values above 255."""
    values = np.asarray(picture)
    if picture.mode == "F" or values.min() < 0 or values.max() > 0xFFFF:
        raise DataError(f"{name} holds 32-bit values outside 0 to 65535: save it as an 8-bit or 16-bit picture")
    grey = (values.astype(np.uint32) + 128) // 257
    return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
