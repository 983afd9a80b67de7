"""A DICOM file by its bytes: what it says that it is, and whether a slice has the pixels and the place that it names.

Libraries read what they can: they replace a spacing, position or orientation that is missing or no number by 1, 0 or
the identity, take the last of two elements of one name, and where there are fewer pixels than rows times columns fill
the rest with whatever is in memory. Messages hold no value of a tag but lengths.

The elements are those of DICOM PS3.5 (2024), section 7, little and big endian, also deflated (section A.5).
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from fedshift.data.dicom_objects import MASKS, MULTIFRAME, NO_SCANS
from fedshift.data.scan_file import DATA_SUFFIXES, ScanError, reading, suffix_of
from fedshift.schema.errors import DataError

MAGIC, START = b"DICM", 132  # the word before the first element, and where that begins
IMPLICIT, EXPLICIT, BIG_ENDIAN = "1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2"
DEFLATED = "1.2.840.10008.1.2.1.99"
COMPRESSED = ("1.2.840.10008.1.2.4.", "1.2.840.10008.1.2.5", "1.2.840.10008.1.2.8.")
"""Transfer syntaxes: of uncompressed pixels, of a whole file that is compressed, and what those of compressed pixels
begin with."""
MOST_INFLATED, MOST_OF_A_HEAD = 2**30, 2**24
"""Bytes of a deflated slice, and of those in which a deflated file says what it is: a small one may hold very many."""
MOST_WHOLE = 1 << 32  # bytes of any file that is read, when it is inflated
STEP = 1 << 20
LONG = frozenset({b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV"})
"""Value representations whose length has four bytes."""
OPEN = 0xFFFFFFFF  # a length that is not named: the value ends with a delimiter
ITEM, ITEM_END, SEQUENCE_END = 0xFFFEE000, 0xFFFEE00D, 0xFFFEE0DD
DEEPEST = 64  # sequences within sequences
CLASS, INSTANCE, SERIES, CONCATENATION = 0x00080016, 0x00080018, 0x0020000E, 0x00209161
SYNTAX, SAMPLES, FRAMES, ROWS, COLUMNS = 0x00020010, 0x00280002, 0x00280008, 0x00280010, 0x00280011
BITS, FLOATS, DOUBLES, PIXELS = 0x00280100, 0x7FE00008, 0x7FE00009, 0x7FE00010
POSITION, ORIENTATION, SPACING = 0x00200032, 0x00200037, 0x00280030
NUMBERS = {POSITION: ("position", 3), ORIENTATION: ("orientation", 6), SPACING: ("pixel spacing", 2)}
WANTED = frozenset(
    {CLASS, INSTANCE, SERIES, CONCATENATION, SYNTAX, SAMPLES, FRAMES, ROWS, COLUMNS, BITS, *NUMBERS}
    | {FLOATS, DOUBLES, PIXELS}
)
SMALLEST, LARGEST = 1e-3, 1e3  # millimetres between pixels or slices
FARTHEST = 1e6  # millimetres; a position beyond is none
HEAD = 1 << 18  # bytes of a file in which it says what it is, nearly always
TOLERANCE = 1e-3  # of a direction cosine
MOST_KNOWN = 1 << 16  # files of which a process keeps what they are, some 50 MB


class DicomFault(DataError):
    """What is wrong with DICOM files, as the rest of a sentence about the slice, the file or the folder."""


@dataclass(frozen=True)
class Slice:
    """What is needed of one slice: voxels, and numbers in millimetres and cosines."""

    rows: int
    columns: int
    position: np.ndarray
    orientation: np.ndarray
    spacing: np.ndarray
    instance: bytes
    """The slice's own UID."""
    content: bytes
    """A digest of its pixels and position."""


@dataclass(frozen=True)
class Identity:
    """What a DICOM file says that it is: UIDs, empty where it does not say so."""

    sop_class: str
    instance: str
    series: str
    concatenation: str = ""
    """Of all files that one enhanced image was split into (PS3.3, C.7.6.16.1.2)."""
    syntax: str = ""
    """The transfer syntax."""

    @property
    def is_scan(self) -> bool:
        """Whether it may be an image that is segmented: no mask, report or plan."""
        return bool(self.series) and not self.is_no_scan

    @property
    def is_no_scan(self) -> bool:
        return self.sop_class.startswith(NO_SCANS)

    @property
    def is_multiframe(self) -> bool:
        return self.sop_class in MULTIFRAME


def looks_like_dicom(path: Path) -> bool:
    """Whether a file is a slice by its content, or should be one by its name. A DICOMDIR is a list of others."""
    try:
        with reading(path):
            if not path.is_file() or path.name.startswith(".") or path.name.upper() == "DICOMDIR":
                return False
            if path.suffix.lower() in (".dcm", ".ima"):
                return True
            return _has_magic(path, _stamp(path))
    except ScanError:
        # No DICOM by its name: whoever reads it says what is wrong, and may pass over its case.
        if suffix_of(path) or path.suffix.lower() in DATA_SUFFIXES:
            return False
        raise


def identify(path: Path) -> Identity | None:
    """What a DICOM file is; None if it is none, or is damaged. A file is read again only if it has changed."""
    if not looks_like_dicom(path):
        return None
    with reading(path):
        return _read_identity(path, _stamp(path))


def _stamp(path: Path) -> tuple[int, ...]:
    """Numbers that are others after a file has changed."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@lru_cache(maxsize=MOST_KNOWN)
def _has_magic(path: Path, stamp: tuple[int, ...]) -> bool:
    with path.open("rb") as file:
        return file.read(START)[-len(MAGIC) :] == MAGIC


@lru_cache(maxsize=MOST_KNOWN)
def _read_identity(path: Path, stamp: tuple[int, ...]) -> Identity | None:
    elements: dict[int, bytes] = {}
    with path.open("rb") as file:
        content = file.read(HEAD)
        try:
            _read_elements(content, elements, last=CONCATENATION)
        except DicomFault:
            if SERIES not in elements:  # a very long sequence before the series' UID, or damage
                elements.clear()
                try:
                    _read_elements(content + file.read(), elements, last=SERIES)
                except DicomFault:
                    return None
    tags = (CLASS, INSTANCE, SERIES, CONCATENATION, SYNTAX)
    return Identity(*(elements.get(tag, b"").strip(b" \0").decode("ascii", "replace") for tag in tags))


def is_dicom_mask(path: Path) -> bool:
    """Whether a file is a DICOM SEG or an RT Structure Set."""
    identity = identify(path)
    return identity is not None and identity.sop_class in MASKS


def is_too_large(path: Path) -> bool:
    """Whether a deflated file (PS3.5, A.5) has more than `MOST_WHOLE` bytes in it; nothing of it is kept."""
    identity = identify(path)
    if identity is not None and identity.syntax != DEFLATED:
        return False
    with path.open("rb") as file:
        start = file.read(STEP)
        end = _start_of_deflated(start)
        if end is None:
            return False
        unpack, length, packed = zlib.decompressobj(-zlib.MAX_WBITS), 0, start[end:]
        try:
            while packed and not unpack.eof and length <= MOST_WHOLE:
                length += len(unpack.decompress(packed, STEP))
                packed = unpack.unconsumed_tail or file.read(STEP)
        except zlib.error:  # whoever reads it says that it is damaged
            return False
    return length > MOST_WHOLE


def _start_of_deflated(content: bytes) -> int | None:
    """Where the deflated part of a file begins, after the elements of group 2; None if it has none."""
    if content[START - len(MAGIC) : START] != MAGIC:
        return None
    at, elements = START, {SYNTAX: b""}
    try:
        while struct.unpack_from("<H", content, at)[0] == 2:
            tag, start, length = _head(content, at, explicit=True, order="<")
            at = start + length
            if tag == SYNTAX:
                elements[SYNTAX] = content[start:at]
    except struct.error:
        return None
    return at if _syntax(elements) == DEFLATED else None


def read_slice(content: bytes) -> Slice:
    elements: dict[int, bytes] = {}
    _read_elements(content, elements, last=PIXELS)
    order: Literal["little", "big"] = "big" if _syntax(elements) == BIG_ENDIAN else "little"
    rows, columns, bits = (_whole(elements, tag, order) for tag in (ROWS, COLUMNS, BITS))
    if (_whole(elements, SAMPLES, order) if SAMPLES in elements else 1) != 1:
        raise DicomFault("colour-voxels", "with several values per pixel, as in colour")
    if elements.get(FRAMES, b"1").strip(b" \0") != b"1":
        raise DicomFault("several-frames", "that holds several frames")
    if not rows or not columns:
        raise DicomFault("pixels-missing", "without pixels")
    _check_pixels(elements, rows * columns * bits)
    position, orientation, spacing = (_numbers(elements, tag) for tag in (POSITION, ORIENTATION, SPACING))
    if not ((spacing >= SMALLEST) & (spacing <= LARGEST)).all():
        raise DicomFault("voxel-size", f"whose pixel spacing is not between {SMALLEST:g} and {LARGEST:g} mm")
    axes = orientation.reshape(2, 3)
    if not np.allclose(axes @ axes.T, np.eye(2), rtol=0, atol=10 * TOLERANCE):
        raise DicomFault("orientation", "whose orientation is not two directions at right angles")
    digest = hashlib.sha256(position.tobytes() + (_pixels(elements) or content)).digest()
    return Slice(rows, columns, position, orientation, spacing, elements.get(INSTANCE, b"").strip(b" \0"), digest)


def _check_pixels(elements: Mapping[int, bytes], bits: int) -> None:
    pixels = _pixels(elements)
    if pixels is None:
        raise DicomFault("pixels-missing", "without pixels")
    if _syntax(elements).startswith(COMPRESSED):
        if pixels:
            raise DicomFault("compression-name", "that says its pixels are compressed, which they are not")
    elif len(pixels) != (bits + 15) // 16 * 2:
        raise DicomFault("pixels-missing", f"with {len(pixels)} bytes of pixels, by its size it has {bits // 8}")


def _pixels(elements: Mapping[int, bytes]) -> bytes | None:
    return next((elements[tag] for tag in (PIXELS, FLOATS, DOUBLES) if tag in elements), None)


def _syntax(elements: Mapping[int, bytes]) -> str:
    return elements[SYNTAX].strip(b" \0").decode("ascii", "replace")


def _read_elements(content: bytes, elements: dict[int, bytes], *, last: int) -> None:
    """Add the values of the `WANTED` elements up to ``last`` to ``elements``; compressed pixels are empty."""
    if content[START - len(MAGIC) : START] != MAGIC:
        raise DicomFault("not-dicom", "that is no DICOM file")
    at, explicit, order, is_head = START, True, "<", True
    try:
        while at < len(content) and last not in elements:
            if is_head and SYNTAX in elements and struct.unpack_from("<H", content, at)[0] != 2:
                is_head = False
                explicit, order = _encoding(_syntax(elements))
                if _syntax(elements) == DEFLATED:
                    content, at = _inflate(content[at:], whole=last == PIXELS), 0
            tag, start, length = _head(content, at, explicit=explicit, order=order)
            if tag > last:
                break
            unknown = content[at + 4 : at + 6] == b"UN"  # what is in it has no value representations
            if tag in elements:
                raise DicomFault("element-twice", "that has an element of its geometry or its pixels twice")
            inside = explicit and not unknown
            at = start + length if length != OPEN else _end_of_open(content, start, explicit=inside, order=order)
            if at > len(content):
                raise DicomFault("file-damaged", "that ends too early")
            if tag in WANTED:
                elements[tag] = content[start:at] if length != OPEN else b""
    except struct.error:
        raise DicomFault("file-damaged", "that ends too early") from None
    if SYNTAX not in elements:
        raise DicomFault("compression-unknown", "that does not name its transfer syntax")


def _encoding(syntax: str) -> tuple[bool, str]:
    """Whether value representations are written, and the order of bytes."""
    if syntax not in (IMPLICIT, EXPLICIT, BIG_ENDIAN, DEFLATED) and not syntax.startswith(COMPRESSED):
        raise DicomFault("compression-not-read", "in a transfer syntax that is not read here")
    return syntax != IMPLICIT, ">" if syntax == BIG_ENDIAN else "<"


def _inflate(content: bytes, *, whole: bool) -> bytes:
    """What a deflated file holds, or, if the ``whole`` is not wanted, the beginning of it."""
    reader = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        inflated = reader.decompress(content, MOST_INFLATED if whole else MOST_OF_A_HEAD)
    except zlib.error:
        raise DicomFault("file-damaged", "that is damaged where it is deflated") from None
    if whole and reader.unconsumed_tail:
        raise DicomFault("too-large", f"that holds more than {MOST_INFLATED:,} bytes where it is deflated")
    return inflated


def _head(content: bytes, at: int, *, explicit: bool, order: str) -> tuple[int, int, int]:
    group, element = struct.unpack_from(f"{order}HH", content, at)
    tag = group << 16 | element
    if not explicit or tag in (ITEM, ITEM_END, SEQUENCE_END):
        return tag, at + 8, struct.unpack_from(f"{order}I", content, at + 4)[0]
    if content[at + 4 : at + 6] in LONG:
        return tag, at + 12, struct.unpack_from(f"{order}I", content, at + 8)[0]
    return tag, at + 8, struct.unpack_from(f"{order}H", content, at + 6)[0]


def _end_of_open(content: bytes, at: int, *, explicit: bool, order: str) -> int:
    """Where a sequence of open length ends, or compressed pixels."""
    ends = [SEQUENCE_END]
    while ends:
        if len(ends) > DEEPEST:
            raise DicomFault("too-deep", "with sequences nested too deeply")
        tag, start, length = _head(content, at, explicit=explicit, order=order)
        if tag == ends[-1]:
            ends.pop()
            at = start
        elif length == OPEN:
            ends.append(ITEM_END if tag == ITEM else SEQUENCE_END)
            at = start
        else:
            at = start + length
    return at


def _whole(elements: Mapping[int, bytes], tag: int, order: Literal["little", "big"]) -> int:
    value = elements.get(tag)
    if value is None or len(value) != 2:
        raise DicomFault("size-missing", "that does not say its size")
    return int.from_bytes(value, order)


def _numbers(elements: Mapping[int, bytes], tag: int) -> np.ndarray:
    name, count = NUMBERS[tag]
    try:
        numbers = np.array([float(part) for part in elements.get(tag, b"").strip(b" \0").split(b"\\")])
    except ValueError:
        numbers = np.array([])
    if len(numbers) != count or not (np.abs(numbers) <= FARTHEST).all():  # NaN is not, either
        raise DicomFault("place-missing", f"whose {name} is missing or is not {count} such numbers")
    return numbers
