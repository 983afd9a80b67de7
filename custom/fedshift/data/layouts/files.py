"""What lies in a folder: its scans, its masks, and what is passed over."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedshift.data.cases import Finding
from fedshift.data.dicom_masks import is_dicom_mask
from fedshift.data.other_formats import how_to_convert
from fedshift.data.scan_file import is_broken_link, reading, suffix_of
from fedshift.schema.names import few_names


def visible(folder: Path) -> list[Path]:
    """Entries of a folder without hidden ones, such as the ``._`` files of macOS archives.

    Raises:
        ScanError: the folder may not be read.
    """
    with reading(folder):
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "__MACOSX")))
        for entry in entries[:1]:
            entry.is_dir()  # a folder may let its entries be listed and not be looked at
        return entries


def scan_files(folder: Path) -> list[Path]:
    """The scans in a folder, by name; also links to nowhere, so that whoever reads them says so."""
    return [entry for entry in visible(folder) if suffix_of(entry) and (entry.is_file() or is_broken_link(entry))]


def mask_files(folder: Path) -> list[Path]:
    """The files in a folder that may be masks, DICOM masks among them, by name."""
    return sorted([*scan_files(folder), *(entry for entry in visible(folder) if is_dicom_mask(entry))])


def contents(folder: Path) -> str:
    """What is in a folder, in a few words."""
    names = [entry.name + ("/" if entry.is_dir() else "") for entry in visible(folder)]
    return f"found {few_names(names)}" if names else "it is empty"


def not_read(files: Iterable[Path]) -> list[Finding]:
    """A warning for each folder that has some of these files, whose formats are not read."""
    held: dict[Path, list[Path]] = {}
    for file in files:
        held.setdefault(file.parent, []).append(file)
    return [
        Finding(
            "warning",
            "format-not-read",
            folder,
            f"has scans that are not read: {few_names([file.name for file in those])}",
            how_to_convert(those),
        )
        for folder, those in held.items()
    ]
