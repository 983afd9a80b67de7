"""What a MetaImage header says besides what ITK takes from it: units of length, and intensities of other values.

The format: https://itk.org/Wiki/ITK/MetaIO/Documentation. ITK reads ``DistanceUnits`` and leaves lengths as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.scan_file import ScanError
from fedshift.data.volume_file import BROKEN, FileHeader, Unclear, VolumeFile, described, in_mm, zlib_length
from fedshift.schema.reading import Reading

MOST_LINE = 4096
_KINDS = {1: "CHAR UCHAR", 2: "SHORT USHORT", 4: "INT UINT FLOAT", 8: "LONG_LONG ULONG_LONG DOUBLE"}
BYTES = {f"MET_{kind}": size for size, kinds in _KINDS.items() for kind in kinds.split()}
"""Of a number, by its type; ``MET_LONG`` has 4 or 8."""
_DIRECTION = ("transformmatrix", "rotation", "orientation")
_OPPOSITE = str.maketrans("RLAPIS", "LRPASI")


class MetaImageFile(VolumeFile):
    """A MetaImage header (.mha, .mhd), with its voxels or beside them."""

    def damage(self) -> str | None:
        """By the data file's length, or zlib's checksum."""
        header, start = fields(self.path)
        if not header:
            return "it has no valid MetaImage header"
        where = header["ElementDataFile"]
        if where.upper() == "LOCAL":
            data = self.path
        elif where.upper().startswith("LIST") or "%" in where:
            return None  # one file a slice: left to the reader
        else:
            data, start = self.path.parent / where, 0
        if not data.is_file():
            return f"its data file {where} is missing"
        with data.open("rb"):  # an error that names it, where it may not be read
            pass
        if header.get("CompressedData", "False").lower() == "true":
            try:
                return "its compressed data end too early" if zlib_length(data, gzip=False, start=start) < 0 else None
            except BROKEN as error:
                return f"its compressed data are damaged, {error}"
        needed, there = _bytes(header), data.stat().st_size - start
        if there >= needed:
            return None
        if data == self.path:
            return f"{needed - there} of {needed} bytes are missing"
        return f"its data file {where} has {there} of {needed} bytes"

    def header(self) -> FileHeader:
        said = {key.lower(): value for key, value in fields(self.path)[0].items()}
        unit = said.get("distanceunits", "")
        factor = in_mm(unit)
        if factor is None:
            what = f"has lengths in {unit!r}, which is no unit of length that is known"
            raise ScanError("unit-unknown", self.path, what, "write its header again, with lengths in mm")
        slope = said.get("elementtointensityfunctionslope", "1")
        offset = said.get("elementtointensityfunctionoffset", "0")
        if not (_is(slope, 1) and _is(offset, 0)):
            what = f"says that intensities are its values x {slope} + {offset}, which ITK does not compute"
            remedy = "save the intensities themselves, without ElementToIntensityFunction"
            raise ScanError("scale-in-header", self.path, what, remedy)
        kind = said.get("elementtype", "").upper()
        bits = None
        if kind in BYTES:
            form = "floating point" if kind in ("MET_FLOAT", "MET_DOUBLE") else "unsigned" if "_U" in kind else "signed"
            bits = f"{8 * BYTES[kind]} bits, {form}"
        direction = next((key for key in _DIRECTION if key in said), None)
        return FileHeader(
            Reading(
                format="MetaImage",
                bits=bits,
                geometry="TransformMatrix and Offset" if direction else "ElementSpacing alone",
                units=described([unit] * 3) if unit else None,
            ),
            to_mm=(factor,) * 3,
            unclear=tuple(_unclear(said, direction)),
        )


def fields(path: Path) -> tuple[dict[str, str], int]:
    """The header, ``key = value`` up to the name of the data file or LOCAL, and its length; empty if it is none."""
    with path.open("rb") as file:
        said: dict[str, str] = {}
        while "ElementDataFile" not in said:
            line = file.readline(MOST_LINE)
            if not line or b"=" not in line:
                return {}, 0
            key, _, value = line.decode("latin-1").partition("=")
            said[key.strip()] = value.strip()
        return said, file.tell()


def _unclear(said: Mapping[str, str], direction: str | None) -> Iterator[Unclear]:
    """An orientation in words that is not that of the matrix; either sense of the words may be meant."""
    words = said.get("anatomicalorientation", "").upper()
    if len(words) != 3 or not set(words) <= set("RLAPIS") or said.get("ndims") != "3":
        return
    try:
        matrix = tuple(map(float, said[direction].split())) if direction else (1.0, 0, 0, 0, 1, 0, 0, 0, 1)
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


def _is(text: str, number: float) -> bool:
    try:
        return float(text) == number
    except ValueError:
        return False


def _bytes(header: Mapping[str, str]) -> int:
    """How long the uncompressed data of a MetaImage are at least; 0 where its header does not say it."""
    if header.get("BinaryData", "True").lower() != "true":
        return 0
    try:
        voxels = math.prod(map(int, header["DimSize"].split())) * int(header.get("ElementNumberOfChannels", 1))
        return voxels * BYTES[header["ElementType"].upper()]
    except (KeyError, ValueError):
        return 0
