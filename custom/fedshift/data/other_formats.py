"""Scans in formats that are not read: which names are theirs, and what each is converted with.

Nothing is guessed of such files: many have no voxel sizes or orientation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedshift.data.scan_file import SUFFIXES
from fedshift.schema.names import few_names

DEEPEST = 5  # levels of folders below the one that is named: patient, study, series, and some to spare
_MRTRIX = "convert with MRtrix, `mrconvert IN OUT.nii.gz`"
_NIBABEL = "convert with nibabel, `nib-convert IN OUT.nii.gz`"
_AFNI = "convert with AFNI, `3dAFNItoNIFTI IN`"
_PHILIPS = "convert with nibabel, `parrec2nii IN`"
_SLICER = "open in 3D Slicer or ITK-SNAP, and save as NIfTI (.nii.gz)"
_BARE = "an array has no voxel sizes and no orientation: save the scan itself as NIfTI (.nii.gz)"
_FORMATS = (
    ("MRtrix", _MRTRIX, ".mif .mif.gz .mih"),
    ("FreeSurfer", _NIBABEL, ".mgh .mgz"),
    ("MINC", _NIBABEL, ".mnc .minc"),
    ("Analyze or a NIfTI pair", _NIBABEL, ".hdr .hdr.gz .img .img.gz"),
    ("AFNI", _AFNI, ".head .brik .brik.gz"),
    ("Philips PAR/REC", _PHILIPS, ".par .rec"),
    ("NRRD in two files", _SLICER, ".nhdr"),
    ("GIPL", _SLICER, ".gipl .gipl.gz"),
    ("VTK", _SLICER, ".vtk .vti"),
    ("nnU-Net's preprocessed array", "take the scans in nnUNet_raw", ".b2nd"),
    ("NumPy", _BARE, ".npy .npz"),
    ("HDF5", _BARE, ".h5 .hdf5"),
    ("Zarr", _BARE, ".zarr"),
    ("TIFF", _BARE, ".tif .tiff"),
)
OTHER_FORMATS = {suffix: (name, remedy) for name, remedy, suffixes in _FORMATS for suffix in suffixes.split()}
"""Suffix -> whose format it is, and how it is converted. ``.zarr`` is a folder."""
_PACKED_OTHERWISE = ("a compression that is not read", "unpack, or save as .nii.gz")
_PACKED = re.compile(
    rf"({'|'.join(map(re.escape, [*SUFFIXES, *OTHER_FORMATS]))})\.(gz|bz2|zst|xz|lz4|z|zip|7z|rar|tar)$"
)
_HEADERS = {
    ".img": (".hdr", ".mhd"),
    ".img.gz": (".hdr", ".hdr.gz"),
    ".brik": (".head",),
    ".brik.gz": (".head",),
    ".rec": (".par",),
}
"""Of a format in two files: the suffix of the voxels -> those of the header, which is named for both."""


def other_format(path: Path) -> tuple[str, str] | None:
    """Whose format a file is in by its name, if it is not read, and how to convert it; None for any other file."""
    name = path.name.lower()
    if name.endswith(SUFFIXES):
        return None
    suffix = max((suffix for suffix in OTHER_FORMATS if name.endswith(suffix)), key=len, default=None)
    if suffix is not None:
        return OTHER_FORMATS[suffix]
    return _PACKED_OTHERWISE if _PACKED.search(name) else None


def in_other_formats(entries: Iterable[Path]) -> list[Path]:
    """The scans among entries that are passed over because of their format; a header stands for both of two files."""
    by_name = {entry.with_name(entry.name.lower()): entry for entry in entries}
    return [
        entry
        for lower, entry in by_name.items()
        if other_format(entry) is not None
        and entry.is_dir() == lower.name.endswith(".zarr")
        and not any(
            lower.with_name(lower.name.removesuffix(voxels) + header) in by_name
            for voxels, headers in _HEADERS.items()
            if lower.name.endswith(voxels)
            for header in headers
        )
    ]


def passed_over(folder: Path, levels: int = DEEPEST) -> Iterator[Path]:
    """`in_other_formats` of a folder and of those below it, without hidden ones."""
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "__MACOSX")))
    except PermissionError:  # whoever looks for scans there says so
        return
    yield from in_other_formats(entries)
    for entry in entries:
        if levels and entry.is_dir() and not entry.name.lower().endswith(".zarr"):
            yield from passed_over(entry, levels - 1)


def how_to_convert(files: Iterable[Path]) -> str:
    """What to do with files of `in_other_formats`; with which of them, where there are several ways."""
    names: dict[str, list[str]] = {}
    for file in files:
        if other := other_format(file):
            names.setdefault(other[1], []).append(file.name)
    if len(names) == 1:
        return next(iter(names))
    return "; ".join(f"{remedy} ({few_names(names_of_files, most=3)})" for remedy, names_of_files in names.items())
