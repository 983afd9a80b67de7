"""What an NRRD header says besides what ITK takes from it: units of length, and whose axes the space has.

The format: http://teem.sourceforge.net/nrrd/format.html. ITK takes all lengths for mm, an axis whose spacing is NaN
for one of 1 mm, as those of which only the ends are given, and every space that names no axes of the patient for left,
posterior, superior.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedshift.data.scan_file import ScanError
from fedshift.data.volume_file import FileHeader, Unclear, VolumeFile, described, in_mm
from fedshift.schema.reading import Reading

MAGIC = b"NRRD"
MOST_HEADER = 1 << 24  # bytes of a header that are looked at; one of a segmentation has a few thousand
AGAIN = "write its header again, with lengths in mm"
EXTENT = {"axis mins", "axismins", "axis maxs", "axismaxs"}
"""Fields for the ends of the axes."""
BITS = {
    "8 bits, signed": ("signed char", "int8", "int8_t"),
    "8 bits, unsigned": ("uchar", "unsigned char", "uint8", "uint8_t"),
    "16 bits, signed": ("short", "short int", "signed short", "signed short int", "int16", "int16_t"),
    "16 bits, unsigned": ("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"),
    "32 bits, signed": ("int", "signed int", "int32", "int32_t"),
    "32 bits, unsigned": ("uint", "unsigned int", "uint32", "uint32_t"),
    "32 bits, floating point": ("float",),
    "64 bits, floating point": ("double",),
}
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OF_PATIENT = re.compile(r"(right|left)-(anterior|posterior)-superior(-time)?|[rl][ap]st?")


class NrrdFile(VolumeFile):
    """An NRRD file."""

    def header(self) -> FileHeader:
        said = _fields(self.path)
        units = _units(said)
        factors = [in_mm(unit) for unit in units]
        wrong = next((unit for unit, factor in zip(units, factors, strict=True) if factor is None), None)
        if wrong is not None:
            what = f"has lengths in {wrong!r}, which is no unit of length that is known"
            raise ScanError("unit-unknown", self.path, what, AGAIN)
        sizes = said.get("spacings", "").split()[:3]
        if "space directions" not in said and any(size.lower() == "nan" for size in sizes):
            what = f"has an axis without a voxel size (spacings {' x '.join(sizes)})"
            raise ScanError("voxel-size", self.path, what, AGAIN)
        if not sizes and "space directions" not in said and EXTENT & said.keys():
            what = "gives the ends of its axes (axis mins, axis maxs) in place of voxel sizes, which ITK takes for 1 mm"
            raise ScanError("voxel-size", self.path, what, "write its header again, with spacings")
        space = said.get("space", "").strip().lower()
        if space.startswith(("3d-left-handed", "3d left handed")):
            what = "has a left-handed space in its header, in which left and right of the patient are not said"
            remedy = "write its header again with the space left-posterior-superior"
            raise ScanError("left-handed", self.path, what, remedy)
        word = next((word for word, names in BITS.items() if said.get("type", "").lower() in names), said.get("type"))
        geometry = f"space directions in {space}" if space else "spacings" if sizes else None
        return FileHeader(
            Reading(format="NRRD", bits=word, geometry=geometry, units=described(units)),
            to_mm=tuple(factor or 1.0 for factor in factors),
            unclear=tuple(_unclear(space)),
        )


def _unclear(space: str) -> Iterator[Unclear]:
    if _OF_PATIENT.fullmatch(space):
        return
    named = f"names the space {space}, whose axes are not the patient's" if space else "says no orientation (space)"
    remedy = "check that front and back are right"
    yield Unclear("orientation-missing", f"{named} in its header", "it is taken for LPS", remedy, is_twofold=False)


def _units(said: Mapping[str, str]) -> list[str]:
    """Of the axes of the space, or, without one, of the first three axes of the array."""
    in_space = "space" in said or "space dimension" in said
    units = _QUOTED.findall(said.get("space units" if in_space else "units", ""))
    return [unit.strip() for unit in [*units, "", "", ""][:3]]


def _fields(path: Path) -> dict[str, str]:
    """The fields of the header, with names in lower case; without comments and key/value pairs (``key:=value``)."""
    said: dict[str, str] = {}
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return said
        file.readline()
        while line := file.readline(MOST_HEADER).strip():
            name, separator, value = line.decode("utf-8", "replace").partition(":")
            if separator and not value.startswith("=") and not name.startswith("#"):
                said[name.strip().lower()] = value.strip()
            if file.tell() > MOST_HEADER:
                break
    return said
