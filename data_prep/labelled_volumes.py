"""Write a prepared site of volumes to classify: volumes in one orientation, and a manifest with their labels.

The sequences of a case are brought onto the grid of the first one, where they lie otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.dealing import BY_SUBJECT, deal_by_subject, warn_of_moved
from data_prep.pictures import Hashed, Source
from data_prep.replace_folder import replace_folder
from fedshift.data.case_check import readings_of, remarks_of
from fedshift.data.cases import name_fault
from fedshift.data.prepared import FOLDER, sequence_files
from fedshift.data.scan_file import ScanError, as_compared
from fedshift.data.scans import ORIENTATION, Scan, content_hash, onto_grid_of, read_scan, same_grid, write_scan
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import TRUE_SPACING, Case, Manifest, Split, count

log = logging.getLogger(__name__)

SHOWN = 20


@dataclass(frozen=True)
class VolumeSource:
    """A volume that is not read yet: a file or a folder of DICOM for each sequence, and its label or findings.

    ``read``: gives the sequences, where they are not ``files`` of their own; these then are for errors.
    """

    id: str
    files: tuple[Path, ...]
    label: str = ""
    findings: Mapping[str, bool] = field(default_factory=dict)
    subject: str = ""
    split: Split | None = None
    strata: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[], Sequence[Scan]] | None = None


@dataclass(frozen=True, kw_only=True)
class LabelledPlan:
    """The sites of a data set of volumes to classify.

    ``split_rule``: of the sources, all of which have a split or none. ``notes``: what manifests say besides.
    """

    dataset: str
    name: str
    by_site: Mapping[str, Sequence[VolumeSource]]
    classes: tuple[str, ...]
    sequences: tuple[str, ...] = ()
    licence: str
    citation: str
    split_rule: str = BY_SUBJECT.rule
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(map(len, self.by_site.values()))


def write_labelled_sites(
    plan: LabelledPlan,
    root: Path,
    *,
    skip_damaged: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write all sites of a plan, together or not at all; returns their folders ``root/dataset/site``.

    Raises:
        DataError: as `write_labelled`.
    """
    folders = []
    with ExitStack() as together:
        for site, sources in plan.by_site.items():

            def announce(case: str, site: str = site) -> None:
                if progress is not None:
                    progress(f"{site} {case}")

            folders.append(
                write_labelled(
                    sources,
                    root / plan.dataset / site,
                    classes=plan.classes,
                    sequences=plan.sequences,
                    split_rule=plan.split_rule,
                    source=plan.name,
                    licence=plan.licence,
                    citation=plan.citation,
                    notes=plan.notes,
                    skip_damaged=skip_damaged,
                    together=together,
                    progress=announce,
                )
            )
    return folders


def write_labelled(
    sources: Sequence[VolumeSource],
    target: Path,
    *,
    classes: Sequence[str],
    sequences: Sequence[str] = (),
    former: Mapping[str, Split] | None = None,
    split_rule: str = BY_SUBJECT.rule,
    source: str,
    licence: str,
    citation: str = "",
    notes: Mapping[str, Any] | None = None,
    volume: int | None = None,
    true_spacing: bool = False,
    skip_damaged: bool = False,
    together: ExitStack | None = None,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Read and write the volumes of a site; returns its folder ``target``, ``root/dataset/site``.

    The folder is replaced only when everything succeeded.

    Args:
        sources: the volumes.
        target: the site's folder.
        classes: of the task.
        sequences: names of the sequences, in the order of each source's files; empty for one.
        former: split by content hash, of a site that was prepared before.
        split_rule: for the manifest.
        source: where the volumes come from, in a few words.
        licence: licence terms, for the manifest.
        citation: reference, for the manifest.
        notes: what the manifest says besides.
        volume: which one is taken of files and series that have several, from 1.
        true_spacing: voxels of 1 x 1 x 1 mm are no placeholder.
        skip_damaged: leave out volumes with an error; the manifest counts them.
        together: the site gets its name only when this is closed, with the others that are written in it.
        progress: called with the id of each volume before it is read.

    Raises:
        DataError: a name twice or that cannot be a file's, or volumes that cannot be read.
    """
    _refuse_names(sources, several=len(sequences) > 1)
    errors: list[str] = []
    cases: list[Case] = []
    offset = 0
    with ExitStack() if together is None else nullcontext(together) as opened:
        folder = opened.enter_context(replace_folder(target))
        (folder / FOLDER).mkdir()
        names: dict[str, str] = {}
        for each in sources:
            if progress is not None:
                progress(each.id)
            try:
                scans = list(_read(each, volume))
            except DataError as error:
                errors.append(str(error))
                continue
            sha = content_hash(np.stack([scan.voxels for scan in scans])) if len(scans) > 1 else scans[0].sha256
            if (other := names.setdefault(sha, each.id)) != each.id:
                errors.append(f"{each.files[0]} has the same voxels as case {other}: remove one of the two")
                continue
            for scan, file in zip(scans, sequence_files(folder, len(sequences), each.id), strict=True):
                write_scan(scan, file)
            cases.append(_case(each, scans, sha, offset, sequences))
            offset += cases[-1].shape[0]
        for left_out in errors if skip_damaged else ():
            log.warning("left out: %s", left_out)
        if errors and not (skip_damaged and cases):
            more = [f"… and {len(errors) - SHOWN} others"] if len(errors) > SHOWN else []
            title = f"site {target.name} was not prepared, {len(errors)} error(s) in its volumes:"
            raise DataError("scans-damaged", "\n  ".join([title, *errors[:SHOWN], *more]))
        cases = _dealt(cases, sources, former or {}, target)
        preparation = {
            "source": source,
            "orientation": ORIENTATION,
            "split_rule": split_rule,
            **({TRUE_SPACING: True} if true_spacing else {}),
            **({"cases_left_out_as_damaged": len(errors)} if errors else {}),
            **(notes or {}),
        }
        Manifest(
            schema=1,
            dataset=target.parent.name,
            site=target.name,
            kind="patients",
            preparation=preparation,
            classes=tuple(classes),
            sequences=tuple(sequences),
            counts=count(cases, classes),
            cases=tuple(cases),
            licence=licence,
            citation=citation,
        ).write(folder)
    return target


def _read(source: VolumeSource, volume: int | None) -> Iterator[Scan]:
    first: Scan | None = None
    scans = source.read() if source.read else (read_scan(file, volume=volume) for file in source.files)
    for file, scan in zip(source.files, scans, strict=True):
        for remark in remarks_of(file, scan):
            log.warning("%s", remark.sentence())
        if scan.voxels.min() == scan.voxels.max():
            raise ScanError("scan-empty", file, "has the same value everywhere", "export the scan again")
        if first is not None and not same_grid(first, scan):
            scan = onto_grid_of(first, scan)
        first = first or scan
        yield scan


def _case(source: VolumeSource, scans: Sequence[Scan], sha: str, offset: int, sequences: Sequence[str]) -> Case:
    x, y, z = scans[0].spacing
    slices, rows, columns = scans[0].voxels.shape
    return Case(
        id=source.id,
        sha256_image=sha,
        sha256_label="",
        split="train",
        shape=(slices, rows, columns),
        spacing=(round(z, 6), round(y, 6), round(x, 6)),
        direction=tuple(round(cosine, 6) for cosine in scans[0].direction),
        array="arrays",
        offset=offset,
        reading=readings_of(scans, sequences),
        subject=source.subject if source.subject != source.id else "",
        label=source.label,
        findings=dict(source.findings),
        strata=dict(source.strata),
    )


def _dealt(
    cases: Sequence[Case], sources: Sequence[VolumeSource], former: Mapping[str, Split], target: Path
) -> list[Case]:
    stated = {source.id: source.split for source in sources if source.split is not None}
    kept = {case.id: former[case.sha256_image] for case in cases if case.sha256_image in former}
    entries: Hashed = [
        (Source(case.id, case.label, _unread, findings=case.findings, subject=case.subject), case.sha256_image)
        for case in cases
    ]
    split_of = deal_by_subject("", entries, fixed=kept | stated)
    warn_of_moved(target, kept, split_of)
    return [case.model_copy(update={"split": split_of[case.id]}) for case in cases]


def _unread() -> Any:
    raise AssertionError("a volume is no picture")


def _refuse_names(sources: Sequence[VolumeSource], *, several: bool) -> None:
    by_name: dict[str, VolumeSource] = {}
    for source in sources:
        if fault := name_fault(source.id, several=several):
            raise DataError("case-name", f"case name {source.id!r} {fault[0]}: {fault[1]}")
        other = by_name.setdefault(as_compared(source.id), source)
        if other is not source:
            what = f"case id {source.id} is there twice ({other.files[0]} and {source.files[0]})"
            raise DataError("case-twice", f"{what}: rename or remove one")
