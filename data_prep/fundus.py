"""Optic disc and cup on photographs of the eye, four sources: the collection of DoFE that FedDG uses.

https://github.com/emma-sjwang/Dofe (Wang et al., IEEE TMI 2020) links an archive with ``Domain1`` to ``Domain4``, in
each ``train`` and ``test`` with ``ROIs/image/*.png`` and ``ROIs/mask/*.png``: pictures cropped around the disc. Masks
have 0 in the cup, 128 in the rest of the disc and 255 around it; smoothed edges are taken to the nearest of these.
Domain1 is Drishti-GS, Domain2 RIM-ONE r3, Domain3 REFUGE's training and Domain4 its validation set. ``site1``,
``Site1``, and folders ``image`` and ``mask`` without ``ROIs`` are recognised too. The test part stays the test part.

Classes are the rim, which is the disc without the cup, and the cup. Which pictures are of one person is not published.
Licence: that of the four sources, research use.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from data_prep.segmented import Contents, Item, Site, add_sites_option, grey, joined, plan_of, two_folders
from data_prep.volumes import CaseFiles, VolumePlan
from fedshift.data.case_check import Draw
from fedshift.data.labels import Labels
from fedshift.data.scan_file import ScanError

NAMES = ("DRISHTI", "RIMONE", "REFUGE_TRAIN", "REFUGE_VAL")
SOURCES = ("Drishti-GS", "RIM-ONE r3", "REFUGE, training set", "REFUGE, validation set")
CITATION = (
    "Wang S et al. DoFE: domain-oriented feature embedding for generalizable fundus image segmentation on unseen "
    "datasets. IEEE Transactions on Medical Imaging 39(12), 2020; and the source: "
)
CITATIONS = (
    "Sivaswamy J et al. Drishti-GS: retinal image dataset for optic nerve head segmentation. ISBI 2014",
    "Fumero F et al. RIM-ONE: an open retinal image database for optic nerve evaluation. CBMS 2011",
    *("Orlando JI et al. REFUGE challenge. Medical Image Analysis 59, 2020",) * 2,
)
LABELS = Labels.named({"rim": (1,), "cup": (2,)})
CUP_BELOW, RIM_BELOW = 64, 192
"""A mask's values lie around 0, 128 and 255."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_sites_option(parser)


def plan_volumes(source: Path, *, sites: Sequence[str] | None = None) -> VolumePlan:
    """Find the domains; see the module's docstring. Errors as `data_prep.segmented.plan_of`."""
    expected = "Domain1 to Domain4 with train and test, and in them ROIs/image and ROIs/mask"
    return plan_of(source, SITES, dataset="fundus", labels=LABELS, expected=expected, sites=sites, draw=_nested)


def _nested(items: Mapping[str, Item]) -> Draw:
    def draw(case: CaseFiles) -> np.ndarray:
        (file,) = items[case.id].masks
        values = grey(file)
        if values.max() <= RIM_BELOW:
            what = "has no pixel around the disc, which has the value 255"
            raise ScanError("mask-values", file, what, "look whether it is a mask of DoFE's archive")
        return np.where(values < CUP_BELOW, 2, np.where(values < RIM_BELOW, 1, 0))

    return draw


def _look(number: int, folder: Path) -> Contents | None:
    if not re.fullmatch(f"(?:domain|site){number}", folder.name, re.IGNORECASE):
        return None
    halves = _part(folder / "train"), _part(folder / "test", split="test")
    parts = [half for half in halves if half is not None]
    return joined(parts) if parts else None


def _part(folder: Path, **options: str) -> Contents | None:
    return two_folders(folder / "ROIs", "image", "mask", **options) or two_folders(folder, "image", "mask", **options)


SITES = tuple(
    Site(
        name,
        f"{source}, cropped, in the collection of DoFE",
        "research use, under the terms of the source; not for redistribution",
        CITATION + citation,
        partial(_look, number),
        {"masks": "0 is the cup, 128 the rim, 255 the background; the nearest of these"},
    )
    for number, (name, source, citation) in enumerate(zip(NAMES, SOURCES, CITATIONS, strict=True), start=1)
)
