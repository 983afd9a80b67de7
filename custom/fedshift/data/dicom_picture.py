"""A DICOM image of one frame as a picture: CR, DX, mammography, ultrasound, secondary capture.

Grey values are those that a viewer shows (PS3.3, C.11): the modality LUT or rescale slope, then the VOI LUT or the
first window, then turned where 0 is white. They keep 16 bits. An image without window or VOI LUT is shown over the
whole range of the bits that it stores; one that stores 16 is treated as any grey file of 16 bits
(`fedshift.data.depth`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedshift.data.depth import DICOM, WARNINGS, WHITE, DeepPicture
from fedshift.data.dicom import DicomFault
from fedshift.data.dicom_objects import FOR_PROCESSING, NO_SCANS, UNREADABLE, quiet
from fedshift.data.dicom_pixels import (
    GREY,
    PIXELS,
    VOI_LUT,
    Values,
    compression,
    intensities,
    read_table,
    stored_frames,
    syntax_of,
    values_of,
)
from fedshift.schema.errors import DataError
from fedshift.schema.reading import Reading

AGAIN = "export it again, or as PNG"
COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT", "PALETTE COLOR")
SIZES = ("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing", "PixelAspectRatio")
"""What says how high and how wide pixels are, the first of them before the others (PS3.3, C.7.6.3.1.7)."""
SQUARE = 0.01
"""How much longer one side of a pixel may be than the other, relatively."""


def read_dicom_picture(path: Path, *, sized: bool = False) -> Image.Image | DeepPicture:
    """Read a DICOM file as upright 8-bit RGB if it is in colour, otherwise as a grey picture of its bits.

    ``sized``: whether the size of its pixels is used, so that they need not be square.

    Raises:
        DataError: it has no pixels or several frames, cannot be decoded, or nothing says which value is white.
    """
    import pydicom

    try:
        with quiet():
            header = pydicom.dcmread(path)
            _require_one_frame(header)
            _refuse_raw(header)
            _take_from_frame(header)
            photometric = str(header.get("PhotometricInterpretation", "")).strip()
            shape = [] if sized else list(_not_square(header))
            return _grey(path, header, shape) if photometric in GREY else _colour(path, header, photometric, shape)
    except DicomFault as fault:
        raise DataError(fault.code, f"{path} {fault}: {AGAIN}") from None
    except UNREADABLE as error:
        raise DataError("file-damaged", f"{path} cannot be read ({type(error).__name__}): {AGAIN}") from None


def _require_one_frame(header: Any) -> None:
    if str(header.get("SOPClassUID", "")).startswith(NO_SCANS) or not any(name in header for name in PIXELS):
        raise DicomFault("pixels-missing", "is no image, it has no pixels")
    frames = int(header.get("NumberOfFrames", 1) or 1)
    if frames != 1:
        raise DicomFault("several-frames", f"has {frames} frames, and a picture has one")


def _refuse_raw(header: Any) -> None:
    """Refuse what a detector gives, whose values are no shades of grey (PS3.3, C.8.11.1 and PS3.4, B.5.1.1)."""
    intent = str(header.get("PresentationIntentType", "") or "").strip()
    if header.get("SOPClassUID") in FOR_PROCESSING or intent == "FOR PROCESSING":
        raise DicomFault("picture-form", "is a raw radiograph for processing, and not the one for presentation")


def _take_from_frame(header: Any) -> None:
    """Take what an enhanced image says of its one frame as a classic image says it of itself (PS3.3, C.7.6.16)."""
    for name in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        for group in header.get(name) or []:
            for transform in ("PixelValueTransformationSequence", "FrameVOILUTSequence", "PixelMeasuresSequence"):
                for item in group.get(transform) or []:
                    header.update(item)


def _not_square(header: Any) -> Iterator[str]:
    """Say that pixels are not square, by the first of `SIZES` that is there."""
    for name in SIZES:
        try:
            high, wide = (float(length) for length in header.get(name) or ())
        except (TypeError, ValueError):
            continue
        if not (high > 0 and wide > 0):
            continue
        if not 1 / (1 + SQUARE) <= high / wide <= 1 + SQUARE:
            yield f"has pixels {high / wide:.3g} times as high as wide ({name}), which are taken for square"
        return


def _grey(path: Path, header: Any, warnings: Sequence[str]) -> DeepPicture:
    values = values_of(header)
    (stored,) = stored_frames(path, [0], [values])
    turned = values.photometric != "MONOCHROME2"
    with_units = intensities(stored, replace(values, turned=False))
    shown, how = _shown(with_units, header, values)
    warnings = [*values.remarks, *warnings]
    outside = np.zeros(shown.shape, bool)
    if values.padding is not None:
        outside = (stored >= values.padding[0]) & (stored <= values.padding[1])
    if outside.any() and not outside.all():
        inside = shown[~outside]
        darkest = inside.max() if turned else inside.min()
        if (shown[outside] != darkest).any():
            shown = np.where(outside, darkest, shown)
            warnings.append("pixels outside the image (pixel padding) were given its darkest shade")
        with_units = with_units[~outside]
    if with_units.min() < with_units.max() and shown.min() == shown.max():
        raise DicomFault("picture-range", f"has the same colour everywhere where it is shown {how}")
    reading = Reading(
        format="DICOM image",
        transfer_syntax=syntax_of(header).name,
        bits=f"{values.bits_stored} of {values.bits_allocated} bits, {'signed' if values.signed else 'unsigned'}",
        rescale=None if not values.scaled else f"x {values.slope:g} + {values.intercept:g}",
        photometric=f"{values.photometric}, turned" if turned else None,
        remarks=(f"shown {how or 'over the range of its site'}", *warnings),
    )
    bits = values.bits_stored
    return DeepPicture(str(path), shown, stored=bits, turned=turned, known=how, how=reading, warnings=tuple(warnings))


def _shown(array: np.ndarray, header: Any, values: Values) -> tuple[np.ndarray, str]:
    """Values from 0 to `WHITE`, and how their range is known; the values as they are, and "", where it is not."""
    from pydicom.dataset import Dataset
    from pydicom.pixels.processing import apply_windowing

    if header.get(VOI_LUT):
        signed = values.signed or min(values.slope, values.intercept) < 0
        table = read_table(header, VOI_LUT, signed=signed)
        bits = int(table.entries.max()).bit_length()
        more = f", whose values have {bits} bits and not {table.bits}" if bits > table.bits else ""
        shown = table.look_up(np.rint(array).astype(np.int64))
        return _scaled(shown, 0, (1 << max(bits, table.bits)) - 1), f"by its VOI LUT{more}"
    if "WindowCenter" in header and "WindowWidth" in header:
        window = Dataset()  # without the rescale slope, so that the result is from 0 to the largest of 16 bits
        window.PhotometricInterpretation, window.BitsStored, window.PixelRepresentation = "MONOCHROME2", 16, 0
        for name in ("WindowCenter", "WindowWidth", "VOILUTFunction"):
            if header.get(name) not in (None, ""):
                setattr(window, name, header[name].value)
        if "WindowCenter" in window and "WindowWidth" in window:
            try:
                return _scaled(apply_windowing(array, window), 0, WHITE), "by its window"
            except ValueError:
                raise DicomFault("picture-range", "has a window without a width") from None
    if values.bits_stored == 16 and not values.signed and not values.scaled:
        return array.astype(np.uint16), ""
    if values.bits_stored > 15 or values.table is not None:
        raise DicomFault(
            "picture-range", "has neither a window nor a VOI LUT, so that nothing says which value is white"
        )
    least = -(1 << (values.bits_stored - 1)) if values.signed else 0
    ends = [end * values.slope + values.intercept for end in (least, least + (1 << values.bits_stored) - 1)]
    return _scaled(array, min(ends), max(ends)), f"over the {values.bits_stored} bits that it stores"


def _scaled(array: np.ndarray, black: float, white: float) -> np.ndarray:
    return np.rint(np.clip((array - black) / (white - black), 0, 1) * WHITE).astype(np.uint16)


def _colour(path: Path, header: Any, photometric: str, warnings: Sequence[str]) -> Image.Image:
    from pydicom.pixels.processing import apply_color_lut
    from pydicom.pixels.utils import pixel_array

    if photometric not in COLOURS:
        raise DicomFault("picture-form", f"has the photometric interpretation {photometric!r}, which is not read")
    try:
        pixels = pixel_array(header)
    except (NotImplementedError, RuntimeError) as error:
        name = syntax_of(header).name
        raise DicomFault("compression-not-read", f"is in colour and encoded as {name}, which is not read") from error
    if photometric == "PALETTE COLOR":
        pixels = apply_color_lut(pixels, header)
        if pixels.dtype == np.uint16:  # some files have the 8 bits of a colour in 16
            pixels = np.rint(pixels / (257 if pixels.max() > 255 else 1)).astype(np.uint8)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise DicomFault("picture-form", f"is in colour with {header.BitsAllocated} bits, and 8 are read")
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    picture.info[DICOM], picture.info[WARNINGS] = str(path), (*compression(header), *warnings)
    return picture
