"""DICOM files whose data set is deflated (PS3.5, A.5): how much is in them, before somebody inflates all of it."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

META = 132
"""Where the elements of a file begin, which are never deflated. The first says how long they are."""
DEFLATED = b"1.2.840.10008.1.2.1.99"
"""The transfer syntax."""
MOST_WHOLE = 1 << 32
"""Bytes of a file that is read."""
STEP = 1 << 20


def is_too_large(path: Path) -> bool:
    """Whether a deflated file has more than `MOST_WHOLE` bytes in it; nothing of it is kept."""
    with path.open("rb") as file:
        start = file.read(STEP)
        end = _end_of_meta(start)
        if not end:
            return False
        unpack, length, packed = zlib.decompressobj(-zlib.MAX_WBITS), 0, start[end:]
        try:
            while packed and not unpack.eof and length <= MOST_WHOLE:
                length += len(unpack.decompress(packed, STEP))
                packed = unpack.unconsumed_tail or file.read(STEP)
        except zlib.error:  # whoever reads it says that it is damaged
            return False
    return length > MOST_WHOLE


def _end_of_meta(content: bytes) -> int:
    """Where the deflated part of a file begins; 0 if it has none."""
    if content[META - 4 : META] != b"DICM" or content[META : META + 8] != b"\x02\0\0\0UL\x04\0":
        return 0
    end = META + 12 + int(struct.unpack_from("<I", content, META + 8)[0])
    return end if DEFLATED in content[META:end] else 0
