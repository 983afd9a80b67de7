"""Prostate MRI: prepare unpacked public downloads, one folder per site.

Three distributions are recognised by their layout. Images are T2-weighted volumes, masks cover the entire gland: where
they tell two zones apart (values 1 and 2), both are the prostate.

Six sites (Liu et al. 2020)
    "Multi-site dataset for prostate MRI segmentation", linked from https://liuquande.github.io/SAML/: 116
    volumes of 384 x 384 in the folders BIDMC (12), HK (12), I2CVB (19), ISBI or RUNMC (30), ISBI_1.5 or BMC
    (30), UCL (13), as ``CaseXX.nii.gz`` with ``CaseXX_segmentation.nii.gz`` (or ``_Segmentation``). Described in
    Liu, Dou, Yu, Heng, IEEE TMI 2020 (MS-Net) and Liu, Dou, Heng, MICCAI 2020. FedFA, FedRDN and HarmoFL use
    this set.
PROMISE12
    https://promise12.grand-challenge.org, training cases: ``CaseXX.mhd`` and ``.raw`` with
    ``CaseXX_segmentation.mhd``, 50 volumes, in one folder or in ``TrainingData_Part1`` to ``Part3``. Test cases
    have no masks; a folder without any mask is skipped. Described in Litjens et al., Medical Image Analysis 2014.
    The set does not name the hospital of a case; the ranges in ``PROMISE12_SITES`` are inferred from case order,
    matrix size, slice count, endorectal coil and intensity range, and RUNMC and UCL might be swapped. The same
    files sorted into site folders as NIfTI are recognised too.
MSD Task05
    http://medicaldecathlon.com, ``Task05_Prostate.tar`` (about 230 MB): 32 training volumes from Radboud, 4D
    with T2 and ADC as channels (T2 is used), zones 1 and 2 as labels. One site, MSD. ``imagesTs`` has no masks
    and is skipped. Described in Antonelli et al., Nature Communications 2022.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data_prep.volumes import CaseFiles, SitePlan, VolumePlan
from fedshift.data.cases import UNNAMED, CaseTable
from fedshift.data.labels import Labels
from fedshift.data.layouts.find import find_sets
from fedshift.data.scan_file import Finding
from fedshift.schema.errors import DataError
from fedshift.schema.names import comma_separated
from fedshift.schema.strict import nearest

SITES = ("BIDMC", "HK", "I2CVB", "BMC", "RUNMC", "UCL", "MSD")
SITE_OF_FOLDER = {
    "BIDMC": "BIDMC",
    "HK": "HK",
    "I2CVB": "I2CVB",
    "BMC": "BMC",
    "ISBI_1.5": "BMC",
    "RUNMC": "RUNMC",
    "ISBI": "RUNMC",
    "UCL": "UCL",
}
GLAND = Labels.named({"prostate": (1, 2)})
"""In all three distributions 2, where there is one, is a zone of the gland."""
MERGED = {"labels": "values above 1 merged into 1"}
PROMISE12_SITES = {"BIDMC": range(0, 13), "RUNMC": range(13, 25), "UCL": range(25, 38), "HK": range(38, 50)}


@dataclass(frozen=True)
class Distribution:
    """Name, licence terms and reference of a public distribution."""

    name: str
    licence: str
    citation: str


LIU2020 = Distribution(
    "multi-site prostate MRI of Liu et al. 2020",
    "research use, under the terms of the sources (NCI-ISBI 2013, I2CVB, PROMISE12); not for redistribution",
    "Liu Q, Dou Q, Yu L, Heng PA. MS-Net: multi-site network for improving prostate segmentation with "
    "heterogeneous MRI data. IEEE Transactions on Medical Imaging 39(9), 2020",
)
PROMISE12 = Distribution(
    "PROMISE12 training cases",
    "research use, under the terms of the PROMISE12 challenge; not for redistribution",
    "Litjens G et al. Evaluation of prostate segmentation algorithms for MRI: the PROMISE12 challenge. "
    "Medical Image Analysis 18(2), 2014",
)
MSD = Distribution(
    "Medical Segmentation Decathlon, Task05_Prostate",
    "CC-BY-SA 4.0",
    "Antonelli M et al. The Medical Segmentation Decathlon. Nature Communications 13, 4128, 2022",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--sites``."""
    parser.add_argument("--sites", type=comma_separated, metavar="A,B", help="only these sites (default: all)")


def plan_volumes(source: Path, *, sites: Sequence[str] | None = None) -> VolumePlan:
    """Find the sites of a download, in the order of ``SITES``.

    Args:
        source: the unpacked download; the module's docstring describes the layouts.
        sites: only these sites; default all that are found.

    Raises:
        DataError: an unknown layout or site.
    """
    unknown = [site for site in sites or () if site not in SITES]
    if unknown:
        raise DataError("site-unknown", f"no site is called {unknown[0]!r}{nearest(unknown[0], SITES)}")
    plans = _plans(source, find_sets(source))
    absent = [site for site in sites or () if site not in {plan.site for plan in plans}]
    if absent:
        names = ", ".join(plan.site for plan in plans)
        raise DataError(
            "site-unknown", f"{source} has no site {', '.join(absent)}: it holds {names}, name some of these"
        )
    chosen = tuple(plan for plan in plans if not sites or plan.site in sites)
    return VolumePlan(dataset="prostate", labels=GLAND, sites=chosen)


def _plans(source: Path, sets: Sequence[CaseTable]) -> list[SitePlan]:
    if any(table.layout == "described" for table in sets):
        table = _t2_only(next(table for table in sets if table.layout == "described"))
        return [_plan("MSD", table.cases, table.findings, MSD)]
    sets = [table for table in sets if table.cases or _site_of(table)]
    if sets and any(_site_of(table) for table in sets):
        return _by_folder(source, sets)
    if len(sets) == 1 and all(_promise12_site(case) for case in sets[0].cases):
        return _by_number(sets[0])
    names = ", ".join(f"{table.name}/ with {len(table.cases)} case(s)" for table in sets)
    raise DataError(
        "other-data",
        f"{source} is no known prostate download, it holds {names or 'images without masks'}: expected site folders "
        f"({', '.join(SITE_OF_FOLDER)}), PROMISE12's Case00 to Case49, or MSD's imagesTr and labelsTr; "
        "for scans of your own use 'fedshift data prepare own'",
    )


def _plan(site: str, cases: tuple[CaseFiles, ...], findings: tuple[Finding, ...], origin: Distribution) -> SitePlan:
    return SitePlan(
        site=site,
        cases=cases,
        findings=findings,
        source=origin.name,
        licence=origin.licence,
        citation=origin.citation,
        preparation=MERGED,
    )


def _t2_only(table: CaseTable) -> CaseTable:
    """Take T2, or the first of sequences without names, and leave it without a name, as in the other distributions."""
    names = {name.lower(): name for name in table.sequences}
    if "t2" not in names and not all(UNNAMED.fullmatch(name) for name in names):
        raise DataError(
            "other-data",
            f"{table.folder / 'dataset.json'} names the channels {', '.join(names)}, not T2: it is not the prostate "
            "task, prepare it with 'fedshift data prepare msd'",
        )
    number = table.sequences.index(names["t2"]) if "t2" in names else 0
    cases = tuple(
        replace(case, images=(case.images[number],), channels=case.channels[number : number + 1], sequences=())
        for case in table.cases
    )
    return replace(table, cases=cases, sequences=())


def _by_folder(source: Path, sets: Sequence[CaseTable]) -> list[SitePlan]:
    folders: dict[str, CaseTable] = {}
    for table in sets:
        site = _site_of(table)
        if site is None:
            hint = nearest(table.name.upper(), SITE_OF_FOLDER)
            raise DataError("other-data", f"{table.folder} holds scans but is no known site{hint}")
        if site in folders:
            raise DataError(
                "site-twice", f"{source} has site {site} twice, as {folders[site].name} and {table.name}: remove one"
            )
        folders[site] = table
    promise12 = all(_promise12_site(case) == site for site, table in folders.items() for case in table.cases)
    origin = PROMISE12 if promise12 else LIU2020
    ordered = [(site, folders[site]) for site in SITES if site in folders]
    return [_plan(site, table.cases, table.findings, origin) for site, table in ordered]


def _by_number(table: CaseTable) -> list[SitePlan]:
    plans: list[SitePlan] = []
    for site in SITES:
        cases = tuple(case for case in table.cases if _promise12_site(case) == site)
        if cases:  # an error in the download stops the first site
            plans.append(_plan(site, cases, () if plans else table.findings, PROMISE12))
    return plans


def _site_of(table: CaseTable) -> str | None:
    return SITE_OF_FOLDER.get(table.name.upper())


def _promise12_site(case: CaseFiles) -> str | None:
    match = re.fullmatch(r"case(\d\d)", case.id, re.IGNORECASE)
    number = int(match[1]) if match else -1
    return next((site for site, numbers in PROMISE12_SITES.items() if number in numbers), None)
