"""Lungs on frontal chest radiographs: Montgomery County (US) and Shenzhen (CN), of the National Library of Medicine.

MONTGOMERY
    ``MontgomerySet`` (https://lhncbc.nlm.nih.gov/LHC-downloads/downloads.html): ``CXR_png/MCUCXR_0001_0.png`` with
    ``ManualMask/leftMask`` and ``rightMask``, which are put together. 138 radiographs.
SHENZHEN
    ``ChinaSet_AllFiles``: ``CXR_png/CHNCXR_0001_0.png``, 662 radiographs. The masks of 566 of them are Stirenko's
    (``mask/CHNCXR_0001_0_mask.png``, https://www.kaggle.com/yoctoman/shcxr-lung-mask): put their folder ``mask`` beside
    ``CXR_png``. Those without one are left out.

Each radiograph is of another person. ``_0`` in a name is normal, ``_1`` tuberculosis. Pictures that were reduced, as
``MONTGOMERY/images``, ``MONTGOMERY/masks`` and the same for SHENZHEN, are recognised too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from data_prep.segmented import Contents, Item, Site, add_sites_option, pair, pictures, plan_of, two_folders
from data_prep.volumes import VolumePlan
from fedshift.data.labels import Labels
from fedshift.data.scan_file import Finding

CITATION = (
    "Jaeger S et al. Two public chest X-ray datasets for computer-aided screening of pulmonary diseases. Quantitative "
    "Imaging in Medicine and Surgery 4(6), 2014"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_sites_option(parser)


def plan_volumes(source: Path, *, sites: Sequence[str] | None = None) -> VolumePlan:
    """Find the data sets; see the module's docstring. Errors as `data_prep.segmented.plan_of`."""
    return plan_of(
        source,
        SITES,
        dataset="chest_lungs",
        labels=Labels.named({"lungs": (1,)}),
        expected="MontgomerySet with CXR_png and ManualMask, or ChinaSet_AllFiles with CXR_png and mask",
        sites=sites,
        coloured=False,
    )


def _montgomery(folder: Path) -> Contents | None:
    images = pictures(folder / "CXR_png")
    left, right = (pictures(folder / "ManualMask" / side) for side in ("leftMask", "rightMask"))
    if images and left and right:
        return pair(images, {name: (left[name], right[name]) for name in left if name in right})
    return two_folders(folder) if folder.name == "MONTGOMERY" else None


def _shenzhen(folder: Path) -> Contents | None:
    images = pictures(folder / "CXR_png")
    masks = {name.removesuffix("_mask"): file for name, file in pictures(folder / "mask").items()}
    if not images or not masks:
        return two_folders(folder) if folder.name == "SHENZHEN" else None
    items = tuple(Item(name, file, (masks[name],)) for name, file in images.items() if name in masks)
    lacking = len(images) - len(items)
    what = f"has {lacking} radiograph(s) without a mask"
    findings = (Finding("warning", "pictures-left-out", folder, what, "they are left out"),) if lacking else ()
    return Contents(items, findings)


SITES = (
    Site(
        "MONTGOMERY",
        "Montgomery County chest X-ray set",
        "the National Library of Medicine asks for attribution and states no other terms",
        CITATION,
        _montgomery,
    ),
    Site(
        "SHENZHEN",
        "Shenzhen chest X-ray set",
        "the National Library of Medicine asks for attribution and states no other terms; masks CC BY-NC-SA 4.0",
        CITATION + "; masks: Stirenko S et al. Chest X-ray analysis of tuberculosis by deep learning with segmentation "
        "and augmentation. ELNANO 2018",
        _shenzhen,
    ),
)
