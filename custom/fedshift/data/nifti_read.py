"""Read a NIfTI file as the standard says, also where ITK reads other values or nothing.

ITK adds ``scl_inter`` where ``scl_slope`` is 0, which stands for no scaling (NIfTI-1: "If the scl_slope field is
nonzero, then each voxel value in the dataset should be scaled"); and it reads no NIfTI-2 and no ``.nii.zst``. Such
voxels are read by nibabel, and laid where ITK would lay them (`fedshift.data.nifti_header.as_itk_reads`).
"""

from __future__ import annotations

import math
from pathlib import Path

import nibabel
import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data import lengths
from fedshift.data.file_header import FileHeader
from fedshift.data.nifti import geometry_words
from fedshift.data.nifti_header import as_itk_reads, header_of, is_unknown_to_itk, scaling_of, unit_of
from fedshift.data.scan_file import ScanError
from fedshift.schema.reading import Reading


def refuse_scaling(path: Path) -> None:
    """Refuse an intercept that is not a number, which nibabel does not read and ITK takes for 0.

    Raises:
        ScanError: it is such.
    """
    slope, intercept = scaling_of(path)
    if _is_scaled(slope) and not math.isfinite(intercept):
        what = f"has an intercept that is not a number ({intercept:g}) in its header (scl_inter)"
        raise ScanError("scale-in-header", path, what, "write the right one into its header, or export it again")


def read_header(path: Path) -> FileHeader:
    """What the header says; what it leaves unclear of places is said by `fedshift.data.nifti.unclear_positions`."""
    header = header_of(path)
    if header is None:  # `fedshift.data.integrity` says what is wrong with it
        return FileHeader(Reading(format="NIfTI"))
    slope, intercept = scaling_of(path)
    rescale: str | None = None
    remarks: tuple[str, ...] = ()
    if _is_scaled(slope):
        if (slope, intercept) != (1, 0):
            rescale = f"x {slope:g} {'-' if intercept < 0 else '+'} {abs(intercept):g}"
    elif intercept != 0 and math.isfinite(intercept):
        remarks = (f"scl_slope is {slope:g}, which stands for no scaling, so scl_inter {intercept:g} is not added",)
    return FileHeader(
        Reading(
            format="NIfTI-2" if isinstance(header, nibabel.Nifti2Header) else "NIfTI-1",
            bits=_bits(header.get_data_dtype()),
            rescale=rescale,
            units=lengths.described([unit_of(header)] * 3),
            geometry=geometry_words(path),
            remarks=remarks,
        )
    )


def read_image(path: Path) -> sitk.Image:
    """The voxels and their places.

    Raises:
        ScanError: values of a kind that is not read.
        RuntimeError: ITK cannot read it.
    """
    header = header_of(path)
    if header is None or not (is_unknown_to_itk(path, header) or _is_misread_by_itk(path)):
        return sitk.ReadImage(str(path))
    with as_itk_reads(path) as file:
        reader = sitk.ImageFileReader()
        reader.SetFileName(str(file))
        reader.ReadImageInformation()
    stored = header.get_data_dtype()
    if np.issubdtype(stored, np.complexfloating):
        raise ScanError("complex-voxels", path, "has complex voxels", "export the magnitude")
    if stored.fields or reader.GetNumberOfComponents() > 1:
        number = max(len(stored.fields or ()), reader.GetNumberOfComponents())
        raise ScanError("colour-voxels", path, f"has {number} values per voxel", "export it in grey, not in colour")
    values = np.asanyarray(nibabel.load(path).dataobj)
    if np.issubdtype(stored, np.integer) and not np.issubdtype(values.dtype, np.integer):
        values = values.astype(np.float32)  # as ITK scales
    elif values.dtype.itemsize > 8:
        values = values.astype(np.float64)
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    image = sitk.GetImageFromArray(np.ascontiguousarray(values.T).reshape(reader.GetSize()[::-1]), isVector=False)
    image.SetSpacing(reader.GetSpacing())
    image.SetOrigin(reader.GetOrigin())
    image.SetDirection(reader.GetDirection())
    return image


def _is_misread_by_itk(path: Path) -> bool:
    """Whether ITK adds an intercept that the standard does not add."""
    slope, intercept = scaling_of(path)
    return not _is_scaled(slope) and intercept != 0


def _is_scaled(slope: float) -> bool:
    return math.isfinite(slope) and slope != 0


def _bits(stored: np.dtype) -> str:
    if stored.fields:
        return "colour"
    kinds = {"i": "signed", "u": "unsigned", "f": "floating point", "c": "complex"}
    return f"{8 * stored.itemsize} bits, {kinds.get(stored.kind, stored.kind)}"
