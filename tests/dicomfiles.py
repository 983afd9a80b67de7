"""DICOM files written byte by byte, so that tests can write what no library would: explicit VR, little endian."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

Element = tuple[int, int, str, bytes]
"""Group, element, value representation, value."""

LONG = {"OB", "OW", "SQ", "UN", "UT"}
SPACING, POSITION, ORIENTATION = (0x0028, 0x0030), (0x0020, 0x0032), (0x0020, 0x0037)
ROWS, COLUMNS, PIXELS = (0x0028, 0x0010), (0x0028, 0x0011), (0x7FE0, 0x0010)
SERIES, SYNTAX = (0x0020, 0x000E), (0x0002, 0x0010)
SHAPE = (9, 20, 24)
DISTANCE = 3.0
"""Slices, rows, columns; millimetres between slices."""


def elements(slice_: int, *, series: str = "1.2.3.4") -> list[Element]:
    """The elements of one slice of a series with a bright ball."""
    voxels = np.random.default_rng(slice_).integers(0, 100, SHAPE[1:]).astype("<i2")
    if 3 <= slice_ <= 5:
        voxels[8:12, 10:14] += 900
    number = f"1.2.3.5.{slice_ + 1}"
    return [
        (0x0002, 0x0002, "UI", b"1.2.840.10008.5.1.4.1.1.4"),
        (0x0002, 0x0003, "UI", number.encode()),
        (*SYNTAX, "UI", b"1.2.840.10008.1.2.1"),
        (0x0008, 0x0016, "UI", b"1.2.840.10008.5.1.4.1.1.4"),
        (0x0008, 0x0018, "UI", number.encode()),
        (0x0008, 0x0060, "CS", b"MR"),
        (0x0018, 0x0050, "DS", b"3.0"),
        (0x0020, 0x000D, "UI", b"1.2.3"),
        (*SERIES, "UI", series.encode()),
        (0x0020, 0x0013, "IS", str(slice_ + 1).encode()),
        (*POSITION, "DS", f"-8\\-8\\{DISTANCE * slice_}".encode()),
        (*ORIENTATION, "DS", b"1\\0\\0\\0\\1\\0"),
        (0x0028, 0x0002, "US", struct.pack("<H", 1)),
        (0x0028, 0x0004, "CS", b"MONOCHROME2"),
        (*ROWS, "US", struct.pack("<H", SHAPE[1])),
        (*COLUMNS, "US", struct.pack("<H", SHAPE[2])),
        (*SPACING, "DS", b"0.8\\0.7"),
        (0x0028, 0x0100, "US", struct.pack("<H", 16)),
        (0x0028, 0x0101, "US", struct.pack("<H", 16)),
        (0x0028, 0x0102, "US", struct.pack("<H", 15)),
        (0x0028, 0x0103, "US", struct.pack("<H", 1)),
        (*PIXELS, "OW", voxels.tobytes()),
    ]


def encode(content: list[Element]) -> bytes:
    """The bytes of a file."""
    head, body = b"", b""
    for group, element, kind, value in content:
        value += (b"\0" if kind in {"UI", "OB", "UN"} else b" ") * (len(value) % 2)
        length = b"\0\0" + struct.pack("<I", len(value)) if kind in LONG else struct.pack("<H", len(value))
        written = struct.pack("<HH", group, element) + kind.encode() + length + value
        head, body = (head + written, body) if group == 2 else (head, body + written)
    version = struct.pack("<HH", 2, 1) + b"OB\0\0" + struct.pack("<I", 2) + b"\0\1"
    count = struct.pack("<HH", 2, 0) + b"UL" + struct.pack("<HI", 4, len(version) + len(head))
    return bytes(128) + b"DICM" + count + version + head + body


def write_series(
    folder: Path, change: Callable[[list[Element], int], list[Element]] = lambda content, slice_: content
) -> Path:
    """Write a series of `SHAPE`, each slice changed by ``change``; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for slice_ in range(SHAPE[0]):
        (folder / f"slice{slice_:03d}.dcm").write_bytes(encode(change(elements(slice_), slice_)))
    return folder


def put(
    tag: tuple[int, int], value: bytes | None, kind: str = "", *, only: int | None = None, twice: bool = False
) -> Callable[[list[Element], int], list[Element]]:
    """A change: set an element in all slices, or in one; leave it out if ``value`` is None; or write it twice."""

    def change(content: list[Element], slice_: int) -> list[Element]:
        if only is not None and slice_ != only:
            return content
        old = next((entry for entry in content if entry[:2] == tag), None)
        rest = [entry for entry in content if entry[:2] != tag]
        if value is None:
            return rest
        new = (*tag, kind or (old[2] if old else "LO"), value)
        return sorted([*rest, new, *([old or new] if twice else [])], key=lambda entry: entry[:2])

    return change


def nested(depth: int) -> bytes:
    """A sequence within a sequence, so many times."""
    inside = b""
    for _ in range(depth):
        item = (
            struct.pack("<HH", 0x0008, 0x1140) + b"SQ\0\0" + struct.pack("<I", len(inside)) + inside if inside else b""
        )
        inside = struct.pack("<HHI", 0xFFFE, 0xE000, len(item)) + item
    return inside
