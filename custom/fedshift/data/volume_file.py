"""Read one NIfTI, NRRD or MetaImage file: its checks, its voxels and places in mm, and the record of both."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data import lengths, meta_image, nifti, nifti_read, nrrd
from fedshift.data.dicom import identify
from fedshift.data.file_header import FileHeader, Unclear
from fedshift.data.integrity import fault, geometry_fault, misnamed
from fedshift.data.nifti_header import as_itk_reads, is_nifti
from fedshift.data.other_formats import other_format
from fedshift.data.scan_file import FETCH, ScanError, is_broken_link, suffix_of
from fedshift.schema.reading import Reading

MOST_VOXELS = 2**30
"""A scan with more voxels is refused before it is decoded, which takes up to 32 bytes of memory for each voxel."""
SHEARED = ("has a sheared coordinate system", "resample it onto a grid with right angles")
MOST_SHEAR = 0.1
"""Of a voxel: how far axes without right angles may displace the corners of a volume; ITK keeps none of it."""
_SOP_CLASS = "0008|0016"


def open_file(path: Path, *, trusted: bool) -> tuple[sitk.Image, Reading]:
    """Read a file, and what is said of it; ``trusted``: the geometry in its header is not used."""
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
    if not trusted and (wrong := geometry_fault(path)):
        raise ScanError("affine", path, wrong, "export it again, or correct the affine in its header")
    if not trusted and (wrong := nifti.spacing_fault(path)):
        raise ScanError(
            "voxel-size", path, wrong, "write its header again so that both are the same, or export it again"
        )
    _refuse_by_header(path)
    if is_nifti(path):
        nifti_read.refuse_scaling(path)
    if damage := fault(path):
        raise ScanError("file-damaged", path, f"cannot be read, {damage}", again)
    header = _header_of(path)
    try:
        image = nifti_read.read_image(path) if is_nifti(path) else sitk.ReadImage(str(path))
    except RuntimeError as error:
        if "orthonormal" in str(error):
            raise ScanError("sheared", path, *SHEARED) from None
        raise ScanError(
            "file-damaged", path, "cannot be read, it is damaged, truncated or not an image", again
        ) from None
    image = lengths.scaled(image, header.to_mm)
    if not trusted and _is_sheared(image):
        raise ScanError("sheared", path, *SHEARED)
    return image, header.reading


def unclear_positions(path: Path) -> Iterator[Unclear]:
    """What is unclear in where the voxels of a file lie that was read; nothing of DICOM."""
    if is_nifti(path):
        yield from nifti.unclear_positions(path)
    elif path.is_file() and suffix_of(path):
        yield from _header_of(path).unclear


def _header_of(path: Path) -> FileHeader:
    """What is said of a file beside what ITK reads of it.

    Raises:
        ScanError: something that would be read wrong.
    """
    if is_nifti(path):
        return nifti_read.read_header(path)
    if nrrd.is_nrrd(path):
        return nrrd.read_header(path)
    if meta_image.is_meta_image(path):
        return meta_image.read_header(path)
    return FileHeader(Reading(format=path.suffix or "a file without a suffix"))


def _is_sheared(image: sitk.Image) -> bool:
    """Whether axes without right angles displace a corner of the volume by more than `MOST_SHEAR` of a voxel."""
    n = image.GetDimension()
    axes = np.reshape(image.GetDirection(), (n, n))[:3, :3]
    u, _, v = np.linalg.svd(axes)
    steps = np.array(image.GetSpacing()[:3])
    displaced = (axes - u @ v) * steps * (np.array(image.GetSize()[:3]) - 1)
    return float(np.abs(displaced).sum(axis=1).max()) > MOST_SHEAR * float(steps.min())


def _refuse_by_header(path: Path) -> None:
    """Refuse a file whose header names too many voxels, or frames of DICOM that ITK reads without their places.

    A small compressed file may hold very many voxels. Of DICOM, an enhanced image is read elsewhere, by its frames'
    own positions (`fedshift.data.dicom_scan`).

    Raises:
        ScanError: there are too many, or it is such a file.
    """
    try:
        reader = itk_header(path)
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


def itk_header(path: Path) -> sitk.ImageFileReader:
    """ITK's reader, which has read the header of a file and no voxels.

    Raises:
        ScanError: too many voxels along an axis.
        RuntimeError: ITK cannot read it.
    """
    reader = sitk.ImageFileReader()
    with as_itk_reads(path) as file:
        reader.SetFileName(str(file))
        reader.ReadImageInformation()
    return reader
