"""Find the table of cases in what somebody names: a folder in a known layout, two folders, patterns, or a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedshift.data.cases import CaseFiles, CaseTable
from fedshift.data.cases_csv import is_table, read_cases
from fedshift.data.layouts import case_folders, described, polygons, studies
from fedshift.data.layouts.dataset_json import read_description
from fedshift.data.layouts.described import against_list, pair_beside_description
from fedshift.data.layouts.names import doubled, pair_beside, pair_folders
from fedshift.data.layouts.patterns import is_pattern, pair_patterns
from fedshift.data.other_formats import how_to_convert, passed_over
from fedshift.data.scan_file import Finding, ScanError, as_compared, reading
from fedshift.data.scan_folders import contents, picture_files, scan_files, visible, warn_of_formats
from fedshift.data.scans import stem_of
from fedshift.schema.errors import ConfigError
from fedshift.schema.names import few_names

IMAGE_FOLDERS = ("images", "scans")
MASK_FOLDERS = ("masks", "labels", "segmentations")
LAYOUTS = (
    "CaseXX.nii.gz beside CaseXX_segmentation.nii.gz (also .mhd, .mha, .nrrd; of pictures .png, .jpg, "
    ".tif, .bmp; also one folder for each site), "
    "a folder 'images' or 'scans' with a folder 'masks', imagesTr with labelsTr (Decathlon, nnU-Net), or a folder for "
    "each case with a file for each sequence and mask.nii.gz, or DICOM studies with DICOM masks; of pictures "
    "also a folder for each class in masks, or a file of polygons as COCO has it"
)
PART = re.compile(r"(.+)_part\d+", re.IGNORECASE)  # a download in parts, such as TrainingData_Part1


def gather(
    source: Path | None,
    *,
    images: Path | None = None,
    masks: Path | None = None,
    sequences: Mapping[str, str] | None = None,
    volume: int | None = None,
) -> list[CaseTable]:
    """The scans that a command line names.

    ``source`` is a folder in any known layout, a table of cases (`fedshift.data.cases_csv`), or what relative patterns
    begin at; ``images`` and ``masks`` are folders or patterns; ``sequences`` are names, each with a pattern or "";
    ``volume``: which volume to take of images that have several, from 1.

    Raises:
        ConfigError: arguments that do not go together.
        DataError: nothing is found, or a file or a folder may not be read.
    """
    with reading(images or masks or source or Path()):
        tables = _named(source, images, masks, sequences or {})
    return tables if volume is None else [table.with_volume(volume) for table in tables]


def find_sets(path: Path, sequences: Sequence[str] = ()) -> list[CaseTable]:
    """All scans below a folder, up to two levels down. ``sequences``: those to take, see `CaseTable.with_sequences`.

    Raises:
        ScanError: no known layout; the message lists what was found and what is expected.
    """
    with reading(path):
        if not path.is_dir():
            raise ScanError("not-a-folder", path, "is not a folder", "name the folder that holds the scans")
        tables = _merge_parts(list(_walk(path, sequences, levels=2)))
        others = list(passed_over(path))
    if not any(table.cases or table.findings for table in tables) and others:
        shown = few_names([str(file.relative_to(path)) for file in others])
        what = f"holds scans in formats that are not read ({shown})"
        raise ScanError("format-not-read", path, what, how_to_convert(others))
    if not tables:
        what = f"holds no scans in a known layout ({contents(path)})"
        raise ScanError("layout-unknown", path, what, f"expected {LAYOUTS}")
    _refuse_two_of_one_kind(path, tables)
    return _with_not_read(tables, others)


def _named(
    source: Path | None, images: Path | None, masks: Path | None, sequences: Mapping[str, str]
) -> list[CaseTable]:
    names = tuple(sequences)
    patterns = {name: pattern for name, pattern in sequences.items() if pattern}
    if source is not None and is_table(source):
        if images or masks or patterns:
            what = f"{source} names images and masks: leave out --images, --masks, patterns"
            raise ConfigError("options-clash", what)
        return [table.with_sequences(names) for table in read_cases(source)]
    if patterns:
        if len(patterns) < len(sequences) or images is not None or masks is None:
            what = "--sequence NAME=PATTERN takes the place of --images: give a pattern for every sequence, and --masks"
            raise ConfigError("options-clash", what)
        return [pair_patterns(patterns, str(masks), base=source or Path())]
    if images is None and masks is None:
        if source is None:
            what = "no scans are named: give --images and --masks, or --source for a folder with both"
            raise ConfigError("scans-missing", what)
        return [table.with_sequences(names) for table in find_sets(source, names)]
    if images is None or masks is None:
        raise ConfigError("options-clash", "--images and --masks go together: name both folders, or both patterns")
    if is_pattern(images) or is_pattern(masks):
        if len(sequences) > 1:
            what = "several sequences by pattern: give --sequence NAME=PATTERN for each, without --images"
            raise ConfigError("options-clash", what)
        return [pair_patterns({next(iter(sequences), ""): str(images)}, str(masks), base=source or Path())]
    if source is not None:
        images, masks = source / images, source / masks
    table = _pair(images, masks).with_sequences(names)
    folders = [folder for folder in (images, masks) if folder.is_dir()]
    return _with_not_read([table], dict.fromkeys(file for folder in folders for file in passed_over(folder)))


# --- recognising a folder -----------------------------------------------------------------------------------------


def _walk(path: Path, sequences: Sequence[str], levels: int) -> Iterator[CaseTable]:
    for recognise in RECOGNISERS:
        if (table := recognise(path, sequences)) is not None:
            yield table
            return
    for folder in sorted((entry for entry in visible(path) if entry.is_dir()), key=lambda entry: entry.name.lower()):
        if levels:
            yield from _walk(folder, sequences, levels - 1)


def _two_folders(path: Path, sequences: Sequence[str]) -> CaseTable | None:
    inside = {entry.name.lower(): entry for entry in visible(path) if entry.is_dir()}
    images, masks = (
        next((inside[name] for name in names if name in inside), None) for names in (IMAGE_FOLDERS, MASK_FOLDERS)
    )
    return _pair(images, masks, path.name) if images and masks else None


def _beside(path: Path, sequences: Sequence[str]) -> CaseTable | None:
    if not scan_files(path):
        pictures = pair_beside(path) if picture_files(path) else None
        return pictures if pictures and pictures.cases else None  # others are in many folders
    table = pair_beside(path)
    if not table.cases and case_folders.is_case(path):
        raise ScanError("one-case", path, "looks like one case", "name the folder above it")
    return table


RECOGNISERS: tuple[Callable[[Path, Sequence[str]], CaseTable | None], ...] = (
    described.recognise,
    polygons.recognise,
    _two_folders,
    _beside,
    case_folders.recognise,
    studies.recognise,
)
"""Each makes a table of a folder in its layout, and None of another; the first that does is followed."""


def _pair(images: Path, masks: Path, name: str | None = None) -> CaseTable:
    """Images and masks in two folders: by name, or, where the masks are DICOM or polygons, by what they refer to."""
    if masks.is_file() and masks.suffix.lower() == ".json":
        return polygons.pair_polygons(images, [masks], name)
    if images.is_dir() and masks.is_dir() and images.resolve() != masks.resolve() and studies.has_dicom_masks(masks):
        return studies.pair_studies(images, masks, name or images.parent.name)
    description = read_description(images.absolute().parent)
    table = pair_beside_description(images, masks, description) or pair_folders(images, masks, name)
    return replace(table, findings=(*table.findings, *against_list(table, masks, description)))


def _with_not_read(tables: Sequence[CaseTable], others: Iterable[Path]) -> list[CaseTable]:
    """Warn about ``others``, scans in formats that are not read: with the table that they lie in, or else the first."""
    warnings: list[list[Finding]] = [[] for _ in tables]
    used = {file for table in tables for case in table.cases for file in (*case.images, case.mask)}
    for finding in warn_of_formats(file for file in others if file not in used):
        places = {finding.file, *finding.file.parents}
        warnings[next((k for k, table in enumerate(tables) if table.folder in places), 0)].append(finding)
    return [replace(table, findings=(*table.findings, *more)) for table, more in zip(tables, warnings, strict=True)]


def _refuse_two_of_one_kind(path: Path, tables: Sequence[CaseTable]) -> None:
    if len(tables) != 2 or any(table.cases or table.layout != "beside" for table in tables):
        return
    names = [{as_compared(stem_of(file)) for file in scan_files(table.folder)} for table in tables]
    if names[0] == names[1]:
        first, second = (table.folder for table in tables)
        same = f"{first.name} and {second.name}"
        what = f"holds two folders with the same names, {same}, and nothing says which has the masks"
        remedy = f"name them, as in --images {first} --masks {second}, or call them images and masks"
        raise ScanError("masks-unclear", path, what, remedy)


def _merge_parts(tables: Sequence[CaseTable]) -> list[CaseTable]:
    """Join tables that are the parts of one download; ids must stay unique over all parts."""
    merged: dict[str, list[CaseTable]] = {}
    for part in tables:
        name = PART.fullmatch(part.folder.name)
        merged.setdefault(name[1].lower() if name else str(part.folder), []).append(part)
    return [parts[0] if len(parts) == 1 else _join(parts) for parts in merged.values()]


def _join(parts: Sequence[CaseTable]) -> CaseTable:
    first: dict[str, CaseFiles] = {}
    findings = [finding for part in parts for finding in part.findings]
    unclear = set()
    for case in (case for part in parts for case in part.cases):
        other = first.setdefault(as_compared(case.id), case)
        if other is not case:
            findings.append(doubled(case.id, other.image, case.image))
            unclear.add(as_compared(case.id))
    folder = parts[0].folder.parent
    cases = tuple(case for key, case in first.items() if key not in unclear)
    return CaseTable(folder.name, folder, parts[0].layout, cases, tuple(findings), parts[0].sequences)
