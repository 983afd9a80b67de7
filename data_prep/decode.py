"""Picture files of any kind as upright 8-bit RGB, their content hash, and their place in an array.

Pictures may be RGB, grey, CMYK, with a palette, with transparency (shown on white), 16 bits deep, or turned by an
EXIF tag.
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
"""What Pillow raises over files that are damaged or no pictures."""


def read_picture(path: Path) -> Image.Image:
    """A file as upright 8-bit RGB.

    Raises:
        DataError: absent, not to be read, no picture, cut short, or of numbers that are no intensities.
    """
    with open_file(path) as stream:
        return decode_picture(stream, str(path))


def decode_picture(stream: IO[bytes], name: str) -> Image.Image:
    """As `read_picture`, of an open file; ``name`` is what errors call it."""
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
    """SHA-256 of size and pixels, the same for any file format or name."""
    digest = hashlib.sha256(repr(picture.size).encode())
    digest.update(picture.tobytes())
    return digest.hexdigest()


def resize_picture(picture: Image.Image, size: int) -> np.ndarray:
    """uint8 (channels, size, size), 1 channel of a grey picture.

    Pillow's antialiased bilinear filter is what torchvision's ``Resize((S, S))`` does to a PIL image and so what the
    papers' loaders do.
    """
    small = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR))
    return small[None] if small.ndim == 2 else small.transpose(2, 0, 1)


def _from_numbers(picture: Image.Image, name: str) -> Image.Image:
    """Grey of 16 bits to 8; Pillow itself would cut off all above 255."""
    values = np.asarray(picture)
    if picture.mode == "F" or values.min() < 0 or values.max() > 0xFFFF:
        raise DataError(f"{name} holds numbers of 32 bits, no intensities: save it as a picture of 8 or 16 bits")
    grey = (values.astype(np.uint32) + 128) // 257
    return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
