"""Scans by pattern, as in BIDS: ``sub-*/anat/*_T2w.nii.gz`` and ``derivatives/**/sub-*_mask.nii.gz``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedshift.data.cases import CaseTable
from fedshift.data.dicom import identify
from fedshift.data.layouts.names import NamedImage, match
from fedshift.data.other_formats import how_to_convert, in_other_formats
from fedshift.data.scan_file import Finding, suffix_of
from fedshift.data.scan_folders import contents, warn_of_formats
from fedshift.schema.errors import DataError
from fedshift.schema.names import few_names

_WILDCARD = re.compile(r"[*?[]")
_ENTITIES = re.compile(
    r"(?:^|[/_])(sub-[^/_]+(?:_(?![A-Za-z]+-)[^/_]+)*(?=/)|sub-[^/_.]+(?:_(?!\d{4}\.)\d+(?=[_/.]|$))*)"
    r"(?:[/_](?:[^/]*_)?(ses-[^/_.]+))?"
)
"""Subject and session. In names that are not BIDS a subject may be ``sub-NORTH_01``, as a folder ``sub-NORTH_A``."""


def is_pattern(path: Path) -> bool:
    """Whether a path has wildcards and is not itself there."""
    return _WILDCARD.search(str(path)) is not None and not path.exists()


def pair_patterns(images: Mapping[str, str], masks: str, *, base: Path) -> CaseTable:
    """The files that patterns find, of the images of each sequence ("" for one unnamed) and of the masks.

    A file's case is what BIDS calls it (``sub-01``, or ``sub-01_ses-2`` where there are sessions) in the part of its
    path that begins at the first wildcard; otherwise what the first ``*`` of the pattern stands for. A subject may have
    letters of any language, and number after ``_``: ``sub-NORTH_01``. Relative patterns begin at ``base``.
    """
    images_found: list[NamedImage] = []
    findings: list[Finding] = []
    for name, pattern in images.items():
        files, others = _files(pattern, base)
        findings += warn_of_formats(others)
        images_found += [NamedImage(case, file, name) for case, file in files]
    wanted, others = _files(masks, base)
    findings += warn_of_formats(others)
    paired = match(images_found, wanted, name=base.resolve().name, folder=base, layout="patterns", keys=tuple(images))
    return replace(paired, findings=(*findings, *paired.findings))


def _files(pattern: str, base: Path) -> tuple[list[tuple[str, Path]], list[Path]]:
    """Case and file of all scans that a pattern finds, hidden files left out; and scans in formats that are not read.

    The folders before the first wildcard are where the search begins: they may be hidden, and they name no case.
    """
    parts = Path(pattern).parts
    if not Path(pattern).name:  # "." or "/"
        raise _names_no_case(pattern)
    fixed = next((k for k, part in enumerate(parts) if _WILDCARD.search(part)), len(parts) - 1)
    start, rest = base.joinpath(*parts[:fixed]), str(Path(*parts[fixed:]))
    stars = _regex(rest)
    files = [
        file
        for file in sorted(start.glob(rest))
        if not any(part.startswith(".") for part in file.relative_to(start).parts)
    ]
    others = in_other_formats(files)
    scans = [file for file in files if file.is_dir() or suffix_of(file) or identify(file)]
    if not scans:
        remedy = "correct the pattern"
        if others:
            shown = few_names([file.name for file in others])
            remedy = f"{shown} {'is' if len(others) == 1 else 'are'} not read, {how_to_convert(others)}"
        what = f"{pattern!r} finds no scan below {start} ({_nearest_folder(start, rest)})"
        raise DataError("pattern-empty", f"{what}: {remedy}")
    return [(_case(file.relative_to(start), stars, pattern), file) for file in scans], others


def _nearest_folder(start: Path, rest: str) -> str:
    """What there is where a pattern, followed folder by folder, finds nothing more."""
    last = start
    for number in range(1, len(Path(rest).parts)):
        folder = next(
            (path for path in sorted(start.glob(str(Path(*Path(rest).parts[:number])))) if path.is_dir()), None
        )
        if folder is None:
            break
        last = folder
    if not last.is_dir():
        return "which does not exist"
    return contents(last) if last == start else f"in {last}: {contents(last)}"


def _case(inside: Path, stars: re.Pattern[str], pattern: str) -> str:
    text = inside.as_posix()
    matched = stars.fullmatch(text)
    if entities := _ENTITIES.search(text):
        begin, end = entities.span(1)
        wild = [stop for start, stop in (matched.regs[1:] if matched else ()) if begin <= start and stop <= end]
        if wild and text.startswith("_", max(wild)):  # what follows is the pattern's and no case's: sub-*_T2w/scan.nii
            end = max(wild)
        return "_".join(part for part in (text[begin:end], entities[2]) if part)
    if matched is None or not matched.groups():
        raise _names_no_case(pattern)
    name = matched[1]
    suffix = suffix_of(Path(name)) or (".dcm" if name.lower().endswith(".dcm") else "")
    return name[: len(name) - len(suffix)]


def _names_no_case(pattern: str) -> DataError:
    what = f"{pattern!r} has no * that tells one case from another: put one in place of the case's name"
    return DataError("pattern-form", what)


def _regex(pattern: str) -> re.Pattern[str]:
    parts = []
    for part in Path(pattern).parts:
        if part == "**":
            parts.append("(?:[^/]+/)*")
            continue
        pieces = re.split(r"(\*|\?|\[[^\]]*\])", part)
        shown = {"*": "([^/]*)", "?": "[^/]"}
        parts.append("".join(shown.get(p) or (p if p.startswith("[") else re.escape(p)) for p in pieces) + "/")
    return re.compile("".join(parts).removesuffix("/"))
