"""The header of a NIfTI file: as nibabel has it, and in a form that ITK reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nibabel
import numpy as np
from nibabel.openers import ImageOpener

from fedshift.data import lengths
from fedshift.data.integrity import DAMAGED
from fedshift.data.scan_file import NIFTI, ScanError, suffix_of

UNITS = {0: "", 1: "m", 2: "mm", 3: "micron"}
"""Codes of lengths in ``xyzt_units``."""
MOST_ALONG_AXIS = 32767
"""Voxels, in NIfTI-1."""
_HEADER_BYTES = 352


def is_nifti(path: Path) -> bool:
    """Whether a path names a NIfTI file."""
    return path.is_file() and suffix_of(path) in NIFTI


def header_of(path: Path) -> Any:
    """Nibabel's header; None of another format, or a file that nibabel cannot open."""
    if not is_nifti(path):
        return None
    try:
        return nibabel.load(path).header
    except DAMAGED:
        return None  # `fedshift.data.integrity` says what is wrong with it


def scaling_of(path: Path) -> tuple[float, float]:
    """``scl_slope`` and ``scl_inter`` as the file has them: nibabel's image keeps them from its header.

    1 and 0 of a file that cannot be opened.
    """
    try:
        with ImageOpener(str(path)) as file:
            start = file.read(4)
            file.seek(0)
            sizes = {int.from_bytes(start, "little"), int.from_bytes(start, "big")}
            kind = nibabel.Nifti2Header if nibabel.Nifti2Header.sizeof_hdr in sizes else nibabel.Nifti1Header
            stored = kind.from_fileobj(file, check=False)
    except DAMAGED:
        return 1.0, 0.0  # `fedshift.data.integrity` says what is wrong with it
    return float(stored["scl_slope"]), float(stored["scl_inter"])


def length_code(header: Any) -> int:
    """The code of the unit of lengths, one of `UNITS` in a valid header."""
    return int(header["xyzt_units"]) & 7


def unit_of(header: Any) -> str:
    """The unit of lengths; "" where the header has none that NIfTI has."""
    return UNITS.get(length_code(header), "")


def affine_in_mm(affine: np.ndarray, header: Any) -> np.ndarray:
    """Nibabel leaves an affine in the header's unit of lengths, and ITK brings it to mm."""
    factor = lengths.in_mm(unit_of(header)) or 1.0
    stretched: np.ndarray = np.diag([factor, factor, factor, 1.0]) @ affine
    return stretched


def is_unknown_to_itk(path: Path, header: Any) -> bool:
    """Whether ITK reads nothing of a file that nibabel reads."""
    return isinstance(header, nibabel.Nifti2Header) or path.name.lower().endswith(".zst")


@contextmanager
def as_itk_reads(path: Path) -> Iterator[Path]:
    """A file whose header ITK reads as that at ``path``: itself, or, where ITK cannot, a header of NIfTI-1 alone.

    Raises:
        ScanError: a size that NIfTI-1 has no room for.
    """
    header = header_of(path)
    if header is None or not is_unknown_to_itk(path, header):
        yield path
        return
    if max(header["dim"]) > MOST_ALONG_AXIS:
        size = " x ".join(map(str, header.get_data_shape()))
        what = f"has {size} voxels, more than {MOST_ALONG_AXIS:,} along an axis"
        raise ScanError("too-large", path, what, "crop or resample it")
    plain = nibabel.Nifti1Header()
    for name in plain:
        if name in header and name not in ("sizeof_hdr", "magic", "vox_offset"):
            plain[name] = header[name]
    plain["vox_offset"] = _HEADER_BYTES
    with TemporaryDirectory() as folder:
        beside = Path(folder) / "header.nii"
        beside.write_bytes(plain.binaryblock.ljust(_HEADER_BYTES, b"\0"))
        yield beside
