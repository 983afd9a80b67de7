"""PACS: seven classes as photographs, art paintings, cartoons and sketches.

The source is the download, unpacked or as the zip, ``<domain>/<class>/*.jpg`` (or ``.png``) with the domains
art_painting (2048 pictures), cartoon (2344), photo (1670) and sketch (3929), 227 x 227, about 200 MB. It is described
at https://dali-dl.github.io/project_iccv2017.html; a copy with the same folders is below ``PACS`` at
https://github.com/MachineLearning2020/Homework3-PACS. Described in Li, Yang, Song, Hospedales, "Deeper, broader and
artier domain generalization", ICCV 2017.

The split goes by content, see `data_prep.dealing`; the papers publish no lists to reproduce their splits.

``--subsites 4`` makes the data set ``pacs_subsites``: each domain except sketch becomes four sites, ``art_painting_1``
to ``photo_4``, as in the released code of "Mitigating Data Heterogeneity in Federated Learning with Data Augmentation",
see `data_prep.subsites`. Sketch, which the paper holds out, stays one site and is split by content. ``--whole`` selects
another domain to hold out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from data_prep.pictures import PictureSet, Plan
from data_prep.subsites import SubSites, add_subsite_options, plan_domains
from data_prep.trees import find_pictures

PACS = PictureSet(
    dataset="pacs",
    name="PACS",
    sites=("art_painting", "cartoon", "photo", "sketch"),
    classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    described="the download is described at https://dali-dl.github.io/project_iccv2017.html",
    licence="research use; the pictures are their owners', not for redistribution",
    citation="Li D, Yang Y, Song Y-Z, Hospedales TM. Deeper, broader and artier domain generalization. ICCV 2017",
)
SIZES = (96, 224)  # 96: the task's default; 224: the papers
HELD_OUT = "sketch"
"""The domain that the augmentation paper holds out."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `plan` for the command line."""
    add_subsite_options(parser, PACS, whole=HELD_OUT)


def plan(source: Path, *, subsites: int | None = None, whole: str | None = None, seed: int | None = None) -> Plan:
    """The pictures of a download, by domain or divided into sub-sites.

    Raises:
        DataError: an unknown layout, sub-sites that are not possible, or options for sub-sites without ``--subsites``.
    """
    asked = SubSites(count=subsites, whole=whole, seed=seed)
    return plan_domains(PACS, find_pictures(source, PACS), SIZES, asked, whole=HELD_OUT, source=source)
