"""The heart on short-axis cine MRI of five centres and four vendors: the challenge M&Ms (2020).

The source is the unpacked ``OpenDataset`` of https://www.ub.edu/mnms: a table ``*opendataset.csv`` with the columns
``External code``, ``Vendor``, ``Centre``, ``ED`` and ``ES``, and for each patient, in ``Training/Labeled``,
``Training/Unlabeled``, ``Validation`` or ``Testing``, a folder ``<code>`` with ``<code>_sa.nii.gz`` and its mask
``<code>_sa_gt.nii.gz``, both 4D, in one of which frames are the heart's phases. Masks are drawn in two of them, the end
of diastole and of systole: each is a case, ``<code>_ED`` and ``<code>_ES``, and both are of one subject. ED and ES are
numbers of frames from 0; a phase without a mask is an error, as of a table that counts from 1. Masks are 1 in the left
ventricle's cavity, 2 in its myocardium, 3 in the right ventricle.

Sites are the centres, ``centre_1`` to ``centre_5``, as in FL-MedSegBench (arXiv:2603.11659); with ``--by vendor`` the
vendors (A Siemens, B Philips, C General Electric, D Canon), ``vendor_A`` to ``vendor_D`` of the data set
``mms_vendors``. Patients of all parts are split anew, by patient: a centre has none in the challenge's training part.
Those of ``Unlabeled`` that have no mask are passed over and counted.

Described in Campello et al., IEEE TMI 40(12), 2021. The layout is as public code reads it; only small made trees of it
have been read here.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from data_prep.volumes import SitePlan, VolumePlan
from fedshift.data.case_check import Decoded
from fedshift.data.cases import CaseFiles, site_fault
from fedshift.data.downloads import names_in
from fedshift.data.labels import Labels
from fedshift.data.scan_file import Finding, reading
from fedshift.data.scan_folders import contents
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import TRUE_SPACING
from fedshift.schema.names import few_names

DATASETS = {"centre": "mms", "vendor": "mms_vendors"}
IMAGE, MASK = "_sa.nii.gz", "_sa_gt.nii.gz"
PHASES = ("ED", "ES")
COLUMNS = ("External code", "Vendor", "Centre", *PHASES)
UNLABELLED = "unlabeled"
LABELS = Labels.named({"left_ventricle": [1], "myocardium": [2], "right_ventricle": [3]})
SOURCE = "M&Ms challenge 2020"
LICENCE = "under the terms of the challenge (https://www.ub.edu/mnms); not for redistribution"
CITATION = (
    "Campello VM et al. Multi-centre, multi-vendor and multi-disease cardiac segmentation: the M&Ms challenge. IEEE "
    "Transactions on Medical Imaging 40(12), 2021"
)


@dataclass(frozen=True)
class Patient:
    """A row of the table: the site by either rule, and the numbers of the frames of `PHASES`, from 0."""

    sites: Mapping[str, str]
    frames: tuple[int, int]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--by``."""
    parser.add_argument("--by", choices=tuple(DATASETS), default="centre", help="what a site is (default: a centre)")


def plan_volumes(source: Path, *, by: str = "centre") -> VolumePlan:
    """Find the patients of a download, two phases of each, and deal them to sites by the table.

    Raises:
        DataError: another layout, a table of another form, or a patient that it does not name.
    """
    names_in(source)  # which says what is wrong with it
    with reading(source):
        images = sorted(file for file in source.rglob(f"*{IMAGE}") if not file.name.startswith("."))
        tables = sorted(file for file in source.rglob("*opendataset.csv") if not file.name.startswith("."))
    if not images or len(tables) != 1:
        held = f"{len(images)} file(s) *{IMAGE} and {len(tables)} table(s) *opendataset.csv"
        expected = "expected OpenDataset with one such table, and Training, Validation and Testing"
        raise DataError("other-data", f"{source} holds {held} ({contents(source)}): {expected}")
    patients = _read_table(tables[0])
    unknown = [file.name for file in images if _code(file) not in patients]
    if unknown:
        what = f"{tables[0]} does not name {few_names(unknown)}, and {source} has them"
        raise DataError("list-incomplete", f"{what}: take the table of this download")
    cases: dict[str, list[CaseFiles]] = {}
    for image in images:
        patient = patients[_code(image)]
        if _mask(image).is_file():
            cases.setdefault(patient.sites[by], []).extend(_phases(image, patient))
    findings = _without_mask(source, images)
    if not cases:
        raise DataError("other-data", f"{source} has no mask *{MASK} beside an image: unpack the labelled patients too")
    plans = [
        SitePlan(
            site=site,
            cases=tuple(cases[site]),
            findings=() if number else findings,  # an error in the download stops the first site
            source=f"{SOURCE}, sites by {by}",
            licence=LICENCE,
            citation=CITATION,
            preparation={TRUE_SPACING: True},
            change=_outlined,
        )
        for number, site in enumerate(sorted(cases))
    ]
    return VolumePlan(dataset=DATASETS[by], labels=LABELS, sites=tuple(plans))


def _code(image: Path) -> str:
    return image.name.removesuffix(IMAGE)


def _mask(image: Path) -> Path:
    return image.with_name(f"{_code(image)}{MASK}")


def _phases(image: Path, patient: Patient) -> list[CaseFiles]:
    code = _code(image)
    return [
        CaseFiles(
            id=f"{code}_{phase}",
            images=(image,),
            channels=(frame,),
            mask=_mask(image),
            mask_channel=frame,
            subject=code,
        )
        for phase, frame in zip(PHASES, patient.frames, strict=True)
    ]


def _outlined(case: str, decoded: Decoded) -> Decoded:
    """Refuse a phase without a mask, also where cases may lack the structures."""
    if not decoded.mask.voxels.any():
        what = f"case {case} has no mask in the frame that the table names"
        raise DataError("mask-empty", f"{what}: take the table of this download, whose frames count from 0")
    return decoded


def _without_mask(source: Path, images: list[Path]) -> tuple[Finding, ...]:
    """A warning for the patients that were published without a mask, an error for each other one."""
    bare = [file for file in images if not _mask(file).is_file()]
    published = [file for file in bare if UNLABELLED in (part.lower() for part in file.relative_to(source).parts)]
    findings = [
        Finding("error", "mask-missing", file, f"has no mask {_mask(file).name}", "download it again", _code(file))
        for file in bare
        if file not in published
    ]
    if published:
        what = f"has {len(published)} patient(s) without a mask in Unlabeled"
        findings.append(Finding("warning", "mask-missing", source, what, "they are left out"))
    return tuple(findings)


def _read_table(path: Path) -> Mapping[str, Patient]:
    """Code -> what the table says of a patient."""
    patients: dict[str, Patient] = {}
    with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if lacking := [column for column in COLUMNS if column not in (rows.fieldnames or ())]:
            columns = few_names([str(name) for name in rows.fieldnames or ()]) or "nothing"
            what = f"{path} has no column {lacking[0]}, it has {columns}"
            raise DataError("list-form", f"{what}: take the table of the challenge's OpenDataset, divided by commas")
        for row in rows:
            code, vendor, centre, *frames = (str(row[column] or "").strip() for column in COLUMNS)
            sites = {"centre": f"centre_{centre}", "vendor": f"vendor_{vendor}"}
            bad = next((site for site in sites.values() if site_fault(site) or site.endswith("_")), None)
            if not code or bad or not all(frame.isdecimal() for frame in frames):
                wrong = f"{bad!r} is no site" if bad else f"{code!r} has the frames {frames[0]!r} and {frames[1]!r}"
                raise DataError("list-form", f"{path}: line {rows.line_num}: {wrong}: correct the line")
            if code in patients:
                raise DataError("list-twice", f"{path} lists {code} twice: take one line away")
            patients[code] = Patient(sites, (int(frames[0]), int(frames[1])))
    return patients
