"""A folder for each class, ``NORMAL/0001.png``, as a table of labels; also below ``train``, ``val`` and ``test``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedshift.data.cases import subject_pattern
from fedshift.data.scan_file import as_compared, suffix_of
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.manifest import Split
from fedshift.schema.names import few_names
from fedshift.schema.strict import nearest

PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".dcm")
MACOS = "__MACOSX"
"""The folder that macOS adds to an archive."""
SPLITS: dict[str, Split] = {
    **{"train": "train", "training": "train"},
    **{"val": "val", "valid": "val", "validation": "val"},
    **{"test": "test", "testing": "test"},
}
"""Names of folders, in lower case, that say a split."""


def images_in(folder: Path) -> Iterator[Path]:
    """Pictures and volumes in a folder and below it, in the order of their names; none that are hidden."""
    for file in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") or part == MACOS for part in file.relative_to(folder).parts)
        if not hidden and (file.name.lower().endswith(PICTURES) or suffix_of(file)) and file.is_file():
            yield file


def stem(file: Path) -> str:
    """A file's name without its suffix, which may have two parts (``.nii.gz``)."""
    suffix = suffix_of(file) or file.suffix
    return file.name[: len(file.name) - len(suffix)]


def class_rows(
    folder: Path, *, classes: Sequence[str] | None = None, subject: str | None = None
) -> tuple[list[str], list[list[str]]]:
    """The columns and rows of a table of labels that says what the folders do.

    Args:
        folder: has a folder for each class, or ``train``, ``val`` and ``test`` with these.
        classes: of the task; None takes the names of the folders.
        subject: whose an image is, by its path below the folder of its class, without the suffix; a pattern as of
            `fedshift.data.cases.subject_pattern`. None: of a person of its own.

    Raises:
        DataError: no image, images beside the folders, or a folder that is no class.
        ConfigError: a pattern that does not fit a path.
    """
    files = [file.relative_to(folder) for file in images_in(folder)]
    named = {as_compared(name) for name in classes or ()}
    tops = {file.parts[0] for file in files if len(file.parts) > 1}
    are_splits = bool(tops) and all(as_compared(top) in SPLITS and as_compared(top) not in named for top in tops)
    depth = 1 + are_splits
    if not files:
        raise DataError(
            "no-cases", f"{folder} holds no image: name a folder with one for each class, or a table (.csv)"
        )
    loose = [str(file) for file in files if len(file.parts) <= depth]
    if loose:
        raise DataError(
            "layout-unknown",
            f"{folder} has images that are in no folder of a class ({few_names(loose)}): move them into one, or write "
            "a table of labels (.csv)",
        )
    if classes is not None:
        known = [each.replace("_", " ") for each in named]
        for name in sorted({file.parts[depth - 1] for file in files}):
            if as_compared(name).replace("_", " ") not in known:
                raise DataError(
                    "layout-unknown",
                    f"{folder} has a folder {name!r}, which is no class of the task{nearest(name, classes)}: rename "
                    "it, or move it away",
                )
    split = {file: SPLITS[as_compared(file.parts[0])] if are_splits else "" for file in files}
    rows = [[str(file), file.parts[depth - 1], split[file], _subject(file, depth, subject, folder)] for file in files]
    return ["file", "label", "split", "subject"], rows


def _subject(file: Path, depth: int, pattern: str | None, folder: Path) -> str:
    if pattern is None:
        return ""
    named = Path(*file.parts[depth:])
    match = subject_pattern(pattern).fullmatch((named.parent / stem(named)).as_posix())
    if match is None:
        raise ConfigError(
            "subject-unmatched",
            f"--subject {pattern!r} does not fit {file} in {folder}: write one that fits all, or a table of labels "
            "(.csv) with a column 'subject'",
        )
    return match[1]
