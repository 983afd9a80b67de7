"""Prepare a hospital's own pictures, or volumes, to be classified, whose classes a table says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from data_prep.dealing import BY_SUBJECT, deal_by_subject, warn_of_moved
from data_prep.labelled_volumes import VolumeSource, write_labelled
from data_prep.own_scans import LICENCE
from data_prep.pictures import Dealing, Hashed, PictureSet, Plan, Source, write_pictures
from data_prep.volumes import OWN_SCANS
from fedshift.data.cases import site_fault
from fedshift.data.decode import read_picture
from fedshift.data.label_table import Labelled, LabelTable, read_labels
from fedshift.data.scan_file import as_compared, suffix_of
from fedshift.data.series import is_series
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import FILE_NAME, Split, read_manifest
from fedshift.schema.strict import nearest

log = logging.getLogger(__name__)

SHOWN = 20


def prepare_labelled(
    table: Path,
    site: str,
    root: Path,
    *,
    dataset: str,
    images: Path | None = None,
    subject: str | None = None,
    classes: Sequence[str] | None = None,
    findings: bool | None = None,
    volumes: bool | None = None,
    wanted: Sequence[str] = (),
    volume: int | None = None,
    true_spacing: bool = False,
    sizes: Sequence[int] = (224,),
    channels: Literal[1, 3] = 3,
    bits: int | None = None,
    licence: str = LICENCE,
    skip_damaged: bool = False,
    every_site: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Prepare a site from a table (`fedshift.data.label_table`); returns ``root/dataset/site``.

    The site is written completely and replaced only when everything succeeded. Pictures and volumes that it had before
    keep their splits, and new ones of their subjects join them; what the table no longer lists is gone.

    Args:
        table: the table of labels, or a folder with one for each class.
        site: the site's name in the federation; of a table with a column ``site`` its rows.
        root: root folder of the prepared data.
        dataset: the data set the site takes part in.
        images: the folder that the table's files are in; by default the table's.
        subject: whose an image in a folder of a class is (`fedshift.data.class_folders.class_rows`).
        classes: of the task; None for those of the table.
        findings: whether the task takes findings; None goes by the table.
        volumes: whether they are volumes, and not pictures; None goes by the first file.
        wanted: the sequences that the task takes of volumes, empty for one.
        volume: which one is taken of files and series with several volumes, from 1.
        true_spacing: voxels of 1 x 1 x 1 mm are no placeholder.
        sizes: sides of pictures in pixels, each cached.
        channels: 1 for grey, 3 for colour.
        bits: that grey pictures of 16 bits use (`fedshift.data.depth`).
        licence: licence terms, for the manifest.
        skip_damaged: leave out pictures that cannot be read.
        every_site: take the rows of all sites, where the table has a column ``site``.
        progress: called with the name of each picture before it is read.

    Raises:
        DataError: the table or a picture cannot be used; the error names each line.
    """
    for what, name in (("dataset", dataset), ("site", site)):
        if fault := site_fault(name):
            raise DataError("site-name", f"{what} name {name!r} {fault[0]}: {fault[1]}")
    rows_of = "" if every_site else site
    read = read_labels(table, images=images, site=rows_of, classes=classes, findings=findings, subject=subject)
    refuse_faults(read, site)
    target = root / dataset / site
    former = _former_splits(target)
    if volumes is None:
        first = read.rows[0].files[0]
        volumes = suffix_of(first) is not None or is_series(first) or len(read.rows[0].files) > 1
    if volumes:
        names = _sequences(read, wanted)
        return write_labelled(
            [_volume_source(row, read.sequences, names) for row in read.rows],
            target,
            classes=read.classes,
            sequences=names,
            former=former,
            split_rule=split_rule(read),
            source=OWN_SCANS,
            licence=licence,
            notes=table_notes(read),
            volume=volume,
            true_spacing=true_spacing,
            skip_damaged=skip_damaged,
            progress=progress,
        )
    if read.sequences:
        message = f"{table} has the sequences {', '.join(read.sequences)}, and the task takes pictures, which have none"
        raise DataError("kind-of-data", f"{message}: name the picture in a column 'file'")
    sources = [
        Source(
            row.id,
            row.label,
            partial(read_picture, row.files[0]),
            findings=row.findings,
            subject=row.subject if row.subject != row.id else "",
            strata=row.strata,
        )
        for row in read.rows
    ]
    stated = {row.id: row.split for row in read.rows if row.split is not None}

    def deal(site: str, pictures: Hashed) -> Mapping[str, Split]:
        kept = {picture.id: former[sha] for picture, sha in pictures if sha in former}
        dealt = deal_by_subject(site, pictures, fixed=kept | stated)
        warn_of_moved(target, kept, dealt)
        return dealt

    about = PictureSet(
        dataset=dataset,
        name=OWN_SCANS,
        sites=(site,),
        classes=read.classes,
        described="",
        licence=licence,
        citation="",
        channels=channels,
    )
    plan = Plan(about, {site: sources}, tuple(sizes), Dealing(deal, split_rule(read), notes=table_notes(read)))
    return write_pictures(plan, root, bits=bits, skip_damaged=skip_damaged, progress=progress)[0]


def _sequences(table: LabelTable, wanted: Sequence[str]) -> tuple[str, ...]:
    """The sequences of a table that the task takes, as the task writes them; all if it names none."""
    known = {as_compared(name): name for name in table.sequences}
    if not wanted:
        return table.sequences
    if len(wanted) == 1 and not table.sequences:
        return tuple(wanted)
    for name in wanted:
        if as_compared(name) not in known:
            what = f"{table.path} has no column 'file {name}'{nearest(name, table.sequences)}"
            raise DataError("sequence-unknown", f"{what}: the task takes {', '.join(wanted)}")
    return tuple(wanted)


def _volume_source(row: Labelled, known: Sequence[str], names: Sequence[str]) -> VolumeSource:
    place = {as_compared(name): number for number, name in enumerate(known)}
    files = tuple(row.files[place[as_compared(name)]] for name in names) if known else row.files
    name = row.id.replace("/", "_")
    return VolumeSource(
        name[: len(name) - len(suffix_of(Path(name)) or "")],
        files,
        label=row.label,
        findings=row.findings,
        subject=row.subject,
        split=row.split,
        strata=row.strata,
    )


def refuse_faults(table: LabelTable, site: str) -> None:
    """Raise one error for all that is wrong with a table, and log warnings.

    Raises:
        DataError: there is an error.
    """
    for fault in table.faults:
        if fault.level == "warning":
            log.warning("%s", fault.sentence())
    if table.errors:
        lines = [fault.sentence() for fault in table.errors[:SHOWN]]
        more = [f"… and {len(table.errors) - SHOWN} others"] if len(table.errors) > SHOWN else []
        title = f"site {site} was not prepared, {len(table.errors)} error(s) in its table:"
        raise DataError("table-faults", "\n  ".join([title, *lines, *more]))


def split_rule(table: LabelTable) -> str:
    """How the manifest names the split."""
    count = sum(row.split is not None for row in table.rows)
    rule = BY_SUBJECT.rule
    return rule if not count else "of the table" if count == len(table.rows) else f"{count} of the table, others {rule}"


def table_notes(table: LabelTable) -> dict[str, Any]:
    """What the manifest says of the labels."""
    notes = {
        "findings_without_column": list(table.without_column),
        "uncertain_taken_as_unknown": table.uncertain,
        "rows_left_out_as_unlabelled": table.unlabelled,
    }
    return {key: value for key, value in notes.items() if value}


def _former_splits(target: Path) -> dict[str, Split]:
    """Content -> the split that it had, of a site that was prepared before."""
    if not (target / FILE_NAME).is_file():
        return {}
    manifest = read_manifest(target)
    if manifest.has_masks:
        raise DataError("kind-of-data", f"{target} holds volumes with masks: give another --site, --dataset or --out")
    if OWN_SCANS not in str(manifest.preparation.get("source")):
        raise DataError("folder-in-use", f"{target} is of a public data set: give another --site, --dataset or --out")
    return {
        **{picture.sha256: picture.split for picture in manifest.pictures},
        **{case.sha256_image: case.split for case in manifest.cases},
    }
