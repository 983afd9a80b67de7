"""Reading and writing one scan with its geometry, through SimpleITK.

All volumes are brought into one orientation: in memory, voxels are ``[z, y, x]`` with x towards the
patient's right, y towards anterior, z towards superior ("RAS", as nibabel counts). Only data preparation and
checks import this module: SimpleITK is not needed where a model trains.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.dicom_scan import read_dicom
from fedshift.data.meta_image import MetaImageFile
from fedshift.data.nifti import NiftiFile
from fedshift.data.nrrd import NrrdFile
from fedshift.data.picture_files import is_picture
from fedshift.data.picture_scan import read_picture_slice
from fedshift.data.scan_file import NIFTI, ScanError, SeveralVolumes, reading, suffix_of, too_many_axes
from fedshift.data.series import folder_and_uid, is_dicom
from fedshift.data.volume_file import FileHeader, Unclear, VolumeFile, quiet_readers
from fedshift.schema.manifest import DIRECTION_TOLERANCE, SPACING_TOLERANCE
from fedshift.schema.reading import COMPUTED, Reading

quiet_readers()

ORIENTATION = "RAS"
_COMPLEX = (sitk.sitkComplexFloat32, sitk.sitkComplexFloat64)
ORIGIN_TOLERANCE = 1e-2  # mm
MOST_INTENSITY = 1e30  # preparation computes in single precision, which ends at 3e38
VOXEL_SIZES = (0.01, 50.0)  # mm: from microscopes to thick slices
WHOLE_VOLUME = "at least three are needed, export the whole volume"
FORMATS = {**dict.fromkeys(NIFTI, NiftiFile), ".nrrd": NrrdFile, ".mha": MetaImageFile, ".mhd": MetaImageFile}


@dataclass(frozen=True)
class Scan:
    """One volume in RAS orientation.

    ``voxels`` is ``[slices, rows, columns]`` (z, y, x); ``spacing`` (mm), ``origin`` (mm) and ``direction``
    (3x3, row-major) are in x, y, z order and, as always in ITK, in a world that points left, posterior,
    superior. ``stored`` is the orientation of the file itself, such as ``LPS``, and ``stored_direction`` its
    direction.
    """

    voxels: np.ndarray
    spacing: tuple[float, float, float]
    origin: tuple[float, float, float]
    direction: tuple[float, ...]
    stored: str
    stored_direction: tuple[float, ...]
    reading: Reading = COMPUTED
    """How its file was read."""
    unclear: tuple[Unclear, ...] = ()
    """What its file leaves unclear of where voxels lie; nothing of DICOM."""
    as_stored: tuple[int, int] | None = None
    """Columns and rows of a picture before its EXIF tag turned it; None if nothing was turned."""
    warnings: tuple[str, ...] = ()
    """Of a picture, see `fedshift.data.depth.warnings_of`."""

    @property
    def is_picture(self) -> bool:
        """Whether it is of one slice, and not of at least three."""
        return bool(self.voxels.shape[0] == 1)

    @cached_property
    def sha256(self) -> str:
        """`content_hash` of the voxels."""
        return content_hash(self.voxels)


def odd_size(scan: Scan) -> str | None:
    """Say that a scan's voxels are of a size that no scanner has, as when a header's unit is wrong; None if not so."""
    least, most = VOXEL_SIZES
    if least <= min(scan.spacing) and max(scan.spacing) <= most:
        return None
    return f"has voxels of {' x '.join(f'{size:.3g}' for size in scan.spacing)} mm"


def stem_of(path: Path) -> str:
    """The file name without its image suffix; a folder's own name, and the UID where one of its series is named."""
    folder, uid = folder_and_uid(path)
    if uid is not None:
        return f"{folder.name}_{uid}"
    suffix = (
        ""
        if path.is_dir()
        else suffix_of(path) or (path.suffix if is_picture(path) or path.suffix.lower() == ".dcm" else "")
    )
    return path.name[: len(path.name) - len(suffix)]


def read_scan(
    path: Path, *, channel: int | None = None, volume: int | None = None, direction: tuple[float, ...] | None = None
) -> Scan:
    """Read a file, or a folder with one DICOM series, and turn it into RAS.

    Args:
        path: NIfTI, NRRD, MetaImage or whatever else SimpleITK reads; an enhanced DICOM image; or a folder of DICOM
            slices, see `fedshift.data.series`.
        channel: which volume to take from a 4D file (MSD keeps T2 and ADC in one); None refuses 4D.
        volume: which volume to take, from 1, where there are several: of a 4D file or a DICOM series. What has a single
            volume is read as it is. None refuses several.
        direction: replaces the direction in the file, for headers that are known to be wrong.

    Raises:
        ScanError: the file is damaged, is no single volume of grey voxels that are numbers, or would be read wrong.
    """
    return read_volumes(path, [channel], volume=volume, direction=direction)[0]


def read_volumes(
    path: Path, channels: Sequence[int | None], *, volume: int | None = None, direction: tuple[float, ...] | None = None
) -> list[Scan]:
    """Read several volumes of a 4D file, which is decoded once; otherwise like `read_scan`.

    Raises:
        ScanError: as for `read_scan`; also if the file has fewer volumes than are wanted.
    """
    require_text(path)
    try:
        with reading(path):
            return _read_volumes(path, channels, volume, direction)
    except MemoryError:
        what = "does not fit into this machine's memory"
        raise ScanError("too-large", path, what, "crop it, or use a larger machine") from None


def _read_volumes(
    path: Path, channels: Sequence[int | None], volume: int | None, direction: tuple[float, ...] | None
) -> list[Scan]:
    if is_picture(path):
        return _pictures(path, channels)
    if is_dicom(path):
        image, reading = read_dicom(path, volume)
        header = FileHeader(reading)
    else:
        image, header = file_of(path).open(trusted=direction is not None)
    if image.GetPixelID() in _COMPLEX:
        raise ScanError("complex-voxels", path, "has complex voxels", "export the magnitude")
    components = image.GetNumberOfComponentsPerPixel()
    if components != 1:
        raise ScanError("colour-voxels", path, f"has {components} values per voxel", "export it in grey, not in colour")
    scans = []
    for channel in channels:
        three, number = _three_dimensional(image, path, channel, volume)
        reading = header.reading
        if number is not None:
            reading = reading.model_copy(update={"volume": f"{number + 1} of {image.GetSize()[3]}"})
        scans.append(_oriented(three, path, direction, FileHeader(reading, unclear=header.unclear)))
    return scans


def _pictures(path: Path, channels: Sequence[int | None]) -> list[Scan]:
    picture = read_picture_slice(path, channels)
    stored = picture.stored if picture.turned else None
    spacing = (*(picture.spacing or (1.0, 1.0)), 1.0)
    scans = [slice_scan(voxels, picture.reading, spacing=spacing, as_stored=stored) for voxels in picture.voxels]
    return [replace(scan, warnings=picture.warnings) for scan in scans]


def slice_scan(
    voxels: np.ndarray,
    record: Reading,
    *,
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0),
    as_stored: tuple[int, int] | None = None,
) -> Scan:
    """A picture (1, rows, columns), whose columns point left and rows to posterior; ``spacing`` in mm is x, y, z."""
    _, rows, columns = voxels.shape
    x, y, _ = spacing
    return Scan(
        voxels=voxels,
        spacing=spacing,
        origin=((columns - 1) * x, (rows - 1) * y, 0.0),
        direction=(-1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 1.0),
        stored="LPS",
        stored_direction=(1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0),
        reading=record,
        as_stored=as_stored,
    )


def file_of(path: Path) -> VolumeFile:
    """A file in the format that its name says."""
    return FORMATS.get(suffix_of(path) or "", VolumeFile)(path)


def volumes_in(path: Path) -> int:
    """How many volumes a file has by its header: more than 1 for 4D. 1 for anything that cannot be read."""
    try:
        require_text(path)
        if not path.is_file():
            return 1
        reader = file_of(path).itk_header()
    except (ScanError, OSError, RuntimeError):
        return 1
    return int(math.prod(reader.GetSize()[3:]))


def _three_dimensional(
    image: sitk.Image, path: Path, channel: int | None, volume: int | None
) -> tuple[sitk.Image, int | None]:
    """One volume of a file, and its number from 0 if the file is 4D."""
    size = image.GetSize()
    if image.GetDimension() == 2:
        raise ScanError("too-few-slices", path, "has 1 slice(s)", WHOLE_VOLUME)
    if image.GetDimension() == 3:
        if channel:
            what = f"has 1 volume(s), not the expected {channel + 1}"
            raise ScanError("volume-missing", path, what, "add the others, or download it again")
        return image, None
    if channel is None and volume is not None and image.GetDimension() == 4:
        channel = volume - 1
    if image.GetDimension() > 4:
        raise too_many_axes(path, size)
    if channel is None and size[3] > 1:
        what = f"is 4D ({' x '.join(map(str, size))})"
        remedy = "say which one is wanted with --volume N, or name all of them in order with --sequence"
        raise SeveralVolumes("several-volumes", path, what, remedy)
    pick = channel or 0
    if pick >= size[3]:
        remedy = "download it again" if volume is None else "say another --volume"
        raise ScanError("volume-missing", path, f"has {size[3]} volume(s), not the expected {pick + 1}", remedy)
    return image[:, :, :, pick], pick


def _oriented(image: sitk.Image, path: Path, direction: tuple[float, ...] | None, header: FileHeader) -> Scan:
    if direction is not None:
        image.SetDirection(direction)
    stored = image.GetDirection()
    image = sitk.DICOMOrient(image, ORIENTATION)
    if image.GetSize()[2] < 3:
        raise ScanError("too-few-slices", path, f"has {image.GetSize()[2]} slice(s)", WHOLE_VOLUME)
    voxels = sitk.GetArrayFromImage(image)
    bad = int(np.count_nonzero(~np.isfinite(voxels)))
    if bad:
        what = f"has {bad} voxel(s) that are NaN or infinite"
        raise ScanError("not-finite", path, what, "export it again without filters")
    largest = max(abs(float(voxels.min())), abs(float(voxels.max())))
    if largest > MOST_INTENSITY:
        raise ScanError("intensities", path, f"has intensities up to {largest:.3g}", "correct the scale in its header")
    return Scan(
        voxels=voxels,
        spacing=image.GetSpacing(),
        origin=image.GetOrigin(),
        direction=image.GetDirection(),
        stored=sitk.DICOMOrientImageFilter.GetOrientationFromDirectionCosines(stored),
        stored_direction=stored,
        reading=header.reading,
        unclear=header.unclear,
    )


def same_grid(first: Scan, other: Scan) -> bool:
    """Whether the voxels of two scans lie at the same places."""
    return first.voxels.shape == other.voxels.shape and all(
        np.allclose(of_first, of_other, rtol=0, atol=tolerance)
        for of_first, of_other, tolerance in (
            (first.spacing, other.spacing, SPACING_TOLERANCE),
            (first.direction, other.direction, DIRECTION_TOLERANCE),
            (first.origin, other.origin, ORIGIN_TOLERANCE),
        )
    )


def onto_grid_of(first: Scan, other: Scan) -> Scan:
    """A scan interpolated linearly on the grid of another one; float32, and 0 where it has no voxel."""
    resampled = sitk.Resample(
        sitk.Cast(_image_of(other), sitk.sitkFloat32), _image_of(first), sitk.Transform(), sitk.sitkLinear, 0.0
    )
    reading = other.reading.model_copy(update={"resampled": "onto the grid of the first sequence, linearly"})
    return replace(first, voxels=sitk.GetArrayFromImage(resampled), reading=reading, unclear=other.unclear)


def require_text(path: Path) -> None:
    """Refuse a file name that is not valid UTF-8, which would crash ITK.

    Raises:
        ScanError: it is not.
    """
    shown = os.fsencode(path).decode("utf-8", "replace")
    if shown != str(path):
        raise ScanError("name-encoding", Path(shown), "has a name that is not valid UTF-8", "rename it")


def write_scan(scan: Scan, path: Path) -> None:
    """Write a scan with its geometry; the suffix of ``path`` chooses the format."""
    sitk.WriteImage(_image_of(scan), str(path), useCompression=True)


def _image_of(scan: Scan) -> sitk.Image:
    image = sitk.GetImageFromArray(np.ascontiguousarray(scan.voxels))
    image.SetSpacing(scan.spacing)
    image.SetOrigin(scan.origin)
    image.SetDirection(scan.direction)
    return image


def content_hash(voxels: np.ndarray) -> str:
    """SHA-256 of shape and values, the same for any file format, integer type or compression."""
    digest = hashlib.sha256(repr(voxels.shape).encode())
    digest.update(np.ascontiguousarray(voxels, dtype="<f4").tobytes())
    return digest.hexdigest()
