"""A file of voxels: its checks, its voxels, their places in mm, and the record of all three.

`VolumeFile` reads a file as ITK does. Formats of which more is known override what they know: `fedshift.data.nifti`,
`fedshift.data.nrrd`, `fedshift.data.meta_image`. All geometry is kept in mm, whatever unit a file says it in.
"""

from __future__ import annotations

import logging
import math
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nibabel.imageglobals
import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.dicom import identify
from fedshift.data.other_formats import other_format
from fedshift.data.scan_file import FETCH, ScanError, is_broken_link, suffix_of
from fedshift.schema.reading import Reading

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MOST_VOXELS = 2**30
"""A scan with more voxels is refused before it is decoded, which takes up to 32 bytes of memory for each voxel."""
SHEARED = ("has a sheared coordinate system", "resample it onto a grid with right angles")
MOST_SHEAR = 0.1
"""Of a voxel: how far axes without right angles may displace the corners of a volume; ITK keeps none of it."""
FLOATING = (sitk.sitkFloat32, sitk.sitkFloat64)
AGAIN = "copy or export it again"
_SOP_CLASS = "0008|0016"
log = logging.getLogger("fedshift.readers")

# --- units of length --------------------------------------------------------------------------------------------------

_WORDS = {
    1e-6: "nm nanometer nanometers nanometre nanometres",
    1e-3: "um \u00b5m \u03bcm micron microns micrometer micrometers micrometre micrometres",  # two signs for micro
    1.0: "mm millimeter millimeters millimetre millimetres",
    10.0: "cm centimeter centimeters centimetre centimetres",
    25.4: "in inch inches",
    100.0: "dm",
    1000.0: "m meter meters metre metres",
}
MM = {word: factor for factor, words in _WORDS.items() for word in words.split()}  # unit -> mm
UNSAID = ("", "?", "??", "???", "unknown", "none")
"""How a header says that it does not know the unit; such lengths are taken for mm, as all readers do."""


def in_mm(unit: str) -> float | None:
    """One of a unit in mm; 1 where a header does not know the unit, None for a word that is no length."""
    word = unit.strip().lower()
    return 1.0 if word in UNSAID else MM.get(word)


def described(units: Sequence[str]) -> str | None:
    """What a record says of the units of the three axes; None where all are mm."""
    if all(in_mm(unit) == 1 for unit in units):
        return "lengths without a unit, taken for mm" if all(unit.lower() in UNSAID for unit in units) else None
    shown = units[0] if len(set(units)) == 1 else ", ".join(unit or "mm" for unit in units)
    return f"lengths in {shown}, converted to mm"


# --- compressed files -------------------------------------------------------------------------------------------------

GZIP = b"\x1f\x8b"
PACKED = {".gz": GZIP, ".zst": b"\x28\xb5\x2f\xfd"}  # how compressed files begin, by the end of their name
CHUNK = 1 << 20
MOST_AT_ONCE = 16 << 20  # bytes that are decompressed at a time; a chunk can hold a thousand times its own length
BROKEN = (zlib.error, zstd.ZstdError)  # what is raised of damaged data


def zstd_length(path: Path) -> int:
    """Bytes after decompression, -1 if the data have no end; ITK reads what is cut short without an error."""
    length = 0
    with zstd.open(path, "rb") as file:
        try:
            while chunk := file.read(MOST_AT_ONCE):
                length += len(chunk)
        except EOFError:
            return -1
    return length


def zlib_length(path: Path, *, gzip: bool, start: int = 0, most: int = 0) -> int:
    """Bytes after decompression of gzip or a zlib stream, -1 if the data have no end; of ``most`` bytes, 0 for all."""
    length, window = 0, 16 + zlib.MAX_WBITS if gzip else 0
    unpack = zlib.decompressobj(window)
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(min(CHUNK, start + most - file.tell()) if most > 0 else CHUNK):
            while chunk:
                length += len(unpack.decompress(chunk, MOST_AT_ONCE))
                chunk = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
                if unpack.eof:
                    if not gzip or not chunk.startswith(GZIP):
                        return length  # what follows the stream's end is padding
                    unpack = zlib.decompressobj(window)  # gzip allows several members in one file
    return length if unpack.eof else -1


# --- files ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unclear:
    """``what`` a header leaves unclear, what is ``used``, and what whoever prepares the file does (``remedy``)."""

    code: str
    what: str
    used: str
    remedy: str
    is_twofold: bool = True
    """Whether the header says it twice, rather than not at all."""


@dataclass(frozen=True)
class FileHeader:
    """The record of a file, mm in one of its units along x, y and z, and what it leaves unclear of where voxels lie."""

    reading: Reading
    to_mm: tuple[float, ...] = (1.0, 1.0, 1.0)
    unclear: tuple[Unclear, ...] = ()


class VolumeFile:
    """A file as ITK reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, *, trusted: bool) -> tuple[sitk.Image, FileHeader]:
        """The voxels and what is said of them; ``trusted``: the geometry in the header is not used."""
        path = self.path
        _refuse_absent(path)
        self.refuse_header(trusted=trusted)  # first of all: ITK prints what it thinks of some that are refused
        self._refuse_size()
        if damage := self.damage():
            raise ScanError("file-damaged", path, f"cannot be read, {damage}", AGAIN)
        try:
            header, image = self.header(), self.read()
        except RuntimeError as error:
            if "orthonormal" in str(error):
                raise ScanError("sheared", path, *SHEARED) from None
            what = "cannot be read, it is damaged, truncated or not an image"
            raise ScanError("file-damaged", path, what, AGAIN) from None
        image = scaled(image, header.to_mm)
        if not trusted and _is_sheared(image):
            raise ScanError("sheared", path, *SHEARED)
        if image.GetPixelID() in FLOATING and (bad := self.non_finite()):  # whole numbers are whole in the file too
            what = f"has {bad} voxel(s) that are NaN or infinite"
            raise ScanError("not-finite", path, what, "export it again without filters")
        return image, header

    def refuse_header(self, *, trusted: bool) -> None:
        """Refuse a header that readers understand differently; ``trusted``: its geometry is not used."""

    def itk_header(self) -> sitk.ImageFileReader:
        """ITK's reader, which has read the header and no voxels; RuntimeError if ITK cannot read it."""
        return read_information(self.path)

    def damage(self) -> str | None:
        """What is missing or damaged, which ITK does not report; None if length and checksums are correct."""
        return None

    def header(self) -> FileHeader:
        return FileHeader(Reading(format=self.path.suffix or "a file without a suffix"))

    def read(self) -> sitk.Image:
        """The voxels and their places; RuntimeError if ITK cannot read it."""
        return sitk.ReadImage(str(self.path))

    def non_finite(self) -> int:
        """How many voxels are NaN or infinite, which ITK may turn into 0; 0 where ITK leaves them."""
        return 0

    def _refuse_size(self) -> None:
        """Refuse a file whose header names too many voxels, or frames of DICOM that ITK reads without their places.

        A small compressed file may hold very many voxels. Of DICOM, an enhanced image is read elsewhere, by its frames'
        own positions (`fedshift.data.dicom_scan`).
        """
        try:
            path, reader = self.path, self.itk_header()
        except RuntimeError:  # no valid header: what is wrong with it is said by whoever reads the file
            return
        voxels = math.prod(reader.GetSize()) * reader.GetNumberOfComponents()
        if voxels > MOST_VOXELS:
            size = " x ".join(map(str, reader.GetSize()))
            what = f"has {size} voxels, at most {MOST_VOXELS:,} are read"
            raise ScanError("too-large", path, what, "crop or resample it")
        is_dicom = identify(path) is not None or (suffix_of(path) is None and reader.HasMetaDataKey(_SOP_CLASS))
        frames = math.prod(reader.GetSize()[2:])
        if is_dicom and frames > 1:
            what = f"is a DICOM file of {frames} frames and no enhanced MR, CT or PET image"
            remedy = "name the folder of the series it belongs to, or export the scan as single slices"
            raise ScanError("multiframe-class", path, what, remedy)


def _refuse_absent(path: Path) -> None:
    if is_broken_link(path):
        raise ScanError("file-missing", path, "is a link to a file that does not exist", FETCH)
    if not path.is_file():
        raise ScanError("file-missing", path, "does not exist", "name a scan that is there")
    if path.stat().st_size == 0:
        raise ScanError("file-empty", path, "is an empty file", AGAIN)
    with path.open("rb"):  # fails where a file may not be read, which ITK and nibabel call damaged
        pass
    if suffix_of(path) is None and (other := other_format(path)):
        raise ScanError("format-not-read", path, f"is in a format that is not read ({other[0]})", other[1])


def read_information(file: Path) -> sitk.ImageFileReader:
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(file))
    reader.ReadImageInformation()
    return reader


def refuse_other_numbers(path: Path, text: bytes, image: sitk.Image) -> None:
    """Refuse text of which ITK reads other whole numbers: it cuts off fractions and the upper bits."""
    voxels = sitk.GetArrayViewFromImage(image)
    if not np.issubdtype(voxels.dtype, np.integer):
        return
    try:
        numbers = np.array(text.split(), float)
    except ValueError:
        numbers = np.empty(0)
    if not np.array_equal(np.sort(numbers), np.sort(voxels, axis=None)):  # axes may be in another order
        what = f"has other numbers in its text than whole ones of its type ({voxels.dtype}), one for each voxel"
        raise ScanError("header-data", path, what, "correct the type or the sizes in its header")


def whole(text: str | None) -> int:
    """A whole number, 0 where there is none."""
    try:
        return int(text or 0)
    except ValueError:
        return 0


def scaled(image: sitk.Image, factors: Sequence[float]) -> sitk.Image:
    """An image whose world's axes x, y and z are stretched by ``factors``; its voxels stay.

    Axes of unequal units may lose their right angles, which whoever reads the image looks for.
    """
    if all(factor == 1 for factor in factors):
        return image
    n = image.GetDimension()
    stretch = np.array([*factors, *[1.0] * n][:n])
    axes = stretch[:, None] * np.reshape(image.GetDirection(), (n, n)) * np.array(image.GetSpacing())
    sizes = np.linalg.norm(axes, axis=0)
    image.SetOrigin((stretch * image.GetOrigin()).tolist())
    image.SetSpacing(sizes.tolist())
    image.SetDirection((axes / sizes).ravel().tolist())
    return image


def _is_sheared(image: sitk.Image) -> bool:
    """Whether axes without right angles displace a corner of the volume by more than `MOST_SHEAR` of a voxel."""
    n = image.GetDimension()
    axes = np.reshape(image.GetDirection(), (n, n))[:3, :3]
    u, _, v = np.linalg.svd(axes)
    steps = np.array(image.GetSpacing()[:3])
    displaced = (axes - u @ v) * steps * (np.array(image.GetSize()[:3]) - 1)
    return float(np.abs(displaced).sum(axis=1).max()) > MOST_SHEAR * float(steps.min())


# --- what ITK and nibabel print ---------------------------------------------------------------------------------------


class _PythonLogger(sitk.LoggerBase):  # type: ignore[misc]
    """Receives whatever ITK would print. SimpleITK chooses the names of the methods."""

    def DisplayText(self, text: str) -> None:  # noqa: N802
        log.debug("%s", text.strip())

    DisplayErrorText = DisplayWarningText = DisplayGenericOutputText = DisplayDebugText = DisplayText


class _Debugging(logging.Handler):
    """Passes on what nibabel logs of a header that it corrects."""

    def emit(self, record: logging.LogRecord) -> None:
        log.debug("%s", record.getMessage())


_logger = _PythonLogger()


def quiet_readers() -> None:
    """Send the readers' messages to the log of this process, as debug messages: ours name the file, theirs do not."""
    _logger.SetAsGlobalITKLogger()
    nibabel.imageglobals.logger.handlers = [_Debugging()]
    nibabel.imageglobals.logger.propagate = False
