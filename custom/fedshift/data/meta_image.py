"""What a MetaImage header says besides what ITK takes from it: units of length, and intensities of other values.

The format: https://itk.org/Wiki/ITK/MetaIO/Documentation. ITK reads ``DistanceUnits`` and leaves lengths as they are.
It takes 1 mm for sizes that are not there, goes on with what follows where numbers lack, and gives what memory held
where compressed data or a list of slices are not as long as the header says.
"""

from __future__ import annotations

import math
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

MOST_LINE = 4096
_KINDS = {1: "CHAR UCHAR", 2: "SHORT USHORT", 4: "INT UINT LONG ULONG FLOAT", 8: "LONG_LONG ULONG_LONG DOUBLE"}
BYTES = {f"MET_{kind}": size for size, kinds in _KINDS.items() for kind in kinds.split()}
"""Of a number, by its type; ``MET_LONG`` has 4, and some programs write 8."""
_DIRECTION = ("transformmatrix", "rotation", "orientation")
_SIZES = ("ElementSpacing", "ElementSize")
"""Fields with the size of a voxel, of which the first goes before."""
_PLACES = ("Offset", "Position", "Origin")
_MATRICES = ("TransformMatrix", "Rotation", "Orientation")
_BYTE_ORDERS = ("BinaryDataByteOrderMSB", "ElementByteOrderMSB")
_TRUTHS = ("BinaryData", "CompressedData", *_BYTE_ORDERS)
_WORDS_OF_TRUTH = ("true", "false", "t", "f", "1", "0")
_OPPOSITE = str.maketrans("RLAPIS", "LRPASI")


class MetaImageFile(VolumeFile):
    """A MetaImage header (.mha, .mhd), with its voxels or beside them."""

    @cached_property
    def _fields(self) -> tuple[dict[str, str], int]:
        return fields(self.path)

    def refuse_header(self, *, trusted: bool) -> None:
        header, _ = self._fields
        if not trusted and (fault := _geometry_fault(header)):
            raise ScanError(
                fault[0],
                self.path,
                fault[1],
                "write its header again, with one ElementSpacing, Offset and TransformMatrix",
            )
        if wrong := self._data_fault(header):
            remedy = "save it again with its voxels in one file, as .nii.gz or .mha"
            raise ScanError("header-data", self.path, wrong, remedy)

    def damage(self) -> str | None:
        """By the data file's length, or zlib's checksum."""
        header, _ = self._fields
        if not header:
            return "it has no valid MetaImage header"
        where, needed = header["ElementDataFile"], _bytes(header)
        if _is_list(where):
            return None  # one file a slice: left to the reader
        data, start = self._data
        if not data.is_file():
            return f"its data file {where} is missing"
        with data.open("rb"):  # an error that names it, where it may not be read
            pass
        if _is_true(header.get("CompressedData", "")):
            try:
                length = zlib_length(data, gzip=False, start=start, most=whole(header.get("CompressedDataSize")))
            except BROKEN as error:
                return f"its compressed data are damaged, {error}"
            if length < 0:
                return "its compressed data end too early"
            return f"its compressed data have {length} bytes, and not {needed}" if 0 < needed != length else None
        size = data.stat().st_size - start
        if size < needed:
            if data == self.path:
                return f"{needed - size} of {needed} bytes are missing"
            return f"its data file {where} has {size} of {needed} bytes"
        if 0 < needed < size and not whole(header.get("HeaderSize")):
            what = f"has {size} bytes of voxels, and {needed} by the type and number of its voxels in its header"
            raise ScanError("header-data", self.path, what, "correct ElementType, DimSize or HeaderSize in its header")
        return None

    def read(self) -> sitk.Image:
        image = super().read()
        if not _is_true(self._fields[0].get("BinaryData", "True")):
            data, start = self._data
            refuse_other_numbers(self.path, data.read_bytes()[start:], image)
        return image

    @property
    def _data(self) -> tuple[Path, int]:
        """The file with the voxels, and where they begin in it."""
        header, length = self._fields
        where = header["ElementDataFile"]
        return (self.path, length) if where.upper() == "LOCAL" else (self.path.parent / where, 0)

    def _data_fault(self, header: Mapping[str, str]) -> str | None:
        """Why ITK would read other voxels than those of the file, or what its memory held; None if it reads these."""
        odd = next((key for key in _TRUTHS if header.get(key, "True").lower() not in _WORDS_OF_TRUTH), None)
        if odd is not None:
            return f"says {header[odd]!r} for {odd}, which is neither True nor False"
        if len({_is_true(header[key]) for key in _BYTE_ORDERS if key in header}) > 1:
            return f"says {' and '.join(_BYTE_ORDERS)} differently"
        where, slices = header.get("ElementDataFile", ""), whole(header.get("DimSize", "").rpartition(" ")[2])
        is_packed, local = _is_true(header.get("CompressedData", "")), where.upper() == "LOCAL"
        if local and whole(header.get("HeaderSize")) > 0:
            return "has its voxels below its header, and a HeaderSize, which ITK counts from the header's beginning"
        if local and is_packed and not whole(header.get("CompressedDataSize")):
            return "has compressed voxels below its header, and does not say how many bytes (CompressedDataSize)"
        if not _is_list(where):
            return None
        is_text = not _is_true(header.get("BinaryData", "True"))
        if is_packed or is_text or self._files_of_list(where, header.get("NDims", ""), slices) != slices:
            return f"has its slices in files of their own ({where}) that are not one for each, or compressed, or text"
        return None

    def _files_of_list(self, where: str, dimensions: str, slices: int) -> int | None:
        """How many files of slices a header names; None where ITK does not read them all."""
        kind, *numbers = where.split()
        if not where.upper().startswith("LIST"):  # a pattern, and the numbers of the first and last file, and a step
            if len(numbers) < 2:
                return slices
            if len(numbers) == 2 or not all(number.isdecimal() for number in numbers):
                return None
            first, last, step, *_ = map(int, numbers)
            return len(range(first, last + 1, step)) if step else None
        if kind.upper() != "LIST" or (numbers and [str(whole(numbers[0]) + 1)] != [dimensions]):
            return None
        lines = self.path.read_bytes()[self._fields[1] :]
        return lines.count(b"\n") if lines.endswith(b"\n") else None  # ITK leaves out a last name without an end

    def header(self) -> FileHeader:
        fields = {key.lower(): value for key, value in self._fields[0].items()}
        unit = fields.get("distanceunits", "")
        factor = in_mm(unit)
        if factor is None:
            what = f"has lengths in {unit!r}, which is no unit of length that is known"
            raise ScanError("unit-unknown", self.path, what, "write its header again, with lengths in mm")
        slope = fields.get("elementtointensityfunctionslope", "1")
        offset = fields.get("elementtointensityfunctionoffset", "0")
        if not (_is(slope, 1) and _is(offset, 0)):
            what = f"says that intensities are its values x {slope} + {offset}, which ITK does not compute"
            remedy = "save the intensities themselves, without ElementToIntensityFunction"
            raise ScanError("scale-in-header", self.path, what, remedy)
        kind = fields.get("elementtype", "").upper()
        bits = None
        if kind in BYTES:
            form = "floating point" if kind in ("MET_FLOAT", "MET_DOUBLE") else "unsigned" if "_U" in kind else "signed"
            bits = f"{8 * BYTES[kind]} bits, {form}"
        direction = next((key for key in _DIRECTION if key in fields), None)
        return FileHeader(
            Reading(
                format="MetaImage",
                bits=bits,
                geometry="TransformMatrix and Offset" if direction else "ElementSpacing alone",
                units=described([unit] * 3) if unit else None,
            ),
            to_mm=(factor,) * 3,
            unclear=tuple(_unclear(fields, direction)),
        )


def fields(path: Path) -> tuple[dict[str, str], int]:
    """The header, ``key = value`` up to the name of the data file or LOCAL, and its length; empty if it is none."""
    with path.open("rb") as file:
        header: dict[str, str] = {}
        while "ElementDataFile" not in header:
            line = file.readline(MOST_LINE)
            if not line or b"=" not in line:
                return {}, 0
            key, _, value = line.decode("latin-1").partition("=")
            header[key.strip()] = value.strip()
        return header, file.tell()


def _unclear(header: Mapping[str, str], direction: str | None) -> Iterator[Unclear]:
    """An orientation in words that is not that of the matrix; either sense of the words may be meant."""
    words = header.get("anatomicalorientation", "").upper()
    if len(words) != 3 or not set(words) <= set("RLAPIS") or header.get("ndims") != "3":
        return
    try:
        matrix = tuple(map(float, header[direction].split())) if direction else (1.0, 0, 0, 0, 1, 0, 0, 0, 1)
    except ValueError:
        matrix = ()
    if len(matrix) != 9:
        return  # ITK says what is wrong with the file
    # In the file the columns of ITK's matrix lie one after another.
    rows = tuple(matrix[3 * column + row] for row in range(3) for column in range(3))
    code = sitk.DICOMOrientImageFilter.GetOrientationFromDirectionCosines(rows)
    if code not in (words, words.translate(_OPPOSITE)):
        remedy = "look where the image and its mask lie in a viewer, and correct the one that is wrong"
        yield Unclear(
            "forms-differ", f"says {words} in its header, and its matrix {code}", "the matrix is used", remedy
        )


def _geometry_fault(header: Mapping[str, str]) -> tuple[str, str] | None:
    """The code of an error, and what a header says of sizes and places that ITK takes for something else."""
    dimensions = whole(header.get("NDims"))
    if not header or not dimensions:
        return None  # `damage`, or ITK, says what is wrong with it
    if not any(name in header for name in _SIZES):
        return "voxel-size", "says no size of its voxels (ElementSpacing) in its header, which ITK takes for 1 mm"
    sizes = next(header[name] for name in _SIZES if name in header)
    if any(size <= 0 for size in _numbers(sizes)):
        read = "which some programs read as a mirrored axis"
        return "voxel-size", f"has a voxel size in its header that is 0 or negative (ElementSpacing {sizes}), {read}"
    for name in (*_SIZES, *_PLACES, *_MATRICES):
        wanted = dimensions**2 if name in _MATRICES else dimensions
        if name in header and len(numbers := _numbers(header[name])) < wanted:
            return "affine", f"has {len(numbers)} of {wanted} numbers for {name} in its header"
    for names in (_PLACES, _MATRICES):
        names_used = [name for name in names if name in header]
        if len({tuple(_numbers(header[name])) for name in names_used}) > 1:
            return "affine", f"has {' and '.join(names_used)} in its header, which stand for one thing and differ"
    return None


def _numbers(text: str) -> list[float]:
    """The numbers that a value begins with."""
    numbers: list[float] = []
    for word in text.split():
        try:
            number = float(word)
        except ValueError:
            break
        if not math.isfinite(number):
            break
        numbers.append(number)
    return numbers


def _is_true(text: str) -> bool:
    """As ITK takes it."""
    return text[:1] in ("T", "t", "1")


def _is_list(where: str) -> bool:
    """Whether voxels are in a file for each slice."""
    return where.upper().startswith("LIST") or "%" in where


def _is(text: str, number: float) -> bool:
    try:
        return float(text) == number
    except ValueError:
        return False


def _bytes(header: Mapping[str, str]) -> int:
    """How long the uncompressed data of a MetaImage are at least; 0 where its header does not say it."""
    if not _is_true(header.get("BinaryData", "True")):
        return 0
    try:
        voxels = math.prod(map(int, header["DimSize"].split())) * int(header.get("ElementNumberOfChannels", 1))
        return voxels * BYTES[header["ElementType"].upper()]
    except (KeyError, ValueError):
        return 0
