"""Brain tumours of the BraTS and FeTS challenges: four MRI sequences, three regions, sites by FeTS's partition.

The source is an unpacked download: a folder for each subject, at any depth, with its sequences and its mask beside each
other, on one grid of 1 mm:

FeTS 2022, BraTS 2020 and 2021
    ``<id>_t1.nii.gz``, ``<id>_t1ce.nii.gz``, ``<id>_t2.nii.gz``, ``<id>_flair.nii.gz``, ``<id>_seg.nii.gz`` (or
    ``.nii``); 1 is the necrotic core, 2 edema, 4 the enhancing tumour. One mask of BraTS 2020 ends in ``_Segm``.
BraTS 2023
    ``<id>-t1n.nii.gz``, ``<id>-t1c.nii.gz``, ``<id>-t2w.nii.gz``, ``<id>-t2f.nii.gz``, ``<id>-seg.nii.gz``; 3 is the
    enhancing tumour. Scans of one patient (``BraTS-GLI-00005-000``, ``-001``) stay together.

FeTS 2022 has the files ``partitioning_1.csv`` (``Partition_ID``, ``Subject_ID``: the 23 institutions that the scans are
of) and ``partitioning_2.csv`` (33, the largest five of them divided by the tumours' size). ``--partition 1`` is the
default where the download has one, and ``--partition FILE`` is another table of these two columns. The sites are called
``institution_01`` and so on, of the data set ``brats``, or ``brats_partition_2``. BraTS does not say where its scans
are from; without a table all are one site, BraTS.

Folders without a mask, as of validation parts, are passed over. Described in Pati et al., arXiv:2105.05874, and Baid et
al., arXiv:2107.02314; https://www.synapse.org/fets2022, https://www.synapse.org/brats.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from data_prep.volumes import SitePlan, VolumePlan
from fedshift.data.cases import CaseFiles, site_fault
from fedshift.data.labels import Labels
from fedshift.data.scan_file import Finding, reading
from fedshift.data.scans import stem_of
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import TRUE_SPACING
from fedshift.schema.names import few_names

DATASET, SITE = "brats", "BraTS"
SEQUENCES = ("t1", "t1ce", "t2", "flair")
SOURCE = "brain tumours of BraTS or FeTS"
LICENCE = "under the terms of the challenge that it was downloaded from; not for redistribution"
CITATION = (
    "Pati S et al. The Federated Tumor Segmentation (FeTS) Challenge. arXiv:2105.05874, 2021; Baid U et al. The "
    "RSNA-ASNR-MICCAI BraTS 2021 Benchmark. arXiv:2107.02314, 2021; Menze BH et al. The Multimodal Brain Tumor Image "
    "Segmentation Benchmark (BRATS). IEEE Transactions on Medical Imaging 34(10), 2015"
)
DEEPEST = 4
"""Levels of folders that are looked into."""


@dataclass(frozen=True)
class Names:
    """How the files of a subject end: the sequences in the order of `SEQUENCES`, and the mask; and its values."""

    sequences: tuple[str, ...]
    masks: tuple[str, ...]
    labels: Labels


def _labels(enhancing: int) -> Labels:
    return Labels.named({"necrotic_core": [1], "edema": [2], "enhancing_tumor": [enhancing]})


FORMS = (
    Names(("_t1", "_t1ce", "_t2", "_flair"), ("_seg", "_segm"), _labels(4)),
    Names(("-t1n", "-t1c", "-t2w", "-t2f"), ("-seg",), _labels(3)),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--partition``."""
    parser.add_argument(
        "--partition",
        metavar="1|2|FILE",
        help="the sites: FeTS's first or second table, or a file like it (default: the first, if it is there)",
    )


def plan_volumes(source: Path, *, partition: str | None = None) -> VolumePlan:
    """Find the subjects of a download, and deal them to sites by a partition.

    Raises:
        DataError: no known layout, subjects of both forms, no such partition, or a subject that it does not name.
    """
    form, cases, findings = _subjects(source)
    table = _table(source, partition)
    if table is None:
        sites = {SITE: cases}
    else:
        institution = _institutions(table)
        lost = [case.id for case in cases if case.id not in institution]
        if lost:
            raise DataError(
                "list-incomplete",
                f"{table} does not name {few_names(lost)}, and {source} has them: name the table of these subjects "
                "with --partition",
            )
        sites = {}
        for case in cases:
            sites.setdefault(institution[case.id], []).append(case)
    second = table is not None and table.name == "partitioning_2.csv"
    site_plans = [
        SitePlan(
            site=site,
            cases=tuple(sites[site]),
            findings=findings if number == 0 else (),  # an error stops the first site
            source=SOURCE if table is None else f"{SOURCE}, sites by {table.name}",
            licence=LICENCE,
            citation=CITATION,
            preparation={TRUE_SPACING: True},
        )
        for number, site in enumerate(sorted(sites))
    ]
    dataset = f"{DATASET}_partition_2" if second else DATASET
    return VolumePlan(dataset=dataset, labels=form.labels, sequences=SEQUENCES, sites=tuple(site_plans))


# --- subjects ---------------------------------------------------------------------------------------------


def _subjects(source: Path) -> tuple[Names, list[CaseFiles], tuple[Finding, ...]]:
    by_form: dict[int, list[CaseFiles]] = {}
    findings: list[Finding] = []
    for folder in _folders(source):
        files = {stem_of(file).lower(): file for file in sorted(folder.iterdir()) if _is_scan(file)}
        for number, form in enumerate(FORMS):
            masks = [file for stem, file in files.items() if stem.endswith(form.masks)]
            images = {end: [file for stem, file in files.items() if stem.endswith(end)] for end in form.sequences}
            if not masks or not any(images.values()):
                continue
            wrong = [end for end, matches in images.items() if len(matches) != 1]
            if wrong or len(masks) > 1:
                what = f"has not one file that ends in {wrong[0] if wrong else form.masks[0]}"
                remedy = "download the subject again"
                findings.append(Finding("error", "sequence-missing", folder, what, remedy, folder.name))
                continue
            case = CaseFiles(
                folder.name, tuple(matches[0] for matches in images.values()), masks[0], sequences=SEQUENCES
            )
            by_form.setdefault(number, []).append(replace(case, subject=_patient(folder.name)))
    if len(by_form) != 1:
        what = "subjects of BraTS 2023 beside others" if by_form else "no subject with the four sequences and a mask"
        raise DataError(
            "other-data",
            f"{source} has {what}: expected a folder for each, such as FeTS2022_00000 with FeTS2022_00000_t1.nii.gz, "
            "_t1ce, _t2, _flair and _seg, or BraTS-GLI-00000-000 with -t1n, -t1c, -t2w, -t2f and -seg",
        )
    (number, cases), *_ = by_form.items()
    return FORMS[number], cases, tuple(findings)


def _folders(source: Path) -> Iterator[Path]:
    """The folders of a download, in order of their names."""
    depth = len(source.parts)
    with reading(source):
        for place, below, _ in os.walk(source):
            below.sort()
            if len(Path(place).parts) - depth >= DEEPEST:
                below.clear()
            yield Path(place)


def _is_scan(file: Path) -> bool:
    return file.name.lower().endswith((".nii", ".nii.gz")) and not file.name.startswith(".")


def _patient(case: str) -> str:
    """Whose scan it is, where the last number of an id is that of a visit; "" where each is another patient's."""
    visit = re.fullmatch(r"(BraTS-\w+-\d+)-\d{3}", case)
    return visit[1] if visit else ""


# --- partitions -------------------------------------------------------------------------------------------


def _table(source: Path, partition: str | None) -> Path | None:
    """The file of a partition; None if nobody asks for one and there is none."""
    if partition not in (None, "1", "2"):
        path = Path(partition)
        if not path.is_file():
            raise DataError("file-missing", f"{path} does not exist: name the table of --partition")
        return path
    name = f"partitioning_{partition or 1}.csv"
    table = next((folder / name for folder in _folders(source) if (folder / name).is_file()), None)
    if table is None and partition is not None:
        raise DataError("file-missing", f"{source} has no {name}: leave out --partition, or give the file of a table")
    return table


def _institutions(table: Path) -> Mapping[str, str]:
    """Subject -> site."""
    sites: dict[str, str] = {}
    with reading(table), table.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        for column in ("Partition_ID", "Subject_ID"):
            if column not in (rows.fieldnames or ()):
                raise DataError("list-form", f"{table} has no column {column}: give a table like partitioning_1.csv")
        for row in rows:
            subject, number = (str(row[column] or "").strip() for column in ("Subject_ID", "Partition_ID"))
            site = f"institution_{int(number):02d}" if number.isdecimal() else number
            if not subject or (fault := site_fault(site)):
                why = fault[0] if subject and fault else "is empty"
                raise DataError("list-form", f"{table}: line {rows.line_num}: {site!r} {why}: correct the line")
            if sites.setdefault(subject, site) != site:
                raise DataError("list-twice", f"{table} lists {subject} twice, at {sites[subject]} and {site}")
    return sites
