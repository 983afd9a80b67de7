"""NIfTI files, read as the standard says, also where ITK reads other values or nothing.

ITK adds ``scl_inter`` where ``scl_slope`` is 0, which stands for no scaling (NIfTI-1: "If the scl_slope field is
nonzero, then each voxel value in the dataset should be scaled"); and it reads no NIfTI-2 and no ``.nii.zst``. Such
voxels are read by nibabel, and laid where ITK would lay them. It reads a truncated file without an error, fills the
missing slices with noise, and turns NaN into 0.

A header may say twice where voxels lie (qform and sform), differently, or not at all. ITK takes voxel sizes from
``pixdim``, which the qform goes with, also where only the sform says how the axes lie; nibabel takes them from
the sform.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nibabel
import numpy as np
import SimpleITK as sitk  # noqa: N813 - its customary name
from nibabel.filebasedimages import ImageFileError
from nibabel.openers import ImageOpener
from nibabel.spatialimages import HeaderDataError

from fedshift.data.scan_file import NIFTI, ScanError, suffix_of, too_many_axes
from fedshift.data.volume_file import (
    BROKEN,
    PACKED,
    FileHeader,
    Unclear,
    VolumeFile,
    described,
    in_mm,
    read_information,
    zlib_length,
    zstd_length,
)
from fedshift.schema.reading import Reading

DAMAGED = (ImageFileError, HeaderDataError, OSError, EOFError, ValueError, *BROKEN)
"""What nibabel raises of a file that it cannot open."""
UNITS = {0: "", 1: "m", 2: "mm", 3: "micron"}  # codes of lengths in ``xyzt_units``
MOST_ALONG_AXIS = 32767  # voxels, in NIfTI-1
SINGULAR = 1e-6  # volume of a voxel, as a part of that of a box with its edges, at or below which it has none
MAX_POSITION_DIFFERENCE_MM = 0.1  # positions that differ by less than this count as the same
QUATERNION_ROUNDING = 4e-7
"""By which a² may be off in a quaternion: a header has b, c and d in 32 bits, and a is what they leave to length 1."""
SPACING_DIFFERENCE = 5e-3  # relative difference of voxel sizes up to which they are one, rounded differently
_HEADER_BYTES = 352


def is_nifti(path: Path) -> bool:
    return path.is_file() and suffix_of(path) in NIFTI


class NiftiFile(VolumeFile):
    """A NIfTI file, whose header is read once."""

    @cached_property
    def image(self) -> Any:
        """Nibabel's image, without voxels; None of a file that nibabel cannot open, and `damage` says why."""
        try:
            return nibabel.load(self.path)
        except DAMAGED:
            return None

    @cached_property
    def stored(self) -> Any:
        """The header as the file has it, of which nibabel mends some: 0 mm is 1 mm, -1 mm is 1 mm. None likewise."""
        try:
            with ImageOpener(str(self.path)) as file:
                start = file.read(4)
                file.seek(0)
                sizes = {int.from_bytes(start, "little"), int.from_bytes(start, "big")}
                kind = nibabel.Nifti2Header if nibabel.Nifti2Header.sizeof_hdr in sizes else nibabel.Nifti1Header
                return kind.from_fileobj(file, check=False)
        except DAMAGED:
            return None

    @property
    def scaling(self) -> tuple[float, float]:
        """``scl_slope`` and ``scl_inter`` as the file has them; 1 and 0 of a file that cannot be opened."""
        return (1.0, 0.0) if self.stored is None else (float(self.stored["scl_slope"]), float(self.stored["scl_inter"]))

    @property
    def _is_scaled(self) -> bool:
        return math.isfinite(self.scaling[0]) and self.scaling[0] != 0

    @property
    def _is_unknown_to_itk(self) -> bool:
        return isinstance(self.image.header, nibabel.Nifti2Header) or self.path.name.lower().endswith(".zst")

    def refuse_header(self, *, trusted: bool) -> None:
        if wrong_name := self._name_fault():
            raise ScanError("compression-name", self.path, *wrong_name)
        readable = self.image is not None and self.stored is not None  # otherwise `damage` says what is wrong with it
        if readable and math.prod(self.image.shape[5:]) > 1:  # ITK says the same of 5D, and nothing of more
            raise too_many_axes(self.path, self.image.shape)
        if readable and not trusted and (wrong := self._geometry_fault()):
            raise ScanError("affine", self.path, wrong, "export it again, or correct the affine in its header")
        if readable and not trusted and (wrong := self._spacing_fault()):
            remedy = "write its header again so that both are the same, or export it again"
            raise ScanError("voxel-size", self.path, wrong, remedy)
        if readable and (least := _least_offset(self.stored)) > self.stored["vox_offset"]:  # ITK reads from 348 on
            what = (
                f"has voxels from byte {self.stored['vox_offset']:g} on by its header (vox_offset), within that header"
            )
            raise ScanError("header-data", self.path, what, f"write {least} there, or export it again")
        if self._is_scaled and not math.isfinite(self.scaling[1]):  # nibabel does not read it, and ITK takes 0
            what = f"has an intercept that is not a number ({self.scaling[1]:g}) in its header (scl_inter)"
            remedy = "write the right one into its header, or export it again"
            raise ScanError("scale-in-header", self.path, what, remedy)

    def itk_header(self) -> sitk.ImageFileReader:
        if self.image is None or not self._is_unknown_to_itk:
            return read_information(self.path)
        with TemporaryDirectory() as folder:
            plain = Path(folder) / "header.nii"
            plain.write_bytes(self._plain_header())
            return read_information(plain)

    def damage(self) -> str | None:
        """By the header's number of voxels, the (decompressed) length, and the checksum."""
        name, length = self.path.name.lower(), self.path.stat().st_size
        try:
            if name.endswith(".gz"):
                length = zlib_length(self.path, gzip=True)
            elif name.endswith(".zst"):
                length = zstd_length(self.path)
        except BROKEN as error:
            return f"its compressed data are damaged, {error}"
        if length < 0:
            return "its compressed data end too early"
        if self.image is None:
            return "it has no valid NIfTI header"
        stored = self.image.dataobj
        needed = int(stored.offset) + math.prod(stored.shape) * stored.dtype.itemsize
        return f"{needed - length} of {needed} bytes are missing" if length < needed else None

    def header(self) -> FileHeader:
        if self.image is None:
            return FileHeader(Reading(format="NIfTI"))
        header, (slope, intercept) = self.image.header, self.scaling
        rescale: str | None = None
        remarks: tuple[str, ...] = ()
        if self._is_scaled:
            if (slope, intercept) != (1, 0):
                rescale = f"x {slope:g} {'-' if intercept < 0 else '+'} {abs(intercept):g}"
        elif intercept != 0 and math.isfinite(intercept):
            remarks = (f"scl_slope is {slope:g}, which stands for no scaling, so scl_inter {intercept:g} is not added",)
        reading = Reading(
            format="NIfTI-2" if isinstance(header, nibabel.Nifti2Header) else "NIfTI-1",
            bits=_bits(header.get_data_dtype()),
            rescale=rescale,
            units=described([_unit(header)] * 3),
            geometry=self._geometry_words(),
            remarks=remarks,
        )
        return FileHeader(reading, unclear=tuple(self._unclear()))

    def read(self) -> sitk.Image:
        is_misread = not self._is_scaled and self.scaling[1] != 0  # ITK adds it
        if self.image is None or not (self._is_unknown_to_itk or is_misread):
            return sitk.ReadImage(str(self.path))
        reader, stored = self.itk_header(), self.image.header.get_data_dtype()
        if np.issubdtype(stored, np.complexfloating):
            raise ScanError("complex-voxels", self.path, "has complex voxels", "export the magnitude")
        if stored.fields or reader.GetNumberOfComponents() > 1:
            number = max(len(stored.fields or ()), reader.GetNumberOfComponents())
            what = f"has {number} values per voxel"
            raise ScanError("colour-voxels", self.path, what, "export it in grey, not in colour")
        values = np.asanyarray(self.image.dataobj)
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

    def non_finite(self) -> int:
        stored = self.image.dataobj
        if not np.issubdtype(stored.dtype, np.floating):
            return 0
        return int(np.count_nonzero(~np.isfinite(stored.get_unscaled())))

    def _plain_header(self) -> bytes:
        header = self.image.header
        if max(header["dim"]) > MOST_ALONG_AXIS:
            size = " x ".join(map(str, header.get_data_shape()))
            what = f"has {size} voxels, more than {MOST_ALONG_AXIS:,} along an axis"
            raise ScanError("too-large", self.path, what, "crop or resample it")
        plain = nibabel.Nifti1Header()
        for name in plain:
            if name in header and name not in ("sizeof_hdr", "magic", "vox_offset"):
                plain[name] = header[name]
        plain["vox_offset"] = _HEADER_BYTES
        return bytes(plain.binaryblock.ljust(_HEADER_BYTES, b"\0"))

    def _name_fault(self) -> tuple[str, str] | None:
        """A compressed file that is not called so, or the other way, and the right name."""
        with self.path.open("rb") as file:
            start = file.read(4)
        name = self.path.name
        named = next((end for end in PACKED if name.lower().endswith(end)), "")
        packed = next((end for end, magic in PACKED.items() if start.startswith(magic)), None)
        plain = name[: len(name) - len(named)]
        if packed is not None and packed != named:
            return f"is compressed as {packed}", f"rename it to {plain}{packed}"
        if named and {int.from_bytes(start, "little"), int.from_bytes(start, "big")} & {348, 540}:
            return "is not compressed", f"rename it to {plain}"
        return None

    # --- where voxels lie ---------------------------------------------------------------------------------------------

    def _geometry_fault(self) -> str | None:
        """An affine or voxel sizes that place no voxel, of which ITK replaces some by a geometry of its own."""
        affine = np.asarray(self.image.affine)
        sizes = np.asarray(self.stored["pixdim"], float)[1 : 1 + min(self.image.ndim, 3)]
        if not (np.isfinite(affine).all() and np.isfinite(sizes).all()):
            return "has an affine or voxel sizes in its header that are NaN or infinite"
        if (sizes <= 0).any():
            shown = " x ".join(f"{size:.4g}" for size in sizes)
            readers = "1 mm" if (sizes == 0).any() else "a mirrored axis, and others do not"
            return f"has voxels of {shown} mm in its header (pixdim), which some programs read as {readers}"
        axes = affine[:3, :3]
        if abs(np.linalg.det(axes)) <= SINGULAR * math.prod(np.linalg.norm(axes, axis=0).tolist()):
            return "has a singular affine, whose axes do not span a volume"
        return None

    def _spacing_fault(self) -> str | None:
        """A header whose only affine, the sform, has other voxel sizes than its pixdim; None if it has not."""
        header = None if self.image is None else self.image.header
        if header is None or header["qform_code"] or not header["sform_code"]:
            return None
        of_sform = np.linalg.norm(header.get_sform()[:3, :3], axis=0)
        of_pixdim = np.asarray(header["pixdim"], float)[1:4]
        if np.allclose(of_pixdim, of_sform, rtol=SPACING_DIFFERENCE, atol=0):
            return None
        pixdim, sform = (" x ".join(f"{size:.4g}" for size in sizes) for sizes in (of_pixdim, of_sform))
        read = f"{pixdim} mm by its pixdim, which ITK reads, and of {sform} mm by its sform, as nibabel reads"
        return f"has voxels of {read}"

    def _unclear(self) -> Iterator[Unclear]:
        header = self.image.header
        if math.prod(header.get_data_shape()[2:]) < 2:  # no volume
            return
        if (code := _length_code(header)) not in UNITS:
            what = f"has lengths in a unit that NIfTI does not have (code {code})"
            remedy = "write the unit of its lengths into its header"
            yield Unclear("unit-unknown", what, "they are taken for mm", remedy)
        has_qform, has_sform = bool(header["qform_code"]), bool(header["sform_code"])
        if not (has_qform or has_sform):
            direction = self._direction_and_affine()[0]
            code = sitk.DICOMOrientImageFilter.GetOrientationFromDirectionCosines(direction)
            what = "says no orientation in its header, neither as qform nor as sform"
            remedy = "check that front and back are right"
            yield Unclear("orientation-missing", what, f"it is taken for {code}", remedy, is_twofold=False)
        if not (has_qform and has_sform):
            return
        remedy = "look where the image and its mask lie in a viewer, and write the header again with both the same"
        try:
            apart = _forms_apart(header)
        except ValueError:  # nibabel computes none; SimpleITK, which reads the scan, takes one or the other
            shape, sform = header.get_data_shape(), _affine_in_mm(header.get_sform(), header)
            is_sform = _most_apart(self._direction_and_affine()[1], sform, shape) <= MAX_POSITION_DIFFERENCE_MM
            used = "the sform" if is_sform else "the quaternion, scaled to length 1,"
            what = "has a qform that is no rotation, because its quaternion is longer than 1"
            yield Unclear("forms-differ", what, f"{used} is used", remedy)
            return
        if apart is not None and not math.isfinite(apart):
            what = "has a qform with places that are not in numbers (quatern, qoffset)"
            yield Unclear("forms-differ", what, "the sform is used", remedy)
        elif apart is not None:
            what = f"has a qform and an sform in its header that differ by up to {apart:.3g} mm"
            yield Unclear("forms-differ", what, "the volume in ml is computed from the qform", remedy)

    def _geometry_words(self) -> str:
        """From what of the header ITK takes the voxels' places."""
        header = self.image.header
        if not (header["qform_code"] or header["sform_code"]):
            return "voxel sizes alone, neither qform nor sform"
        if not header["sform_code"]:
            return "qform"
        if not header["qform_code"]:
            return "sform"
        try:
            apart = _forms_apart(header)
        except ValueError:
            return "qform or sform, which differ"
        if apart is not None and not math.isfinite(apart):
            return "sform; the qform is not in numbers"
        return "qform and sform, which agree" if apart is None else "qform; the sform differs"

    def _direction_and_affine(self) -> tuple[tuple[float, ...], np.ndarray]:
        """The direction that SimpleITK reads, and its affine in the world of NIfTI (right, anterior, superior)."""
        reader = self.itk_header()
        n = reader.GetDimension()
        direction = np.reshape(reader.GetDirection(), (n, n))[:3, :3]
        affine = np.eye(4)
        affine[:3, :3] = direction * np.array(reader.GetSpacing()[:3])
        affine[:3, 3] = reader.GetOrigin()[:3]
        return tuple(direction.ravel().tolist()), np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine


def _least_offset(header: Any) -> int:
    """The first byte that voxels may have in a file with its header; 0 where the header is that of two files."""
    is_pair = header["magic"].item()[:2] == b"ni"
    return 0 if is_pair else int(header.sizeof_hdr) + 4


def _length_code(header: Any) -> int:
    return int(header["xyzt_units"]) & 7


def _unit(header: Any) -> str:
    return UNITS.get(_length_code(header), "")


def _affine_in_mm(affine: np.ndarray, header: Any) -> np.ndarray:
    """Nibabel leaves an affine in the header's unit of lengths, and ITK brings it to mm."""
    factor = in_mm(_unit(header)) or 1.0
    stretched: np.ndarray = np.diag([factor, factor, factor, 1.0]) @ affine
    return stretched


def _forms_apart(header: Any) -> float | None:
    """How far qform and sform put a voxel apart at most, in mm; None if it is no more than rounding."""
    shape = header.get_data_shape()
    qform, sform = (_affine_in_mm(form, header) for form in (header.get_qform(), header.get_sform()))
    most, at_first_voxel = _most_apart(qform, sform, shape), _most_apart(qform, sform, (1, 1, 1))
    extent = float(np.linalg.norm(sform[:3, :3] @ (np.array(shape[:3]) - 1)))  # from the first voxel to the last
    rounding = _turn_by_rounding(header) * extent
    if not math.isfinite(most):
        return math.inf
    differ = at_first_voxel > MAX_POSITION_DIFFERENCE_MM or most > MAX_POSITION_DIFFERENCE_MM + rounding
    return most if differ else None


def _turn_by_rounding(header: Any) -> float:
    """Radians by which rounding may have turned a qform; most, a thousandth, near half a turn, as axial scans have."""
    b, c, d = (float(header[f"quatern_{axis}"]) for axis in "bcd")
    a2 = max(0.0, 1 - b * b - c * c - d * d)
    least, most = math.sqrt(max(0.0, a2 - QUATERNION_ROUNDING)), math.sqrt(a2 + QUATERNION_ROUNDING)
    return 2 * max(most - math.sqrt(a2), math.sqrt(a2) - least)


def _most_apart(first: np.ndarray, second: np.ndarray, shape: Sequence[int]) -> float:
    """Largest distance in mm between the places of a volume's corners by two affines."""
    corners = np.array([[i, j, k, 1] for i in (0, 1) for j in (0, 1) for k in (0, 1)], float)
    corners[:, :3] *= np.array(shape[:3]) - 1
    apart = corners @ (first - second).T
    return float(np.linalg.norm(apart[:, :3], axis=1).max())


def _bits(stored: np.dtype) -> str:
    if stored.fields:
        return "colour"
    kinds = {"i": "signed", "u": "unsigned", "f": "floating point", "c": "complex"}
    return f"{8 * stored.itemsize} bits, {kinds.get(stored.kind, stored.kind)}"
