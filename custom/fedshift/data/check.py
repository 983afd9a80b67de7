"""``check``: list everything that is wrong with a folder of scans, or with prepared sites, in one sentence each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from fedshift.data.case_check import read_case
from fedshift.data.case_notes import Contents, Counts, Notes
from fedshift.data.cases import CaseTable, both_sides, name_fault, sequences_fault, spelled_as
from fedshift.data.colours import colours_of_masks, with_colours
from fedshift.data.dicom import is_dicom_mask
from fedshift.data.labels import Labels, every_label, settle_labels
from fedshift.data.layouts.find import gather
from fedshift.data.layouts.patterns import is_pattern
from fedshift.data.named_masks import names_structures, structures_in
from fedshift.data.scan_file import Finding, ScanError, reading
from fedshift.data.site_check import check_site, other_task, prepared_sites, unlike
from fedshift.schema.codes import ClassCodes
from fedshift.schema.errors import ConfigError, DataError
from fedshift.schema.regions import Regions


def check(
    path: Path,
    *,
    masks: Path | None = None,
    labels: Mapping[str, Sequence[int | str]] = MappingProxyType({}),
    dataset: str = "",
    classes: Sequence[str] | None = None,
    codes: Mapping[str, ClassCodes] = MappingProxyType({}),
    annotated: Sequence[str] | None = None,
    sequences: Mapping[str, str] = MappingProxyType({}),
    wanted: Sequence[str] | None = None,
    volume: int | None = None,
    subject: str | None = None,
    trust_voxels: bool = False,
    interpolate: bool = False,
    regions: Regions | None = None,
    ignore: bool | None = None,
    empty: bool = False,
    progress: Callable[[str], None] | None = None,
    counts: Counts | None = None,
) -> list[Finding]:
    """Examine scans or prepared sites.

    ``path`` is a folder of scans in any known layout, a table of cases, a prepared site, or a folder with several;
    with ``masks`` in a folder of their own it holds the images, and both may be patterns. ``labels`` maps classes to
    values of the masks or names of structures. ``dataset``, ``classes`` (the background first), ``codes``,
    ``regions``, ``ignore`` and ``wanted`` (sequences; None if no task is named) are the task's. ``subject``: whose a
    case is (`fedshift.data.cases.subject_pattern`). ``empty``: masks may be, see `fedshift.schema.codes`. ``counts`` is
    filled in. For the others see `fedshift.data.layouts.find.gather` and `fedshift.data.cases.CaseFiles`.

    Returns:
        Errors and warnings in the order found; preparation refuses what is an error here.

    Raises:
        ConfigError: labels, sequences or subjects that do not fit the table.
        DataError: ``path`` does not exist, or may not be looked at.
    """
    with reading(path):
        by_pattern = masks is not None and (is_pattern(path) or any(sequences.values()))
        exists = by_pattern or path.exists()
    if not exists:
        raise DataError("file-missing", f"{path} does not exist: name the folder that holds the scans")
    contents, progress = Contents(), progress or (lambda _: None)
    prepared = [] if masks else prepared_sites(path)
    counts = counts or Counts()
    if prepared:
        counts.prepared, counts.sites = True, len(prepared)
        findings = [finding for site in prepared for finding in check_site(site, contents, progress, counts)]
        return [*findings, *unlike(prepared), *other_task(prepared, dataset, classes, wanted)]
    try:
        if masks is None or any(sequences.values()):
            tables = gather(path, masks=masks, sequences=sequences, volume=volume)
        else:
            tables = gather(None, images=path, masks=masks, sequences=sequences, volume=volume)
    except ConfigError:
        raise
    except ScanError as error:
        return [Finding.from_error(error)]
    except DataError as error:
        what, _, remedy = str(error).partition(": ")
        return [Finding("error", error.code, path, what, remedy)]
    tables = [table.with_subjects(subject) for table in tables] if subject else tables
    tables = [
        with_colours(table, wanted).with_options(trust_voxels=trust_voxels, interpolate=interpolate, may_be_empty=empty)
        for table in tables
    ]
    counts.pictures = any(table.of_pictures for table in tables)
    counts.sites, counts.samples = len(tables), sum(len(table.cases) for table in tables)
    labels = colours_of_masks(labels, tables)
    meant = [  # first of all, so that labels that do not fit are refused before a scan is read
        settle_labels(
            label_values=labels,
            described=table.labels,
            classes=classes,
            codes=codes,
            annotated=annotated,
            regions=regions,
            ignore=ignore,
            named=all(names_structures(case.mask) for case in table.cases),
        )
        for table in tables
    ]
    findings = []
    for table, of_table in zip(tables, meant, strict=True):
        findings += _check_table(table, of_table, classes, contents, progress, counts)
    for table in tables:
        findings += [*numbers_of_structures(table, labels), *both_sides(table)]
        if table.cases and wanted is not None:
            fault = sequences_fault(spelled_as(table.sequences, wanted), wanted)
            findings += [Finding("error", "other-sequences", table.folder, *fault)] if fault else []
    return findings


def numbers_of_structures(table: CaseTable, label_values: Mapping[str, Sequence[int | str]]) -> list[Finding]:
    """One warning where ``label_values`` has numbers for structures of DICOM masks, which are found by their names."""
    numbers = [(name, value) for name, values in label_values.items() for value in values if isinstance(value, int)]
    if not (numbers and table.cases and all(is_dicom_mask(case.mask) for case in table.cases)):
        return []
    name, value = numbers[0]
    what = (
        f"has DICOM masks, whose structures have names, so that the number in --label {name}={value} is not looked at"
    )
    remedy = f"give the name of the structure, as in --label '{name}=Whole gland', unless it is called {name}"
    return [Finding("warning", "label-number", table.folder, what, remedy)]


def _check_table(
    table: CaseTable,
    labels: Labels | None,
    classes: Sequence[str] | None,
    contents: Contents,
    progress: Callable[[str], None],
    counts: Counts,
) -> Iterator[Finding]:
    yield from table.findings
    if labels is None and table.unusable_labels is not None:
        yield table.unusable_labels
    notes = Notes()
    for case in table.cases:
        progress(f"{table.name} {case.id}")
        if fault := name_fault(case.id, several=len(table.sequences) > 1 and not table.of_pictures):
            what = f"is of a case whose name {case.id!r} {fault[0]}"
            yield Finding("error", "case-name", case.image, what, fault[1])
        decoded, findings = read_case(replace(case, labels=labels))
        yield from findings
        if decoded is not None:
            notes.add(case, decoded)
            yield from contents.shared(case, decoded, split=None, dataset="")
    if labels is None:
        named = bool(table.cases) and all(names_structures(case.mask) for case in table.cases)
        unnamed = list(_without_classes(table) if named else _without_names(table.folder, notes.masks_with, classes))
        counts.unnamed = counts.unnamed or bool(unnamed)
        yield from unnamed
    else:
        yield from notes.not_outlined(table.folder, labels.classes, labels.annotated)
    yield from notes.findings(table.folder, table.folder, len(table.cases), table.sequences)


def _without_classes(table: CaseTable) -> Iterator[Finding]:
    """One warning for a folder of masks that name structures, with these, if nothing says which are wanted."""
    held: Counter[str] = Counter()
    for case in table.cases:
        with suppress(ScanError):  # is found when the mask is read
            held.update(dict.fromkeys(structures_in(case.mask), 1))
    if held:
        shown = ", ".join(f"{name!r} ({times})" for name, times in sorted(held.items(), key=lambda name: -name[1])[:12])
        more = f" and {len(held) - 12} more" if len(held) > 12 else ""
        kind = "DICOM masks" if all(is_dicom_mask(case.mask) for case in table.cases) else "masks"
        what = f"has {kind} with the structures {shown}{more}, and nothing says which of them are classes"
        remedy = "name the task with --task, or each class with its structures, as in --label 'prostate=Whole gland'"
        yield Finding("warning", "labels-missing", table.folder, what, remedy)


def _without_names(
    folder: Path, holders: Mapping[int, Sequence[Path]], classes: Sequence[str] | None
) -> Iterator[Finding]:
    """One finding for a folder whose masks have other values than 0 and 1, and nothing says what they mean.

    It is an error if the task is known, as it then only has to be said which class is which.
    """
    values = sorted(holders.keys() - {0})
    if not values or values == [1]:
        return
    single = [f"{value} in {files[0].name} only" for value, files in sorted(holders.items()) if len(files) == 1]
    shown = ", ".join(map(str, values)) + (f" ({', '.join(single[:3])})" if single and len(holders[0]) > 1 else "")
    listed = ",".join(map(str, values))
    each = every_label([*(classes or ("",)), *("NAME" for _ in values)], values[:3])
    remedy = f"name them, as in {each}" + ("" if classes else f", or merge them, as in --label NAME={listed}")
    what = f"has masks with the label(s) {shown}, and nothing says what they are"
    yield Finding("warning" if classes is None else "error", "labels-missing", folder, what, remedy)
