"""Breast cancer on stained sections, three slide scanners: task 2 of the challenge COSAS 2024.

The source is the unpacked ``task2`` of https://cosas.grand-challenge.org, with a folder for each scanner, ``3d-1000``
(3DHISTECH), ``kfbio-400`` and ``teksqray-600p``, and in each ``image/*.png`` and ``mask/*.png`` of the same names. A
mask is 0 outside and above 0 in the tumour. Which pictures are of one slide or patient is not published: pictures of
one may be in training and test, and scores are higher than those of new patients.

That layout is as the challenge's example algorithm and FL-MedSegBench (arXiv:2603.11659) read it. The test scanners
have no masks, and task 1, of other organs, is not read.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from data_prep.segmented import Contents, Item, Site, add_sites_option, grey, plan_of, two_folders
from data_prep.volumes import VolumePlan
from fedshift.data.case_check import Draw
from fedshift.data.cases import CaseFiles
from fedshift.data.labels import Labels

SCANNERS = {"3d-1000": "3DHISTECH", "kfbio-400": "KFBIO", "teksqray-600p": "TEKSQRAY"}
"""Folder and site of each scanner."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_sites_option(parser)


def plan_volumes(source: Path, *, sites: Sequence[str] | None = None) -> VolumePlan:
    """Find the scanners; see the module's docstring. Errors as `data_prep.segmented.plan_of`."""
    return plan_of(
        source,
        SITES,
        dataset="histology",
        labels=Labels.named({"tumour": (1,)}),
        expected=f"the scanners {', '.join(SCANNERS)} with image and mask",
        sites=sites,
        draw=above_zero,
    )


def above_zero(items: Mapping[str, Item]) -> Draw:
    """A mask is 1 where its file is not 0."""

    def draw(case: CaseFiles) -> np.ndarray:
        return (grey(items[case.id].masks[0]) > 0).astype(np.int32)

    return draw


def _named(scanner: str) -> Callable[[Path], Contents | None]:
    def look(folder: Path) -> Contents | None:
        return two_folders(folder, "image", "mask") if folder.name.lower() == scanner else None

    return look


SITES = tuple(
    Site(
        site,
        f"COSAS 2024, task 2, scanner {scanner}",
        "research use, under the terms of the challenge; not for redistribution",
        "COSAS 2024: Cross-Organ and Cross-Scanner Adenocarcinoma Segmentation, https://cosas.grand-challenge.org",
        _named(scanner),
    )
    for scanner, site in SCANNERS.items()
)
