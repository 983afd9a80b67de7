"""Check the slices of a DICOM series before ITK reads them as one volume.

ITK reads what it can: it replaces a spacing, position or orientation that is missing or no number by 1, 0 or the
identity, leaves out slices that it cannot read, takes the geometry of the first slice for all, and where there are
fewer pixels than rows times columns it fills the rest with whatever is in memory. Messages hold no value of a tag but
lengths.

The elements are those of DICOM PS3.5 (2024), section 7, little endian.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedshift.data.deflated import inflated_head
from fedshift.data.dicom_classes import is_multiframe, is_no_scan
from fedshift.data.scan_file import DATA_SUFFIXES, ScanError, reading, suffix_of

MAGIC, START = b"DICM", 132
"""The word before the first element, and where that begins."""
IMPLICIT, EXPLICIT = "1.2.840.10008.1.2", "1.2.840.10008.1.2.1"
COMPRESSED = ("1.2.840.10008.1.2.4.", "1.2.840.10008.1.2.5", "1.2.840.10008.1.2.8.")
"""Transfer syntaxes: of uncompressed pixels, and what those of compressed pixels begin with."""
LONG = frozenset({b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV"})
"""Value representations whose length has four bytes."""
OPEN = 0xFFFFFFFF
"""A length that is not named: the value ends with a delimiter."""
ITEM, ITEM_END, SEQUENCE_END = 0xFFFEE000, 0xFFFEE00D, 0xFFFEE0DD
DEEPEST = 64
"""Sequences within sequences."""
CLASS, INSTANCE, SERIES = 0x00080016, 0x00080018, 0x0020000E
SYNTAX, SAMPLES, FRAMES, ROWS, COLUMNS = 0x00020010, 0x00280002, 0x00280008, 0x00280010, 0x00280011
BITS, PIXELS = 0x00280100, 0x7FE00010
POSITION, ORIENTATION, SPACING = 0x00200032, 0x00200037, 0x00280030
NUMBERS = {POSITION: ("position", 3), ORIENTATION: ("orientation", 6), SPACING: ("pixel spacing", 2)}
WANTED = frozenset({CLASS, INSTANCE, SERIES, SYNTAX, SAMPLES, FRAMES, ROWS, COLUMNS, BITS, PIXELS, *NUMBERS})
SMALLEST, LARGEST = 1e-3, 1e3
"""Millimetres between pixels or slices."""
FARTHEST = 1e6
"""Millimetres; a position beyond is none."""
UNEVEN = 0.1
"""By what part of the median two distances between slices may differ, and a slice may lie beside the one before it."""
HEAD = 1 << 18
"""Bytes of a file in which it says what it is, nearly always."""
TOLERANCE = 1e-3
"""Of a direction cosine, and relative of a pixel spacing."""


class SeriesFault(Exception):
    """What is wrong with a series, as the rest of a sentence about its folder."""


class _Fault(Exception):
    """What is wrong with one slice."""


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
    """What a DICOM file says that it is: three UIDs, empty where it does not say so."""

    sop_class: str
    instance: str
    series: str

    @property
    def is_scan(self) -> bool:
        """Whether it may be an image that is segmented: no mask, report or plan."""
        return bool(self.series) and not is_no_scan(self.sop_class)

    @property
    def is_multiframe(self) -> bool:
        """Whether the file is a whole volume."""
        return is_multiframe(self.sop_class)


def looks_like_dicom(path: Path) -> bool:
    """Whether a file is a slice by its content, or should be one by its name. A DICOMDIR is a list of others.

    Raises:
        ScanError: it may not be read, and its name does not say what it is.
    """
    try:
        with reading(path):
            if not path.is_file() or path.name.startswith(".") or path.name.upper() == "DICOMDIR":
                return False
            if path.suffix.lower() in (".dcm", ".ima"):
                return True
            with path.open("rb") as file:
                return file.read(START)[-len(MAGIC) :] == MAGIC
    except ScanError:
        # No DICOM by its name: whoever reads it says what is wrong, and may pass over its case.
        if suffix_of(path) or path.suffix.lower() in DATA_SUFFIXES:
            return False
        raise


def identify(path: Path) -> Identity | None:
    """What a DICOM file is; None if it is none, or is damaged.

    Raises:
        ScanError: it may not be read.
    """
    if not looks_like_dicom(path):
        return None
    with reading(path), path.open("rb") as file:
        content = file.read(HEAD)
        try:
            found = _elements(inflated_head(content), last=SERIES)
        except _Fault:
            try:  # a very long sequence before the series' UID
                found = _elements(inflated_head(content + file.read()), last=SERIES)
            except _Fault:
                return None
    return Identity(
        *(found.get(tag, b"").strip(b" \0").decode("ascii", "replace") for tag in (CLASS, INSTANCE, SERIES))
    )


def check_series(
    folder: Path, files: Sequence[Path], *, others: Sequence[Path] = (), most_voxels: int
) -> tuple[tuple[float, float, float], tuple[Path, ...]]:
    """Check that the files of a series are one volume, before it is read.

    Args:
        folder: where the series is; every DICOM file in it must be in ``files`` or ``others``.
        files: the series' files in the order of slices, at least two. Copies of one are left out: files of the same
            instance with the same pixels at the same place.
        others: files of other series.
        most_voxels: largest number of voxels of a volume.

    Returns:
        Millimetres between columns, rows and slices; and the files without copies, in the order of slices.

    Raises:
        SeriesFault: they are not.
    """
    known = {f.name for f in (*files, *others)}
    unread = sorted({entry.name for entry in folder.iterdir() if looks_like_dicom(entry)} - known)
    if unread:
        raise SeriesFault(f"has {len(unread)} file(s) such as {unread[0]} that cannot be read as a slice of the series")
    slices: list[Slice] = []
    for file in files:
        try:
            slices.append(_read(file.read_bytes()))
        except _Fault as fault:
            raise SeriesFault(f"has a slice {file.name} {fault}") from None
    files, slices = _without_copies(files, slices)
    first = slices[0]
    if first.rows * first.columns * len(slices) > most_voxels:
        size = f"{first.columns} x {first.rows} x {len(slices)}"
        raise SeriesFault(f"has {size} voxels, at most {most_voxels:,} are read")
    for file, slice_ in zip(files, slices, strict=True):
        if (slice_.rows, slice_.columns) != (first.rows, first.columns):
            raise SeriesFault(f"has a slice {file.name} of another size")
        if not np.allclose(slice_.spacing, first.spacing, rtol=TOLERANCE, atol=0):
            raise SeriesFault(f"has a slice {file.name} with another pixel spacing")
        if not np.allclose(slice_.orientation, first.orientation, rtol=0, atol=TOLERANCE):
            raise SeriesFault(f"has a slice {file.name} with another orientation")
    between_rows, between_columns = first.spacing.tolist()
    return (between_columns, between_rows, _distance(slices)), tuple(files)


def _without_copies(files: Sequence[Path], slices: Sequence[Slice]) -> tuple[list[Path], list[Slice]]:
    """Files and slices, of each instance once; in the order of their places if one was left out.

    Raises:
        SeriesFault: two files say that they are the same instance and differ, or fewer than two slices are left.
    """
    kept: list[tuple[Path, Slice]] = []
    first: dict[bytes, Slice] = {}
    for file, slice_ in zip(files, slices, strict=True):
        twin = first.setdefault(slice_.instance, slice_) if slice_.instance else slice_
        if twin is not slice_ and twin.content != slice_.content:
            raise SeriesFault(f"has a slice {file.name} with the UID of another slice and other content")
        if twin is slice_:
            kept.append((file, slice_))
    if len(kept) < 2:
        raise SeriesFault(f"has {len(kept)} slice(s)")
    if len(kept) < len(files):  # copies may have confused the order
        normal = np.cross(slices[0].orientation[:3], slices[0].orientation[3:])
        kept.sort(key=lambda pair: float(pair[1].position @ normal))
    return [file for file, _ in kept], [slice_ for _, slice_ in kept]


def _distance(slices: Sequence[Slice]) -> float:
    """Millimetres between slices.

    Raises:
        SeriesFault: they are uneven, or not along the slices' normal.
    """
    normal = np.cross(slices[0].orientation[:3], slices[0].orientation[3:])
    steps = [after.position - before.position for before, after in itertools.pairwise(slices)]
    gaps = [float(np.linalg.norm(step)) for step in steps]
    usual = float(np.median(gaps))
    if max(gaps) - min(gaps) > UNEVEN * usual:
        raise SeriesFault(f"has slices {min(gaps):.2f} to {max(gaps):.2f} mm apart, so one is missing or duplicated")
    if not SMALLEST <= usual <= LARGEST:
        raise SeriesFault(f"has slices {usual:.3g} mm apart")
    beside = max(float(np.linalg.norm(step - (step @ normal) * normal)) for step in steps)
    if beside > UNEVEN * usual:
        raise SeriesFault(f"has slices shifted against each other by {beside:.2f} mm, as with a tilted gantry")
    return usual


def _read(content: bytes) -> Slice:
    """Read and check one slice.

    Raises:
        _Fault: what is wrong with it.
    """
    found = _elements(content)
    rows, columns, bits = (_whole(found, tag) for tag in (ROWS, COLUMNS, BITS))
    if _whole(found, SAMPLES, default=1) != 1:
        raise _Fault("with several values per pixel, as in colour")
    if found.get(FRAMES, b"1").strip(b" \0") != b"1":
        raise _Fault("that holds several frames")
    if not rows or not columns:
        raise _Fault("without pixels")
    _check_pixels(found, rows * columns * bits)
    position, orientation, spacing = (_numbers(found, tag) for tag in (POSITION, ORIENTATION, SPACING))
    if not ((spacing >= SMALLEST) & (spacing <= LARGEST)).all():
        raise _Fault(f"whose pixel spacing is not between {SMALLEST:g} and {LARGEST:g} mm")
    axes = orientation.reshape(2, 3)
    if not np.allclose(axes @ axes.T, np.eye(2), rtol=0, atol=10 * TOLERANCE):
        raise _Fault("whose orientation is not two directions at right angles")
    digest = hashlib.sha256(position.tobytes() + (found[PIXELS] or content)).digest()
    return Slice(rows, columns, position, orientation, spacing, found.get(INSTANCE, b"").strip(b" \0"), digest)


def _check_pixels(found: Mapping[int, bytes], bits: int) -> None:
    syntax = found[SYNTAX].strip(b" \0").decode("ascii", "replace")
    pixels = found.get(PIXELS)
    if pixels is None:
        raise _Fault("without pixels")
    if syntax.startswith(COMPRESSED):
        if pixels:
            raise _Fault("that says its pixels are compressed, which they are not")
    elif len(pixels) != (bits + 15) // 16 * 2:
        raise _Fault(f"with {len(pixels)} bytes of pixels, by its size it has {bits // 8}")


def _elements(content: bytes, last: int = PIXELS) -> dict[int, bytes]:
    """The values of the `WANTED` elements up to ``last``; compressed pixels are empty."""
    if content[START - len(MAGIC) : START] != MAGIC:
        raise _Fault("that is no DICOM file")
    found: dict[int, bytes] = {}
    at, explicit = START, True
    try:
        while at < len(content) and last not in found:
            if explicit and SYNTAX in found and struct.unpack_from("<H", content, at)[0] != 2:
                explicit = _is_explicit(found[SYNTAX])
            tag, start, length = _head(content, at, explicit=explicit)
            if tag > last:
                break
            unknown = content[at + 4 : at + 6] == b"UN"  # what is in it has no value representations
            if tag in found:
                raise _Fault("that has an element of its geometry or its pixels twice")
            at = start + length if length != OPEN else _end_of_open(content, start, explicit=explicit and not unknown)
            if at > len(content):
                raise _Fault("that ends too early")
            if tag in WANTED:
                found[tag] = content[start:at] if length != OPEN else b""
    except struct.error:
        raise _Fault("that ends too early") from None
    if SYNTAX not in found:
        raise _Fault("that does not name its transfer syntax")
    return found


def _is_explicit(syntax: bytes) -> bool:
    name = syntax.strip(b" \0").decode("ascii", "replace")
    if name not in (IMPLICIT, EXPLICIT) and not name.startswith(COMPRESSED):
        raise _Fault("in a transfer syntax that is not read here")
    return name != IMPLICIT


def _head(content: bytes, at: int, *, explicit: bool) -> tuple[int, int, int]:
    """An element's tag, where its value starts, and its length."""
    group, element = struct.unpack_from("<HH", content, at)
    tag = group << 16 | element
    if not explicit or tag in (ITEM, ITEM_END, SEQUENCE_END):
        return tag, at + 8, struct.unpack_from("<I", content, at + 4)[0]
    if content[at + 4 : at + 6] in LONG:
        return tag, at + 12, struct.unpack_from("<I", content, at + 8)[0]
    return tag, at + 8, struct.unpack_from("<H", content, at + 6)[0]


def _end_of_open(content: bytes, at: int, *, explicit: bool) -> int:
    """Where a sequence of open length ends, or compressed pixels."""
    ends = [SEQUENCE_END]
    while ends:
        if len(ends) > DEEPEST:
            raise _Fault("with sequences nested too deeply")
        tag, start, length = _head(content, at, explicit=explicit)
        if tag == ends[-1]:
            ends.pop()
            at = start
        elif length == OPEN:
            ends.append(ITEM_END if tag == ITEM else SEQUENCE_END)
            at = start
        else:
            at = start + length
    return at


def _whole(found: Mapping[int, bytes], tag: int, *, default: int | None = None) -> int:
    value = found.get(tag)
    if value is None and default is not None:
        return default
    if value is None or len(value) != 2:
        raise _Fault("that does not say its size")
    return int.from_bytes(value, "little")


def _numbers(found: Mapping[int, bytes], tag: int) -> np.ndarray:
    name, count = NUMBERS[tag]
    try:
        numbers = np.array([float(part) for part in found.get(tag, b"").strip(b" \0").split(b"\\")])
    except ValueError:
        numbers = np.array([])
    if len(numbers) != count or not (np.abs(numbers) <= FARTHEST).all():  # NaN is not, either
        raise _Fault(f"whose {name} is missing or is not {count} such numbers")
    return numbers
