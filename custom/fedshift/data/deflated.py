"""DICOM files whose data set is deflated (PS3.5, A.5): a small file may hold very much."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

DEFLATED = "1.2.840.10008.1.2.1.99"
"""The transfer syntax."""
MOST_WHOLE = 1 << 32
"""Bytes of a file that is read."""
STEP = 1 << 20
_META, _SYNTAX = 132, 0x0010
"""Where the elements of a file begin, which are never deflated up to the end of group 2; and one of that group."""
_LONG = (b"OB", b"OW", b"UN", b"SQ", b"UT")


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
    if content[_META - 4 : _META] != b"DICM":
        return 0
    at, syntax = _META, b""
    try:
        while struct.unpack_from("<H", content, at)[0] == 2:
            long = content[at + 4 : at + 6] in _LONG
            start = at + (12 if long else 8)
            length = struct.unpack_from("<I" if long else "<H", content, start - (4 if long else 2))[0]
            if struct.unpack_from("<H", content, at + 2)[0] == _SYNTAX:
                syntax = content[start : start + length]
            at = start + length
    except struct.error:
        return 0
    return at if syntax.strip(b" \0").decode("ascii", "replace") == DEFLATED else 0
