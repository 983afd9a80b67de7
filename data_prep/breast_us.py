"""Lesions on breast ultrasound: BUSI and UDIAT (data set B).

BUSI
    https://scholar.cu.edu.eg/?q=afahmy/pages/dataset: ``Dataset_BUSI_with_GT`` with the folders ``benign``,
    ``malignant`` and ``normal``; in each ``benign (1).png`` with ``benign (1)_mask.png``, and ``_mask_1.png`` and so on
    where there is more than one lesion, which are put together. Masks of ``normal`` are empty. 780 pictures of 600
    women; which are of one woman is not published.
UDIAT
    http://www2.docm.mmu.ac.uk/STAFF/m.yap/dataset.php: data set B, ``original/000001.png`` with ``GT/000001.png``,
    163 pictures.

Pictures are read in grey. One that has colours, such as marks of the scanner, is an error; ``--skip-damaged`` leaves it
out. Licences: BUSI CC BY 4.0 as its copies state it; UDIAT on request, for research.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from data_prep.segmented import Contents, Item, Site, add_sites_option, pictures, plan_of, two_folders
from data_prep.volumes import VolumePlan
from fedshift.data.labels import Labels
from fedshift.data.scan_file import Finding

KINDS = ("benign", "malignant", "normal")
NUMBERED = re.compile(r"(\w+) \((\d+)\)(_mask(?:_\d+)?)?")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_sites_option(parser)


def plan_volumes(source: Path, *, sites: Sequence[str] | None = None) -> VolumePlan:
    """Find the data sets; see the module's docstring. Errors as `data_prep.segmented.plan_of`."""
    return plan_of(
        source,
        SITES,
        dataset="breast_us",
        labels=Labels.named({"lesion": (1,)}),
        expected="BUSI's benign, malignant and normal, or UDIAT's original and GT",
        sites=sites,
        coloured=False,
    )


def _busi(folder: Path) -> Contents | None:
    if not all((folder / kind).is_dir() for kind in KINDS[:2]):
        return None
    images: dict[str, Path] = {}
    masks: dict[str, list[Path]] = {}
    for kind in KINDS:
        for name, file in pictures(folder / kind).items():
            if not (parts := NUMBERED.fullmatch(name)):
                continue
            case = f"{parts[1]}_{int(parts[2]):03d}"
            if parts[3]:
                masks.setdefault(case, []).append(file)
            else:
                images[case] = file
    if not images or not masks:
        return None
    items = tuple(Item(case, file, tuple(masks[case])) for case, file in images.items() if case in masks)
    findings = tuple(
        Finding("error", "mask-missing", file, "is an image without its mask", "download it again", case)
        for case, file in images.items()
        if case not in masks
    )
    return Contents(items, findings)


SITES = (
    Site(
        "BUSI",
        "Breast Ultrasound Images dataset (BUSI)",
        "CC BY 4.0",
        "Al-Dhabyani W et al. Dataset of breast ultrasound images. Data in Brief 28, 2020",
        _busi,
    ),
    Site(
        "UDIAT",
        "UDIAT Diagnostic Centre, data set B",
        "on request, for research; not for redistribution",
        "Yap MH et al. Automated breast ultrasound lesions detection using convolutional neural networks. IEEE Journal "
        "of Biomedical and Health Informatics 22(4), 2018",
        lambda folder: two_folders(folder, "original", "GT"),
    ),
)
