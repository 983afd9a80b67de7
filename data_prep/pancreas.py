"""Pancreas MRI of five centres (PanSegData): prepare the unpacked T1 or T2 part, one folder per centre.

The source is the folder ``t1`` or ``t2`` of https://osf.io/kysnj/, with ``imagesTr/<centre>_<number>_0000.nii.gz`` and
``labelsTr/<centre>_<number>.nii.gz``. The letters before the first number of a name are its centre: NYU Langone, Mayo
Clinic Florida (MCF), Northwestern (NU or NWU), Allegheny Health Network (AHN), Mayo Clinic Arizona (MCA). Files of
other names are refused, as it is not known whose they are. Masks are 1 in the pancreas.

That names begin with the centre is inferred from FL-MedSegBench's reading of the data (arXiv:2603.11659), which takes
centres from file names; it has 385 T1 volumes: 162 of NYU, 151 of MCF, 30 of NU, 25 of MCA and 17 of AHN. Described in
Zhang et al., Medical Image Analysis 99, 2025.
"""

from __future__ import annotations

import re
from pathlib import Path

from data_prep.volumes import CaseFiles, SitePlan, VolumePlan
from fedshift.data.labels import Labels
from fedshift.data.scan_file import Finding
from fedshift.schema.errors import DataError
from fedshift.schema.strict import nearest

SITES = {"NYU": "NYU", "MCF": "MCF", "NU": "NU", "NWU": "NU", "AHN": "AHN", "MCA": "MCA"}
SOURCE = "PanSegData, MRI"
LICENCE = "as the data set's source says (https://osf.io/kysnj/)"
CITATION = (
    "Zhang Z et al. Large-scale multi-center CT and MRI segmentation of pancreas with deep learning. Medical Image "
    "Analysis 99, 103382, 2025"
)
IMAGE = re.compile(r"(?P<case>(?P<centre>[A-Za-z]+)[\w-]*)_0000\.nii\.gz")


def plan_volumes(source: Path) -> VolumePlan:
    """Find the volumes of each centre.

    Raises:
        DataError: another layout, a name without a known centre, or an image without its mask.
    """
    images = sorted((source / "imagesTr").glob("*.nii.gz"))
    if not images:
        raise DataError(
            "layout-unknown", f"{source} has no imagesTr with .nii.gz files: name the folder t1 or t2 of the download"
        )
    cases: dict[str, list[CaseFiles]] = {site: [] for site in dict.fromkeys(SITES.values())}
    findings: list[Finding] = []
    for image in images:
        name = IMAGE.fullmatch(image.name)
        site = SITES.get(name["centre"].upper()) if name else None
        if name is None or site is None:
            hint = nearest(name["centre"].upper(), SITES) if name else ""
            raise DataError(
                "site-unknown",
                f"{image} does not begin with a centre and end with _0000{hint}: expected one of {', '.join(SITES)}, "
                "as in AHN_0001_0000.nii.gz",
            )
        mask = source / "labelsTr" / f"{name['case']}.nii.gz"
        if not mask.is_file():
            findings.append(Finding("error", "mask-missing", image, f"has no mask {mask}", "download it again"))
            continue
        cases[site].append(CaseFiles(id=name["case"], images=(image,), mask=mask))
    plans = [
        SitePlan(
            site=site,
            cases=tuple(of_site),
            findings=() if number else tuple(findings),  # an error in the download stops the first site
            source=SOURCE,
            licence=LICENCE,
            citation=CITATION,
        )
        for number, (site, of_site) in enumerate(item for item in cases.items() if item[1])
    ]
    return VolumePlan(dataset="pancreas", labels=Labels.named({"pancreas": (1,)}), sites=tuple(plans))
