"""The stored values of DICOM pixels, whatever they are compressed with.

pydicom gives pixels that are not compressed, and those of run lengths (RLE); GDCM, which is in SimpleITK, decodes
JPEG, JPEG-LS and JPEG 2000 one frame at a time, from a file that holds nothing else of the scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.dicom_values import Values, stored_value

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


class PixelFault(Exception):
    """Why the pixels of a file are not read, as the rest of a sentence about it."""


def syntax_of(header: Any) -> Any:
    """The transfer syntax of a file: pydicom's UID, whose ``name`` says it in words."""
    return header.file_meta.TransferSyntaxUID


def stored_frames(path: Path, numbers: Sequence[int], values: Sequence[Values]) -> Iterator[np.ndarray]:
    """The stored values of frames of a file, each [rows, columns].

    Args:
        path: the file.
        numbers: of the frames, from 0; a classic slice has one.
        values: of each, how its bits are laid out.

    Raises:
        PixelFault: they are compressed with something that is not read, or there are fewer frames than it says.
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
        raise PixelFault(f"is encoded as {syntax.name} ({syntax}), which is not read")
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
    """Decode one frame; ``file`` is written for that.

    Raises:
        PixelFault: it is damaged, or no frame of its kind.
    """
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.encaps import encapsulate

    made = Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = syntax_of(header)
    made.SOPClassUID, made.SOPInstanceUID = SECONDARY_CAPTURE, "1.2.3"
    made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
    for name in ("Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"):
        setattr(made, name, header[name].value)
    made.PixelData = encapsulate([coded])
    made.save_as(file, enforce_file_format=True)
    try:
        decoded = sitk.GetArrayFromImage(sitk.ReadImage(str(file)))
    except RuntimeError:
        decoded = np.empty(0)
    if decoded.shape != (1, made.Rows, made.Columns) or not np.issubdtype(decoded.dtype, np.integer):
        raise PixelFault(f"cannot be decoded as {syntax_of(header).name}, it is damaged")
    return np.asarray(decoded[0])
