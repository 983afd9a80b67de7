"""Compressed files: which are, and how long they are unpacked; ITK reads one that is cut short without an error."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
PACKED = {".gz": GZIP, ".zst": ZSTD}
"""How compressed files begin, by the end of their name."""
CHUNK = 1 << 20
MOST_AT_ONCE = 16 << 20
"""Bytes that are decompressed at a time; a chunk can hold a thousand times its own length."""
BROKEN = (zlib.error, zstd.ZstdError)
"""What is raised of damaged data."""


def zstd_length(path: Path) -> int:
    """Bytes after decompression, -1 if the data have no end."""
    length = 0
    with zstd.open(path, "rb") as file:
        try:
            while chunk := file.read(MOST_AT_ONCE):
                length += len(chunk)
        except EOFError:
            return -1
    return length


def zlib_length(path: Path, *, gzip: bool, start: int = 0) -> int:
    """Bytes after decompression of gzip or a zlib stream, -1 if the data have no end."""
    length, window = 0, 16 + zlib.MAX_WBITS if gzip else 0
    unpack = zlib.decompressobj(window)
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(CHUNK):
            while chunk:
                length += len(unpack.decompress(chunk, MOST_AT_ONCE))
                chunk = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
                if unpack.eof:
                    if not gzip or not chunk.startswith(GZIP):
                        return length  # what follows the stream's end is padding
                    unpack = zlib.decompressobj(window)  # gzip allows several members in one file
    return length if unpack.eof else -1
