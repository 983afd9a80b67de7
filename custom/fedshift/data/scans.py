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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name

from fedshift.data.dicom_scan import DicomFault, DicomSource, DicomVolume, find_stack, read_stack
from fedshift.data.dicom_volumes import NotEven, SeveralFrames, Stack, VolumeFault
from fedshift.data.reader_logs import quiet_readers
from fedshift.data.scan_file import ScanError, SeveralVolumes, reading, suffix_of
from fedshift.data.series import NoSeries, folder_and_uid, is_dicom, is_series, list_series, whole_of
from fedshift.data.volume_file import MOST_VOXELS, file_of, open_file
from fedshift.schema.reading import COMPUTED, Reading

quiet_readers()

ORIENTATION = "RAS"
_COMPLEX = (sitk.sitkComplexFloat32, sitk.sitkComplexFloat64)
MOST_INTENSITY = 1e30
"""Preparation computes in single precision, which ends at 3e38."""


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


def stem_of(path: Path) -> str:
    """The file name without its image suffix; a folder's own name, and the UID where one of its series is named."""
    folder, uid = folder_and_uid(path)
    if uid is not None:
        return f"{folder.name}_{uid}"
    suffix = None if path.is_dir() else suffix_of(path)
    if suffix is None and path.suffix.lower() == ".dcm" and not path.is_dir():
        return path.stem
    return path.name[: -len(suffix)] if suffix else path.name


def read_scan(
    path: Path, *, channel: int | None = None, volume: int | None = None, direction: tuple[float, ...] | None = None
) -> Scan:
    """Read a file, or a folder with one DICOM series, and turn it into RAS.

    Args:
        path: NIfTI, NRRD, MetaImage or whatever else SimpleITK reads; an enhanced DICOM image; or a folder of DICOM
            slices, see `fedshift.data.series`.
        channel: which volume to take from a 4D file (MSD keeps T2 and ADC in one); None refuses 4D.
        volume: which volume to take, from 1, where there are several: of a 4D file or a DICOM series (time points,
            echoes, b-values). What has a single volume is read as it is. None refuses several.
        direction: replaces the direction in the file, for headers that are known to be wrong.

    Raises:
        ScanError: unreadable, truncated, NaN in voxels or geometry, 4D, several or complex values per voxel, fewer
            than three slices, too large, a header with two voxel sizes, a DICOM file whose frames are not read, or
            slices of a series that are not one volume.
    """
    return read_volumes(path, [channel], volume=volume, direction=direction)[0]


def read_volumes(
    path: Path,
    channels: Sequence[int | None],
    *,
    volume: int | None = None,
    direction: tuple[float, ...] | None = None,
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
        raise ScanError(
            "too-large", path, "does not fit into this machine's memory", "crop it, or use a larger machine"
        ) from None


def _read_volumes(
    path: Path, channels: Sequence[int | None], volume: int | None, direction: tuple[float, ...] | None
) -> list[Scan]:
    if is_dicom(path):
        dicom = _read_dicom(path, volume)
        image, said = _as_image(dicom), dicom.reading
    else:
        image, said = open_file(path, trusted=direction is not None)
    if image.GetPixelID() in _COMPLEX:
        raise ScanError("complex-voxels", path, "has complex voxels", "export the magnitude")
    components = image.GetNumberOfComponentsPerPixel()
    if components != 1:
        raise ScanError("colour-voxels", path, f"has {components} values per voxel", "export it in grey, not in colour")
    return [
        _oriented(three, path, direction, _of_volume(said, image, number))
        for three, number in (_three_dimensional(image, path, channel, volume) for channel in channels)
    ]


def _of_volume(said: Reading, image: sitk.Image, number: int | None) -> Reading:
    """The record of one volume of a file; of a 4D file it says which."""
    return said if number is None else said.model_copy(update={"volume": f"{number + 1} of {image.GetSize()[3]}"})


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


def _oriented(image: sitk.Image, path: Path, direction: tuple[float, ...] | None, said: Reading) -> Scan:
    if direction is not None:
        image.SetDirection(direction)
    own = image.GetDirection()
    image = sitk.DICOMOrient(image, ORIENTATION)
    if image.GetSize()[2] < 3:
        raise ScanError(
            "too-few-slices",
            path,
            f"has {image.GetSize()[2]} slice(s)",
            "at least three are needed, export the whole volume",
        )
    voxels = sitk.GetArrayFromImage(image)
    bad = int(np.count_nonzero(~np.isfinite(voxels)))
    if bad:
        raise ScanError(
            "not-finite", path, f"has {bad} voxel(s) that are NaN or infinite", "export it again without filters"
        )
    largest = max(abs(float(voxels.min())), abs(float(voxels.max())))
    if largest > MOST_INTENSITY:
        raise ScanError("intensities", path, f"has intensities up to {largest:.3g}", "correct the scale in its header")
    return Scan(
        voxels=voxels,
        spacing=image.GetSpacing(),
        origin=image.GetOrigin(),
        direction=image.GetDirection(),
        stored=sitk.DICOMOrientImageFilter.GetOrientationFromDirectionCosines(own),
        stored_direction=own,
        reading=said,
    )


def require_text(path: Path) -> None:
    """Refuse a file name that would crash ITK.

    Raises:
        ScanError: the name is not valid UTF-8.
    """
    shown = os.fsencode(path).decode("utf-8", "replace")
    if shown != str(path):
        raise ScanError("name-encoding", Path(shown), "has a name that is not valid UTF-8", "rename it")


def write_scan(scan: Scan, path: Path) -> None:
    """Write a scan with its geometry; the suffix of ``path`` chooses the format."""
    image = sitk.GetImageFromArray(np.ascontiguousarray(scan.voxels))
    image.SetSpacing(scan.spacing)
    image.SetOrigin(scan.origin)
    image.SetDirection(scan.direction)
    sitk.WriteImage(image, str(path), useCompression=True)


def content_hash(voxels: np.ndarray) -> str:
    """SHA-256 of shape and values, the same for any file format, integer type or compression."""
    digest = hashlib.sha256(repr(voxels.shape).encode())
    digest.update(np.ascontiguousarray(voxels, dtype="<f4").tobytes())
    return digest.hexdigest()


def dicom_source(path: Path, *, volume: int | None = None) -> DicomSource:
    """The DICOM files of a scan, in the order of the slices of the volume that is read from them.

    Raises:
        ScanError: as for `read_scan`.
    """
    return _dicom(path, volume)[1]


def _read_dicom(path: Path, volume: int | None) -> DicomVolume:
    stack, source = _dicom(path, volume)
    try:
        return read_stack(stack, source, most_voxels=MOST_VOXELS)
    except (DicomFault, VolumeFault) as error:
        mend = "export the series again" if is_series(path) else "export the series again, or as single slices"
        if isinstance(error, NotEven):
            mend = "resample it onto even slices at right angles"
        raise ScanError("not-one-volume", path, str(error), mend) from None


def _dicom(path: Path, volume: int | None) -> tuple[Stack, DicomSource]:
    """The frames of a DICOM scan, not decoded."""
    again = "export the series again"
    if is_series(path):
        try:
            files = list_series(path).files
        except NoSeries as error:
            raise ScanError(error.code, path, error.what, error.mend) from None
    else:
        files = (path,)
        if whole := whole_of(path):
            what = f"is one of {len(whole.files)} files of one scan"
            raise ScanError(
                "part-of-scan", path, what, f"name all of them as {path.parent / whole.uid}, or their folder"
            )
    try:
        stack, source = find_stack(files, volume=volume)
    except SeveralFrames as error:
        raise SeveralVolumes(
            "several-volumes", path, str(error), "say which one is wanted with --volume N, or export it alone"
        ) from None
    except (DicomFault, VolumeFault) as error:
        raise ScanError("not-one-volume", path, str(error), again) from None
    if len(stack.frames) < 3:
        what = f"has {len(stack.frames)} slice(s)"
        raise ScanError("too-few-slices", path, what, "at least three are needed, export the whole volume")
    return stack, source


def _as_image(found: DicomVolume) -> sitk.Image:
    image = sitk.GetImageFromArray(found.voxels)
    image.SetSpacing(found.box.spacing)
    image.SetOrigin(found.box.origin)
    image.SetDirection(found.box.direction)
    return image


def _three_dimensional(
    image: sitk.Image, path: Path, channel: int | None, volume: int | None
) -> tuple[sitk.Image, int | None]:
    """One volume of a file, and its number from 0 if the file is 4D."""
    size = image.GetSize()
    if image.GetDimension() == 2:
        raise ScanError("too-few-slices", path, "has 1 slice(s)", "at least three are needed, export the whole volume")
    if image.GetDimension() == 3:
        if channel:
            raise ScanError(
                "volume-missing",
                path,
                f"has 1 volume(s), not the expected {channel + 1}",
                "add the others, or download it again",
            )
        return image, None
    if channel is None and volume is not None and image.GetDimension() == 4:
        channel = volume - 1
    if image.GetDimension() > 4 or (channel is None and size[3] > 1):
        raise SeveralVolumes(
            "several-volumes",
            path,
            f"is {image.GetDimension()}D ({' x '.join(map(str, size))})",
            "say which one is wanted with --volume N, or name all of them in order with --sequence",
        )
    pick = channel or 0
    if pick >= size[3]:
        mend = "download it again" if volume is None else "say another --volume"
        raise ScanError("volume-missing", path, f"has {size[3]} volume(s), not the expected {pick + 1}", mend)
    return image[:, :, :, pick], pick
