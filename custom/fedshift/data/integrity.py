"""Check scan files for truncation and damage, which ITK does not report.

ITK reads a truncated NIfTI file without an error, fills the missing slices with noise, and turns NaN into 0.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

import nibabel
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.openers import ImageOpener
from nibabel.spatialimages import HeaderDataError

from fedshift.data import meta_image
from fedshift.data.scan_file import NIFTI, suffix_of

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
DAMAGED = (ImageFileError, HeaderDataError, OSError, EOFError, ValueError, zlib.error, zstd.ZstdError)
"""What nibabel raises of a file that it cannot open."""
SINGULAR = 1e-6
"""Volume of a voxel, as a part of that of a box with its edges, at or below which it has none."""


def fault(path: Path) -> str | None:
    """Describe what is missing or damaged in a file; None if length and checksums are correct.

    NIfTI: the header's voxel count against the (decompressed) length, and gzip's checksum. MetaImage: the
    data file next to the header, its length, and zlib's checksum. Other formats are checked by their readers.
    """
    if suffix_of(path) in NIFTI:
        return _nifti(path)
    return _meta_image(path) if meta_image.is_meta_image(path) else None


def misnamed(path: Path) -> tuple[str, str] | None:
    """What is wrong with the name of a NIfTI file that is compressed and not called so, or the other way, and the mend.

    None if there is no such fault.
    """
    with path.open("rb") as file:  # fails where a file may not be read, whatever its format
        start = file.read(4)
    if suffix_of(path) not in NIFTI:
        return None
    named = next((end for end in PACKED if path.name.lower().endswith(end)), "")
    packed = next((end for end, magic in PACKED.items() if start.startswith(magic)), None)
    plain = path.name.removesuffix(path.name[-len(named) :]) if named else path.name
    if packed is not None and packed != named:
        return f"is compressed as {packed}", f"rename it to {plain}{packed}"
    if named and {int.from_bytes(start, "little"), int.from_bytes(start, "big")} & {348, 540}:
        return "is not compressed", f"rename it to {plain}"
    return None


def non_finite(path: Path) -> int:
    """Count the voxels of a NIfTI file that are NaN or infinite; 0 for any other format."""
    if suffix_of(path) not in NIFTI:
        return 0
    stored = nibabel.load(path).dataobj
    if not np.issubdtype(stored.dtype, np.floating):
        return 0
    return int(np.count_nonzero(~np.isfinite(stored.get_unscaled())))


def geometry_fault(path: Path) -> str | None:
    """Describe an affine or voxel sizes of a NIfTI file that place no voxel; None if there is no such fault or header.

    ITK replaces some of these by a geometry of its own, and passes on others.
    """
    if suffix_of(path) not in NIFTI:
        return None
    try:
        with ImageOpener(str(path)) as file:
            image = nibabel.load(path)
            # nibabel has mended what it read: 0 mm is 1 mm, -1 mm is 1 mm
            pixdim = image.header_class.from_fileobj(file, check=False)["pixdim"]
        affine, sizes = np.asarray(image.affine), np.asarray(pixdim, float)[1 : 1 + min(image.ndim, 3)]
    except DAMAGED:
        return None  # `fault` says what is wrong with it
    if not (np.isfinite(affine).all() and np.isfinite(sizes).all()):
        return "has an affine or voxel sizes in its header that are NaN or infinite"
    if (sizes <= 0).any():
        shown = " x ".join(f"{size:.4g}" for size in sizes)
        readers = "1 mm" if (sizes == 0).any() else "a mirrored axis, and others do not"
        return f"has voxels of {shown} mm in its header (pixdim), which some programs read as {readers}"
    axes = affine[:3, :3]
    if abs(np.linalg.det(axes)) <= SINGULAR * math.prod(np.linalg.norm(axes, axis=0).tolist()):
        return "has a singular affine, whose axes do not span a volume"
    return None


def _nifti(path: Path) -> str | None:
    name, length = path.name.lower(), path.stat().st_size
    try:
        if name.endswith(".gz"):
            length = _unpacked_length(path, 16 + zlib.MAX_WBITS)
        elif name.endswith(".zst"):
            length = _unpacked_zstd(path)
    except (zlib.error, zstd.ZstdError) as error:
        return f"its compressed data are damaged, {error}"
    if length < 0:
        return "its compressed data end too early"
    try:
        stored = nibabel.load(path).dataobj
        needed = int(stored.offset) + math.prod(stored.shape) * stored.dtype.itemsize
    except (ImageFileError, HeaderDataError, OSError, ValueError):
        return "it has no valid NIfTI header"
    return f"{needed - length} of {needed} bytes are missing" if length < needed else None


def _meta_image(path: Path) -> str | None:
    found = meta_image.fields(path)
    if found is None:
        return "it has no valid MetaImage header"
    header, start = found
    where = header["ElementDataFile"]
    if where.upper() == "LOCAL":
        data = path
    elif where.upper().startswith("LIST") or "%" in where:
        return None  # one file a slice: left to the reader
    else:
        data, start = path.parent / where, 0
    if not data.is_file():
        return f"its data file {where} is missing"
    with data.open("rb"):  # an error that names it, where it may not be read
        pass
    if header.get("CompressedData", "False").lower() == "true":
        try:
            return "its compressed data end too early" if _unpacked_length(data, 0, start) < 0 else None
        except zlib.error as error:
            return f"its compressed data are damaged, {error}"
    needed, there = _meta_bytes(header), data.stat().st_size - start
    if there >= needed:
        return None
    return (
        f"{needed - there} of {needed} bytes are missing"
        if data == path
        else (f"its data file {where} has {there} of {needed} bytes")
    )


def _meta_bytes(header: Mapping[str, str]) -> int:
    """How long the uncompressed data of a MetaImage are at least; 0 where its header does not say it."""
    if header.get("BinaryData", "True").lower() != "true":
        return 0
    try:
        voxels = math.prod(map(int, header["DimSize"].split())) * int(header.get("ElementNumberOfChannels", 1))
        return voxels * meta_image.BYTES[header["ElementType"].upper()]
    except (KeyError, ValueError):
        return 0


def _unpacked_zstd(path: Path) -> int:
    """Bytes after decompression, -1 if the data have no end."""
    length = 0
    with zstd.open(path, "rb") as file:
        try:
            while chunk := file.read(MOST_AT_ONCE):
                length += len(chunk)
        except EOFError:
            return -1
    return length


def _unpacked_length(path: Path, window: int, start: int = 0) -> int:
    """Bytes after decompression (``window`` as zlib takes it; 0: a zlib stream), -1 if the stream has no end."""
    length = 0
    unpack = zlib.decompressobj(window)
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(CHUNK):
            while chunk:
                length += len(unpack.decompress(chunk, MOST_AT_ONCE))
                chunk = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
                if unpack.eof:
                    if window == 0 or not chunk.startswith(GZIP):
                        return length  # what follows the stream's end is padding
                    unpack = zlib.decompressobj(window)  # gzip allows several members in one file
    return length if unpack.eof else -1
