"""Read one NIfTI, NRRD or MetaImage file: its checks, its voxels and places in mm, and the record of both.

The format is decided once, by the file's name (`file_of`), and its header is read once.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.dicom import identify
from fedshift.data.file_format import FileFormat, Unclear, scaled
from fedshift.data.meta_image import MetaImageFile
from fedshift.data.nifti import NiftiFile, misnamed
from fedshift.data.nrrd import NrrdFile
from fedshift.data.other_formats import other_format
from fedshift.data.scan_file import FETCH, NIFTI, ScanError, is_broken_link, suffix_of
from fedshift.schema.reading import Reading

MOST_VOXELS = 2**30
"""A scan with more voxels is refused before it is decoded, which takes up to 32 bytes of memory for each voxel."""
SHEARED = ("has a sheared coordinate system", "resample it onto a grid with right angles")
MOST_SHEAR = 0.1
"""Of a voxel: how far axes without right angles may displace the corners of a volume; ITK keeps none of it."""
FLOATING = (sitk.sitkFloat32, sitk.sitkFloat64)
_SOP_CLASS = "0008|0016"


def file_of(path: Path) -> FileFormat:
    """A file in the format that its name says."""
    suffix = suffix_of(path)
    if suffix in NIFTI:
        return NiftiFile(path)
    if suffix == ".nrrd":
        return NrrdFile(path)
    return MetaImageFile(path) if suffix in (".mha", ".mhd") else FileFormat(path)


def open_file(path: Path, *, trusted: bool) -> tuple[sitk.Image, Reading]:
    """Read a file, and what is said of it; ``trusted``: the geometry in its header is not used.

    Raises:
        ScanError: it is damaged, or would be read wrong.
    """
    again = "copy or export it again"
    if is_broken_link(path):
        raise ScanError("file-missing", path, "is a link to a file that does not exist", FETCH)
    if not path.is_file():
        raise ScanError("file-missing", path, "does not exist", "name a scan that is there")
    if path.stat().st_size == 0:
        raise ScanError("file-empty", path, "is an empty file", again)
    if wrong_name := misnamed(path):  # also fails where a file may not be read, which ITK and nibabel call damaged
        raise ScanError("compression-name", path, *wrong_name)
    if other := other_format(path):
        raise ScanError("format-not-read", path, f"is in a format that is not read ({other[0]})", other[1])
    file = file_of(path)
    file.refuse_header(trusted=trusted)
    _refuse_size(file)
    if damage := file.damage():
        raise ScanError("file-damaged", path, f"cannot be read, {damage}", again)
    header = file.header()
    try:
        image = file.read()
    except RuntimeError as error:
        if "orthonormal" in str(error):
            raise ScanError("sheared", path, *SHEARED) from None
        what = "cannot be read, it is damaged, truncated or not an image"
        raise ScanError("file-damaged", path, what, again) from None
    image = scaled(image, header.to_mm)
    if not trusted and _is_sheared(image):
        raise ScanError("sheared", path, *SHEARED)
    if image.GetPixelID() in FLOATING and (bad := file.non_finite()):  # whole numbers are whole in the file too
        what = f"has {bad} voxel(s) that are NaN or infinite"
        raise ScanError("not-finite", path, what, "export it again without filters")
    return image, header.reading


def unclear_positions(path: Path) -> tuple[Unclear, ...]:
    """What is unclear in where the voxels of a file lie that was read; nothing of DICOM."""
    return tuple(file_of(path).unclear()) if path.is_file() and suffix_of(path) else ()


def _is_sheared(image: sitk.Image) -> bool:
    """Whether axes without right angles displace a corner of the volume by more than `MOST_SHEAR` of a voxel."""
    n = image.GetDimension()
    axes = np.reshape(image.GetDirection(), (n, n))[:3, :3]
    u, _, v = np.linalg.svd(axes)
    steps = np.array(image.GetSpacing()[:3])
    displaced = (axes - u @ v) * steps * (np.array(image.GetSize()[:3]) - 1)
    return float(np.abs(displaced).sum(axis=1).max()) > MOST_SHEAR * float(steps.min())


def _refuse_size(file: FileFormat) -> None:
    """Refuse a file whose header names too many voxels, or frames of DICOM that ITK reads without their places.

    A small compressed file may hold very many voxels. Of DICOM, an enhanced image is read elsewhere, by its frames'
    own positions (`fedshift.data.dicom_scan`).
    """
    try:
        path, reader = file.path, file.itk_header()
    except RuntimeError:  # no valid header: what is wrong with it is found by whoever reads the file
        return
    voxels = math.prod(reader.GetSize()) * reader.GetNumberOfComponents()
    if voxels > MOST_VOXELS:
        size = " x ".join(map(str, reader.GetSize()))
        raise ScanError(
            "too-large", path, f"has {size} voxels, at most {MOST_VOXELS:,} are read", "crop or resample it"
        )
    is_dicom = identify(path) is not None or (suffix_of(path) is None and reader.HasMetaDataKey(_SOP_CLASS))
    frames = math.prod(reader.GetSize()[2:])
    if is_dicom and frames > 1:
        raise ScanError(
            "multiframe-class",
            path,
            f"is a DICOM file of {frames} frames and no enhanced MR, CT or PET image",
            "name the folder of the series it belongs to, or export the scan as single slices",
        )
