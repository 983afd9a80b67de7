"""Pictures and a file with the polygons of all of them, as COCO has it: ``images/`` and ``annotations.json``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedshift.data.cases import CaseTable
from fedshift.data.layouts.names import NamedImage, match
from fedshift.data.picture_structures import is_coco, read_coco
from fedshift.data.scan_file import Finding, as_compared, has_picture_name
from fedshift.data.scan_folders import picture_files, visible
from fedshift.data.scans import stem_of

FOLDERS = ("images", "scans", "data")


def recognise(folder: Path, sequences: Sequence[str]) -> CaseTable | None:
    """The pictures of a folder with files of polygons, beside them or in ``annotations``; None of another layout."""
    beside = [entry for entry in visible(folder) if entry.suffix.lower() == ".json" and entry.is_file()]
    below = folder / "annotations"
    beside += [entry for entry in visible(below) if entry.suffix.lower() == ".json"] if below.is_dir() else []
    files = [file for file in beside if is_coco(file)]
    return pair_polygons(folder, files, folder.name) if files else None


def pair_polygons(images: Path, files: Sequence[Path], name: str | None = None) -> CaseTable:
    """The pictures below a folder that files name, and what these say of them.

    Raises:
        ScanError: a file that cannot be read.
    """
    folders = [images, *(images / each for each in FOLDERS if (images / each).is_dir())]
    held = {as_compared(file.name): file for folder in folders for file in picture_files(folder)}
    masks, findings = [], []
    for file in files:
        for picture in read_coco(file).pictures:
            stem = stem_of(Path(Path(picture).name))
            if has_picture_name(Path(picture)) and as_compared(Path(picture).name) not in held:
                what, remedy = f"names {picture}, which is not there", "add the picture, or remove its entry"
                findings.append(Finding("error", "image-missing", file, what, remedy, stem))
            else:
                masks.append((stem, file / picture))
    entries = [NamedImage(stem_of(file), file) for file in held.values()]
    table = match(entries, masks, name=name or images.name, folder=images, layout="folders")
    return CaseTable(table.name, table.folder, table.layout, table.cases, (*table.findings, *findings))
