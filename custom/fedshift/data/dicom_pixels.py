"""The pixels of DICOM images: their stored values, whatever they are compressed with, and the intensities of these.

pydicom gives pixels that are not compressed, and those of run lengths (RLE); GDCM, which is in SimpleITK, decodes
JPEG, JPEG-LS and JPEG 2000 one frame at a time, from a file that holds nothing else of the scan.

Intensities come of stored values by the modality transform alone (PS3.3, C.11.1).
That is a table (modality LUT) or rescale slope and intercept, in a classic slice and in a frame of an enhanced image
alike. Real world values stand beside it and are not used, except in a parametric map, which has nothing else. What is
meant for display changes nothing where intensities have units, such as Hounsfield units; in MRI, which has none, a
scan that says that its lowest value is white is turned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.dicom import DicomFault
from fedshift.data.dicom_objects import CT_IMAGES, PARAMETRIC_MAP, PET_IMAGES, PICTURES

PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
TAGS = (
    *("Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "BitsAllocated"),
    *("BitsStored", "HighBit", "PixelRepresentation", "ExtendedOffsetTable", "ExtendedOffsetTableLengths", *PIXELS),
)
"""Of a file, with its pixels."""
DECODED = (
    *("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51", "1.2.840.10008.1.2.4.57", "1.2.840.10008.1.2.4.70"),
    *("1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.81", "1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91"),
    *("1.2.840.10008.1.2.4.201", "1.2.840.10008.1.2.4.202", "1.2.840.10008.1.2.4.203"),
)
"""Transfer syntaxes that GDCM decodes: JPEG baseline, extended and lossless (57, 70), JPEG-LS, JPEG 2000, HTJ2K."""
RUN_LENGTHS = "1.2.840.10008.1.2.5"
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
NO_UNIT = ("", "US", "UNSPECIFIED", "NORMALIZED")  # rescale types that name no unit (PS3.3, C.11.1.1.2)
LOSSY = ("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51", "1.2.840.10008.1.2.4.81")
"""Transfer syntaxes that always lose something; of others an attribute says so."""
GREY = ("MONOCHROME1", "MONOCHROME2")
MODALITY_LUT, VOI_LUT = "ModalityLUTSequence", "VOILUTSequence"


def syntax_of(header: Any) -> Any:
    """The transfer syntax of a file: pydicom's UID, whose ``name`` says it in words."""
    return header.file_meta.TransferSyntaxUID


def stored_frames(path: Path, numbers: Sequence[int], values: Sequence[Values]) -> Iterator[np.ndarray]:
    """The stored values of frames of a file, by their numbers from 0, each [rows, columns]; a slice has one.

    ``values``: of each, how its bits are laid out.
    """
    import pydicom
    from pydicom.encaps import get_frame
    from pydicom.pixels.decoders.base import get_decoder

    header = pydicom.dcmread(path, specific_tags=list(TAGS))
    syntax = syntax_of(header)
    if not syntax.is_encapsulated or syntax == RUN_LENGTHS:
        if "BitsStored" in header:
            header.BitsStored = header.BitsAllocated  # pydicom would take the lowest bits, whatever the highest one is
            header.HighBit = header.BitsAllocated - 1
        for pixels, of_frame in zip(_arrays(get_decoder(syntax), header, numbers), values, strict=True):
            yield stored_value(pixels, of_frame) if np.issubdtype(pixels.dtype, np.integer) else pixels
        return
    if syntax not in DECODED:
        raise DicomFault("compression-not-read", f"is encoded as {syntax.name} ({syntax}), which is not read")
    offsets = None
    if "ExtendedOffsetTable" in header:
        offsets = header.ExtendedOffsetTable, header.ExtendedOffsetTableLengths
    count = int(header.get("NumberOfFrames", 1) or 1)
    with TemporaryDirectory() as folder:
        for number, of_frame in zip(numbers, values, strict=True):
            coded = get_frame(header.PixelData, number, number_of_frames=count, extended_offsets=offsets)
            yield stored_value(_decode(coded, header, Path(folder) / "frame.dcm"), of_frame)


def _arrays(decoder: Any, header: Any, numbers: Sequence[int]) -> Iterator[np.ndarray]:
    if int(header.get("NumberOfFrames", 1) or 1) == 1:
        yield decoder.as_array(header, raw=True)[0]
    else:
        yield from (pixels for pixels, _ in decoder.iter_array(header, raw=True, indices=list(numbers)))


def _decode(coded: bytes, header: Any, file: Path) -> np.ndarray:
    """Decode one frame; ``file`` is written for that."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.encaps import encapsulate

    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = syntax_of(header)
    dataset.SOPClassUID, dataset.SOPInstanceUID = SECONDARY_CAPTURE, "1.2.3"
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    for name in ("Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"):
        setattr(dataset, name, header[name].value)
    dataset.PixelData = encapsulate([coded])
    dataset.save_as(file, enforce_file_format=True)
    try:
        decoded = sitk.GetArrayFromImage(sitk.ReadImage(str(file)))
    except RuntimeError:
        decoded = np.empty(0)
    if decoded.shape != (1, dataset.Rows, dataset.Columns) or not np.issubdtype(decoded.dtype, np.integer):
        raise DicomFault("pixels-damaged", f"cannot be decoded as {syntax_of(header).name}, it is damaged")
    return np.asarray(decoded[0])


@dataclass(frozen=True)
class Table:
    """A table (LUT), such as that of the modality: the result for each value from ``first`` on.

    Values outside get the nearest. ``bits``: of a result, as the file says.
    """

    first: int
    entries: np.ndarray
    bits: int = 16

    def look_up(self, values: np.ndarray) -> np.ndarray:
        """The results for whole numbers."""
        return np.asarray(self.entries[np.clip(values - self.first, 0, len(self.entries) - 1)])


@dataclass(frozen=True)
class Values:
    """How the stored values of one frame become intensities."""

    photometric: str
    bits_allocated: int
    bits_stored: int
    high_bit: int
    signed: bool
    slope: float = 1.0
    intercept: float = 0.0
    table: Table | None = None
    scaled: bool = False
    """Whether it says any of the three."""
    turned: bool = False
    """Whether the lowest stored value is white, and is made the highest."""
    units: str = ""
    padding: tuple[float, float] | None = None
    """The stored values, from and to, of pixels that are no part of the image (PS3.3, C.7.5.1.1.2)."""
    remarks: tuple[str, ...] = ()


def stored_value(bits: np.ndarray, values: Values) -> np.ndarray:
    """The stored values (int64) in the allocated bits of whole numbers (PS3.5, 8.1.1).

    The other bits may hold an overlay, or anything.
    """
    shifted = bits.astype(np.int64) >> (values.high_bit + 1 - values.bits_stored)
    masked = shifted & ((1 << values.bits_stored) - 1)
    sign = 1 << (values.bits_stored - 1)
    return (masked ^ sign) - sign if values.signed else masked


def intensities(stored: np.ndarray, values: Values) -> np.ndarray:
    """Intensities of stored values: whole numbers (int64) where the transform gives no others, otherwise float64."""
    if values.turned:
        stored = (-1 if values.signed else (1 << values.bits_stored) - 1) - stored
    if values.table is not None:
        return values.table.look_up(stored)
    slope, intercept = values.slope, values.intercept
    whole = slope == round(slope) and intercept == round(intercept) and max(abs(slope), abs(intercept)) < 2**31
    if whole and np.issubdtype(stored.dtype, np.integer):
        return np.asarray(stored * int(slope) + int(intercept))
    return np.asarray(stored * slope + intercept)


def values_of(header: Any, transform: Any | None = None, world: Sequence[Any] = ()) -> Values:
    """How a frame says that its stored values become intensities.

    ``transform``: the item of an enhanced frame's pixel value transformation; None of a classic slice, whose file says
    it itself. ``world``: the items of its real world value mapping.
    """
    photometric = str(header.get("PhotometricInterpretation", "MONOCHROME2")).strip()
    if photometric not in GREY or int(header.get("SamplesPerPixel", 1)) != 1:
        several = ", with several values per pixel" if int(header.get("SamplesPerPixel", 1)) != 1 else ""
        raise DicomFault("colour-voxels", f"is in colour ({photometric}{several}) and not in grey")
    allocated = int(header.BitsAllocated)
    floats = "BitsStored" not in header and allocated in (32, 64)
    stored = allocated if floats else int(header.BitsStored)
    high = stored - 1 if floats else int(header.get("HighBit", stored - 1))
    if allocated not in (8, 16, 32, 64) or not 1 <= stored <= high + 1 <= allocated:
        raise DicomFault("pixel-bits", f"has pixels of {stored} of {allocated} bits, the highest {high}")
    signed = bool(header.get("PixelRepresentation", 0))
    of_class = str(header.get("SOPClassUID", ""))
    source = header if transform is None else transform
    slope, intercept, scaled = _rescale(source)
    remarks: list[str] = []
    mapped = {
        (float(mapping.RealWorldValueSlope), float(mapping.RealWorldValueIntercept))
        for mapping in world
        if _linear(mapping)
    }
    if of_class == PARAMETRIC_MAP and transform is None:
        if len(mapped) > 1 or len(mapped) < len(world):
            raise DicomFault("real-world-values", "has several real world values for one pixel, or a table of them")
        slope, intercept = next(iter(mapped), (slope, intercept))
        scaled = scaled or bool(mapped)
    elif world and mapped != {(slope, intercept)}:
        remarks.append(
            "has real world values beside its rescale slope and intercept, of which only the latter are used"
        )
    remarks += compression(header)
    table = read_table(header, MODALITY_LUT, signed=signed) if header.get(MODALITY_LUT) else None
    if table is not None and scaled:
        raise DicomFault("rescale", "has a modality LUT and a rescale slope, of which a file has one")
    units = _units(header, source, world if of_class == PARAMETRIC_MAP else ())
    inverted = photometric == "MONOCHROME1" or str(header.get("PresentationLUTShape", "")).strip() == "INVERSE"
    if of_class in CT_IMAGES:
        if not scaled and table is None:
            remarks.append("is CT and has no rescale slope: its stored values are taken for Hounsfield units")
        elif units != "HU":
            remarks.append(f"is CT in {units or 'values without a unit'} and not in Hounsfield units")
    turned = inverted and not units and not floats
    padding = _padding(header, stored=stored, signed=signed)
    upside_down = turned or (inverted and of_class in PICTURES)  # pictures are turned whatever their units
    if padding == (0, 0) and of_class not in CT_IMAGES and not (intercept or table or upside_down):
        padding = None  # 0 already, as the air of MRI and PET
    return Values(
        photometric=photometric if photometric == "MONOCHROME1" or not inverted else f"{photometric}, INVERSE",
        bits_allocated=allocated,
        bits_stored=stored,
        high_bit=high,
        signed=signed,
        slope=slope,
        intercept=intercept,
        table=table,
        scaled=scaled or table is not None,
        turned=turned,
        units=units,
        padding=padding,
        remarks=tuple(remarks),
    )


def compression(header: Any) -> list[str]:
    """Say that an image was compressed with loss, if it says so."""
    lossy = header.file_meta.TransferSyntaxUID in LOSSY or header.get("LossyImageCompression") == "01"
    return ["was compressed with loss: its intensities are not those of the scanner"] if lossy else []


def _rescale(source: Any) -> tuple[float, float, bool]:
    stored = source.get("RescaleSlope"), source.get("RescaleIntercept")
    slope = 1.0 if stored[0] is None else float(stored[0])
    intercept = 0.0 if stored[1] is None else float(stored[1])
    if not (np.isfinite([slope, intercept]).all() and slope):
        raise DicomFault("rescale", "has a rescale slope or intercept that is no number, or a slope of 0")
    return slope, intercept, stored != (None, None)


def _linear(mapping: Any) -> bool:
    return "RealWorldValueSlope" in mapping and "RealWorldValueIntercept" in mapping


def read_table(header: Any, sequence: str, *, signed: bool) -> Table:
    """The table in an item of ``ModalityLUTSequence`` or ``VOILUTSequence`` (PS3.3, C.11.1.1 and C.11.2.1.1).

    ``signed``: whether the values that it is for may be below 0.
    """
    item = header[sequence].value[0]
    count, first, bits = (int(number) for number in item.LUTDescriptor)
    count = count & 0xFFFF or 2**16
    data = item.LUTData
    if isinstance(data, bytes):
        little = header.original_encoding[1] is not False
        kind = np.dtype("u1") if len(data) < 2 * count else np.dtype("<u2" if little else ">u2")
        entries = np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)
    else:
        entries = np.atleast_1d(np.asarray(data))
    if len(entries) < count:
        called = "modality LUT" if sequence == MODALITY_LUT else "VOI LUT"
        raise DicomFault("rescale", f"has a {called} with fewer entries than it says")
    if signed and first >= 2**15:  # written as an unsigned number
        first -= 2**16
    return Table(first, entries[:count].astype(np.int64), bits)


def _units(header: Any, source: Any, world: Sequence[Any]) -> str:
    """Units of the intensities; "" where they have none, as in MRI."""
    of_class = str(header.get("SOPClassUID", ""))
    named = str(source.get("RescaleType", "") or "").strip()
    if header.get(MODALITY_LUT):
        named = str(header.ModalityLUTSequence[0].get("ModalityLUTType", "") or "").strip()
    if of_class in PET_IMAGES:
        return str(header.get("Units", "") or "").strip() or named or "units of PET that it does not name"
    if of_class in CT_IMAGES:
        return named if named.upper() != "UNSPECIFIED" and named else "HU"
    codes = [code for mapping in world for code in mapping.get("MeasurementUnitsCodeSequence", [])]
    if codes:
        return str(codes[0].get("CodeValue", "") or "")
    return "" if named.upper() in NO_UNIT else named


def _padding(header: Any, *, stored: int, signed: bool) -> tuple[float, float] | None:
    for kind in ("FloatPixelPadding", "DoubleFloatPixelPadding"):
        if isinstance(first := header.get(f"{kind}Value"), float):
            last = header.get(f"{kind}RangeLimit")
            return _in_order(first, last if isinstance(last, float) else first)
    first, last = header.get("PixelPaddingValue"), header.get("PixelPaddingRangeLimit")
    if not isinstance(first, int):
        return None
    sign = 1 << (stored - 1)

    def whole(number: int) -> int:  # which may be written as an unsigned number of a signed one
        masked = number & ((1 << stored) - 1)
        return (masked ^ sign) - sign if signed else masked

    return _in_order(whole(first), whole(last if isinstance(last, int) else first))


def _in_order(first: float, last: float) -> tuple[float, float]:
    return min(first, last), max(first, last)
