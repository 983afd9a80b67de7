"""What an NRRD header says besides what ITK takes from it: units of length, and whose axes the space has.

The format: http://teem.sourceforge.net/nrrd/format.html. ITK takes all lengths for mm, an axis without a size
for one of 1 mm, as those of which only the ends are given, and every space that names no axes of the patient for left,
posterior, superior.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.scan_file import ScanError
from fedshift.data.volume_file import (
    BROKEN,
    FileHeader,
    Unclear,
    VolumeFile,
    described,
    in_mm,
    refuse_other_numbers,
    whole,
    zlib_length,
)
from fedshift.schema.reading import Reading

MAGIC = b"NRRD"
MOST_HEADER = 1 << 24  # bytes of a header that are looked at; one of a segmentation has a few thousand
AGAIN = "write its header again, with lengths in mm"
EXTENT = {"axis mins", "axis maxs"}
"""Fields for the ends of the axes."""
QUANTIZED = {"old min", "old max"}
"""Fields for the range that values had before they were made whole numbers of fewer bits."""
_TWO_WORDS = (
    *(*EXTENT, *QUANTIZED, "data file", "byte skip", "line skip"),
    *("space directions", "space dimension", "space origin", "space units"),
)
_NAMES = {name.replace(" ", ""): name for name in _TWO_WORDS}
"""Names of fields that may be written in one word."""
BITS = {
    "8 bits, signed": ("signed char", "int8", "int8_t"),
    "8 bits, unsigned": ("uchar", "unsigned char", "uint8", "uint8_t"),
    "16 bits, signed": ("short", "short int", "signed short", "signed short int", "int16", "int16_t"),
    "16 bits, unsigned": ("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"),
    "32 bits, signed": ("int", "signed int", "int32", "int32_t"),
    "32 bits, unsigned": ("uint", "unsigned int", "uint32", "uint32_t"),
    "64 bits, signed": (
        *("longlong", "long long", "long long int", "signed long long", "signed long long int", "int64", "int64_t"),
    ),
    "64 bits, unsigned": ("ulonglong", "unsigned long long", "unsigned long long int", "uint64", "uint64_t"),
    "32 bits, floating point": ("float",),
    "64 bits, floating point": ("double",),
}
AT_THE_END = -1
"""Bytes to skip that say that the voxels are the last bytes of the file."""
TEXT, PACKED = ("txt", "text", "ascii"), ("gz", "gzip")
"""Encodings that are read, besides ``raw``."""
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OF_PATIENT = re.compile(r"(right|left)(anterior|posterior)superior(time)?|[rl][ap]st?")
_VECTOR = re.compile(r"\([^)]*\)|none", re.IGNORECASE)
_WORD = re.compile(r"[^\s,()]+")


class NrrdFile(VolumeFile):
    """An NRRD file."""

    @cached_property
    def _fields(self) -> tuple[dict[str, str], int]:
        return _fields(self.path)

    @property
    def _header_fields(self) -> Mapping[str, str]:
        return self._fields[0]

    @property
    def _encoding(self) -> str:
        return self._header_fields.get("encoding", "raw").lower()

    def refuse_header(self, *, trusted: bool) -> None:
        if not trusted and (fault := _size_fault(self._header_fields)):
            raise ScanError("voxel-size", self.path, fault, "write its header again, with spacings or space directions")
        if not trusted and not _is_place(origin := self._header_fields.get("space origin", "0 0 0")):
            what = f"has a place of its voxels that is not in numbers (space origin {origin})"
            raise ScanError("affine", self.path, what, "write its header again, with a space origin in numbers")
        where = self._header_fields.get("data file", "")
        if where.upper().startswith("LIST") or "%" in where:
            what = f"has its voxels in several files (data file: {where}), which are not read together"
            raise ScanError("header-data", self.path, what, "open it in 3D Slicer, and save it in one file")
        if self._encoding not in ("raw", *TEXT, *PACKED):
            what = f"has voxels in an encoding that is not read ({self._encoding})"
            raise ScanError("header-data", self.path, what, "save it with the encoding gzip, as with unu save -e gzip")
        if self._skip < (AT_THE_END if self._encoding == "raw" else 0):
            what = f"skips {self._skip} bytes in its header (byte skip), which the format does not have"
            raise ScanError("header-data", self.path, what, "open it in 3D Slicer, and save it in one file")

    def header(self) -> FileHeader:
        fields = self._header_fields
        units = _units(fields)
        factors = [in_mm(unit) for unit in units]
        wrong = next((unit for unit, factor in zip(units, factors, strict=True) if factor is None), None)
        if wrong is not None:
            what = f"has lengths in {wrong!r}, which is no unit of length that is known"
            raise ScanError("unit-unknown", self.path, what, AGAIN)
        if QUANTIZED & fields.keys():
            what = "has intensities that stand for others (old min, old max), which ITK does not compute"
            raise ScanError(
                "scale-in-header", self.path, what, "save the intensities themselves, as with unu unquantize"
            )
        sizes, space = fields.get("spacings"), fields.get("space", "").lower()
        if _joined(space).startswith("3dlefthanded"):
            what = "has a left-handed space in its header, in which left and right of the patient are not said"
            remedy = "write its header again with the space left-posterior-superior"
            raise ScanError("left-handed", self.path, what, remedy)
        geometry = f"space directions in {space}" if space else "spacings" if sizes else None
        return FileHeader(
            Reading(format="NRRD", bits=_type(fields), geometry=geometry, units=described(units)),
            to_mm=tuple(factor or 1.0 for factor in factors),
            unclear=tuple(_unclear(fields)),
        )

    def damage(self) -> str | None:
        """By the length of the voxels, which for text `read` compares."""
        data, start = self._data
        if not data.is_file():
            return f"its data file {self._header_fields['data file']} is missing"
        needed = _bytes(self._header_fields)
        if not needed or self._encoding in TEXT:
            return None
        try:
            n_bytes = (
                zlib_length(data, gzip=True, start=start) if self._encoding in PACKED else data.stat().st_size - start
            )
        except BROKEN as error:
            return f"its compressed data are damaged, {error}"
        if n_bytes < 0:
            return "its compressed data end too early"
        n_bytes = min(n_bytes, needed) if self._skip == AT_THE_END else n_bytes - self._skip
        if n_bytes > needed:
            what = f"has {n_bytes} bytes of voxels, and {needed} by their type and sizes in its header"
            raise ScanError("header-data", self.path, what, "correct type or sizes in its header")
        return f"{needed - n_bytes} of {needed} bytes are missing" if n_bytes < needed else None

    def read(self) -> sitk.Image:
        image = super().read()
        if self._encoding in TEXT:
            data, start = self._data
            refuse_other_numbers(self.path, data.read_bytes()[start + self._skip :], image)
        return image

    @property
    def _data(self) -> tuple[Path, int]:
        """The file with the voxels, and where they begin in it, after the lines that are skipped."""
        where = self._header_fields.get("data file")
        data, start = (self.path.parent / where, 0) if where else (self.path, self._fields[1])
        lines = whole(self._header_fields.get("line skip"))
        if not lines or not data.is_file():
            return data, start
        with data.open("rb") as file:
            file.seek(start)
            for _ in range(lines):
                file.readline()
            return data, file.tell()

    @property
    def _skip(self) -> int:
        """How many bytes are skipped after that, where voxels are compressed once they are not."""
        return whole(self._header_fields.get("byte skip"))


def _type(fields: Mapping[str, str]) -> str | None:
    """The type of a voxel in words, or as the header has it where it is none of `BITS`."""
    kind = fields.get("type")
    return next((words for words, names in BITS.items() if (kind or "").lower() in names), kind)


def _bytes(fields: Mapping[str, str]) -> int:
    """How long the voxels are without compression; 0 where the header does not say it."""
    bits, _, rest = (_type(fields) or "").partition(" bits, ")
    sizes = fields.get("sizes", "").split()
    if not rest or not all(size.isdecimal() for size in sizes):
        return 0
    return math.prod(map(int, sizes)) * int(bits) // 8


def _unclear(fields: Mapping[str, str]) -> Iterator[Unclear]:
    space = fields.get("space", "").lower()
    if space and "space origin" not in fields:
        what, remedy = "says no place of its voxels in its header (space origin)", "check that its mask lies on it"
        yield Unclear("origin-missing", what, "its first voxel is taken for 0, 0, 0", remedy, is_twofold=False)
    if _OF_PATIENT.fullmatch(_joined(space)):
        return
    named = f"names the space {space}, whose axes are not the patient's" if space else "says no orientation (space)"
    remedy = "check that front and back are right"
    yield Unclear("orientation-missing", f"{named} in its header", "it is taken for LPS", remedy, is_twofold=False)


def _joined(space: str) -> str:
    """A space's name as one word: NRRD has it with hyphens, with spaces, or with neither."""
    return space.replace("-", "").replace(" ", "")


def _size_fault(fields: Mapping[str, str]) -> str | None:
    """What a header says of voxel sizes that ITK takes for something else; None if it says them all."""
    if not fields or fields.get("dimension", "") in ("1", "2"):
        return None  # what is wrong with it is said by whoever reads the file
    if "space directions" in fields:
        vectors = _VECTOR.findall(fields["space directions"])
        directions = [vector for vector in vectors if "(" in vector and all(map(_is_number, _WORD.findall(vector)))]
        without = len(directions) < 3
        return (
            "has an axis without a size or direction (space directions), which ITK takes for 1 mm" if without else None
        )
    sizes = fields.get("spacings", "").split()[:3]
    if not sizes and EXTENT & fields.keys():
        return "gives the ends of its axes (axis mins, axis maxs) in place of voxel sizes, which ITK takes for 1 mm"
    if not sizes:
        return "says no size of its voxels in its header, neither as spacings nor as space directions"
    shown = " x ".join(sizes)
    if not all(_is_number(size) and float(size) for size in sizes):
        return f"has an axis without a voxel size (spacings {shown})"
    if min(map(float, sizes)) < 0:
        return f"has voxels of {shown} mm in its header (spacings), which some programs read as a mirrored axis"
    return None


def _is_place(origin: str) -> bool:
    numbers = _WORD.findall(origin)
    return len(numbers) > 2 and all(map(_is_number, numbers))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _units(fields: Mapping[str, str]) -> list[str]:
    """Of the axes of the space, or, without one, of the first three axes of the array."""
    in_space = "space" in fields or "space dimension" in fields
    units = _QUOTED.findall(fields.get("space units" if in_space else "units", ""))
    return [unit.strip() for unit in [*units, "", "", ""][:3]]


def _fields(path: Path) -> tuple[dict[str, str], int]:
    """The fields of the header, with names in lower case, and its length.

    Without comments and key/value pairs (``key:=value``).
    """
    fields: dict[str, str] = {}
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return fields, 0
        file.readline()
        while line := file.readline(MOST_HEADER).strip():
            name, separator, value = line.decode("utf-8", "replace").partition(":")
            if separator and not value.startswith("=") and not name.startswith("#"):
                name = name.strip().lower()
                fields[_NAMES.get(name, name)] = value.strip()
            if file.tell() > MOST_HEADER:
                break
        return fields, file.tell()
