"""A scan as a file: which names are those of scans, and the error or finding that says what is wrong with one."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedshift.schema.errors import DataError
from fedshift.schema.names import printable

SUFFIXES = (".nii.gz", ".nii.zst", ".nii", ".nrrd", ".mha", ".mhd")
NIFTI = (".nii.gz", ".nii.zst", ".nii")
PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".ppm")
"""Suffixes of pictures, which are scans of one slice (`fedshift.data.picture_scan`)."""
DATA_SUFFIXES = (".raw", ".zraw")  # of the files with the voxels that a MetaImage header names
ALLOW = "allow whoever runs this command to read it, or copy it again"
LOOK_AT_SCAN = "look whether that is right for this scan"
FETCH = "fetch it, as with `datalad get` or `git annex get`, or remove the link"  # how a link to nowhere is mended


class ScanError(DataError):
    """A scan that cannot be used: ``what`` is wrong, and how to fix it (``remedy``), separately for ``data check``."""

    def __init__(self, code: str, path: Path, what: str, remedy: str) -> None:
        super().__init__(code, f"{path} {what}: {remedy}")
        self.path = path
        self.what = what
        self.remedy = remedy


class SeveralVolumes(ScanError):
    """A file with several volumes where one is expected."""


def too_many_axes(path: Path, size: Sequence[int]) -> SeveralVolumes:
    """Of a file whose volumes lie along several axes, such as times and echoes, so that no number names one."""
    what = f"is {len(size)}D ({' x '.join(map(str, size))}), and at most 4D is read"
    remedy = "save the volume that is meant by itself, or all as one 4D file"
    return SeveralVolumes("several-volumes", path, what, remedy)


@dataclass(frozen=True)
class Finding:
    """One result of a check: its code, the file, what is wrong with it, and how to fix it.

    ``case``: the case that cannot be used because of it, where images and masks do not go together.
    """

    level: Literal["error", "warning"]
    code: str
    file: Path
    message: str
    remedy: str
    case: str = ""

    @classmethod
    def from_error(cls, error: ScanError) -> Finding:
        return cls("error", error.code, error.path, error.what, error.remedy)

    def as_error(self) -> ScanError:
        """The finding as an error, where nothing can be done with it."""
        return ScanError(self.code, self.file, self.message, self.remedy)

    def sentence(self) -> str:
        """The finding as one line, whatever is in the file's name."""
        return printable(f"{self.file} {self.message}: {self.remedy}").replace("\n", " ")


def same_form(name: str) -> str:
    """A name in the form in which names are shown and kept: macOS writes ``ü`` as two characters, others as one."""
    return unicodedata.normalize("NFC", name)


def as_compared(name: str) -> str:
    """A file's name as it is compared with others: in one form, and without regard to upper and lower case."""
    return same_form(same_form(name).casefold())


def suffix_of(path: Path) -> str | None:
    """The known image suffix of a file name (``.nii.gz`` counts as one), or None."""
    name = path.name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def has_picture_name(path: Path) -> bool:
    """Whether a file is a picture by its name."""
    return path.name.lower().endswith(PICTURES)


def is_broken_link(path: Path) -> bool:
    """Whether a path is a link to nowhere, as in a checkout whose files were not fetched (datalad, git-annex)."""
    return path.is_symlink() and not path.exists()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around what only reads: an error of the system names its file, or ``path`` if it does not say which.

    Raises:
        ScanError: a file or a folder may not be read.
    """
    try:
        yield
    except OSError as error:
        named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else path
        raise ScanError("file-unreadable", named, f"cannot be read ({error.strerror or error})", ALLOW) from None
