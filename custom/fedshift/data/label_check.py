"""``fedshift data check DIR --table FILE``: what is wrong with a table of labels, and with the images that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fedshift.data.case_notes import Counts
from fedshift.data.decode import cached_picture, picture_sha256, read_picture
from fedshift.data.depth import Depth, warnings_of
from fedshift.data.label_table import Labelled, LabelTable, read_labels
from fedshift.data.scan_file import LOOK_AT_SCAN, Finding, ScanError, suffix_of
from fedshift.data.series import is_series
from fedshift.schema.errors import DataError
from fedshift.schema.names import also_in

SIDE = 8
"""To which a picture is made smaller, to find what cannot be."""
REMARKS = ("scan-remark", "unit-unknown", "orientation-missing", "origin-missing", "forms-differ")
"""Codes of what readers remark on, which is often the same in many files of a scanner."""


def check_table(
    table: Path,
    images: Path,
    *,
    subject: str | None = None,
    classes: Sequence[str] | None = None,
    findings: bool | None = None,
    volumes: bool | None = None,
    volume: int | None = None,
    channels: int = 3,
    progress: Callable[[str], None] | None = None,
    counts: Counts | None = None,
) -> list[Finding]:
    """Read a table of labels and every image that it names.

    Args:
        table: the table, or a folder with one for each class.
        images: the folder that its paths and ids are of.
        subject: whose an image in a folder of a class is.
        classes: of the task; None for those of the table.
        findings: whether the task takes findings; None goes by the table.
        volumes: whether they are volumes; None goes by the first file.
        volume: which one is taken of files and series with several volumes, from 1.
        channels: 1 for grey pictures, 3 for colour.
        progress: called with the id of each image before it is read.
        counts: is filled in.

    Returns:
        Errors and warnings in the order found.
    """
    try:
        read = read_labels(table, images=images, classes=classes, findings=findings, subject=subject)
    except DataError as error:
        what, _, remedy = str(error).removeprefix(str(table)).strip().partition(": ")
        return [Finding("error", error.code, table, what, remedy)]
    counts = counts or Counts()
    if volumes is None:
        first = read.rows[0].files[0] if read.rows else images
        volumes = suffix_of(first) is not None or is_series(first) or bool(read.sequences)
    counts.sites, counts.samples, counts.pictures = 1, len(read.rows), not volumes
    look = _volumes(read, volume, progress) if volumes else _pictures(read, channels, progress)
    return [*read.faults, *_remarks_once(look)]


def _remarks_once(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, in which what a reader remarks on several files is said once, with the others' names."""
    kept: list[Finding] = []
    first: dict[tuple[str, str], int] = {}
    others: dict[int, list[str]] = {}
    for finding in findings:
        number = first.setdefault((finding.code, finding.message), len(kept))
        if finding.code not in REMARKS or number == len(kept):
            kept.append(finding)
        else:
            others.setdefault(number, []).append(finding.file.name)
    for number, names in others.items():
        kept[number] = replace(kept[number], message=f"{kept[number].message}{also_in('file(s)', names)}")
    return kept


def _pictures(table: LabelTable, channels: int, progress: Callable[[str], None] | None) -> Iterator[Finding]:
    first: dict[str, Labelled] = {}
    for row in _rows_with_files(table, progress):
        file = row.files[0]
        try:
            picture = read_picture(file)
            small = cached_picture(picture, Depth([lambda picture=picture: picture]), size=SIDE, channels=channels)  # type: ignore[misc]
        except DataError as error:
            what, _, remedy = str(error).removeprefix(str(file)).strip().partition(": ")
            yield Finding("error", error.code, file, what, remedy or "export it again", row.id)
            continue
        for remark in warnings_of(picture):
            yield Finding("warning", "scan-remark", file, remark, LOOK_AT_SCAN, row.id)
        if (small == small[:, :1, :1]).all():
            what = "has the same colour everywhere"
            yield Finding("warning", "scan-empty", file, what, "look whether it is the right picture", row.id)
        other = first.setdefault(picture_sha256(picture), row)
        if other is not row and (other.label, other.findings) != (row.label, row.findings):
            what = f"{row.beginning}{row.id} is the same picture as {other.id}{other.place}, with other labels"
            yield Finding("warning", "labels-differ", table.path, what, "look which are right", row.id)


def _volumes(table: LabelTable, volume: int | None, progress: Callable[[str], None] | None) -> Iterator[Finding]:
    from fedshift.data.case_check import remarks_of
    from fedshift.data.scans import read_scan

    for row in _rows_with_files(table, progress):
        for file in row.files:
            try:
                scan = read_scan(file, volume=volume)
            except ScanError as error:
                yield Finding.from_error(error)
                continue
            yield from remarks_of(file, scan)


def _rows_with_files(table: LabelTable, progress: Callable[[str], None] | None) -> Iterator[Labelled]:
    """The rows whose files are there; of others the table's faults say it."""
    for row in table.rows:
        if progress is not None:
            progress(row.id)
        if all(file.exists() or is_series(file) for file in row.files):
            yield row
