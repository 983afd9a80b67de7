"""DICOM images of one frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import DigitalXRayImageStorageForPresentation, ExplicitVRLittleEndian, generate_uid


def write_dicom(path: Path, pixels: np.ndarray, **tags: Any) -> Path:
    """A radiograph of 12 bits, or whatever ``tags`` say."""
    image = Dataset()
    image.file_meta = FileMetaDataset()
    image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    image.file_meta.MediaStorageSOPClassUID = image.SOPClassUID = DigitalXRayImageStorageForPresentation
    image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID = generate_uid(entropy_srcs=[path.name])
    image.SeriesInstanceUID = generate_uid(entropy_srcs=["series"])
    image.Rows, image.Columns = pixels.shape[:2]
    image.SamplesPerPixel = 3 if pixels.ndim == 3 else 1
    image.PhotometricInterpretation = "RGB" if pixels.ndim == 3 else "MONOCHROME2"
    if pixels.ndim == 3:
        image.PlanarConfiguration = 0
    image.BitsAllocated = 8 * pixels.dtype.itemsize
    image.BitsStored = 8 if pixels.dtype == np.uint8 else 12
    image.PixelRepresentation = int(pixels.dtype == np.int16)
    for name, value in tags.items():
        setattr(image, name, value)
    image.HighBit = image.BitsStored - 1
    image.PixelData = pixels.tobytes()
    image.save_as(path, enforce_file_format=True)
    return path
