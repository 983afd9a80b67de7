"""Meibomian glands on infrared photographs of the eyelid: MGD-1k and CAMG.

MGD1K
    https://mgd1k.github.io, the repository https://github.com/MGD1K/MGD1k: ``Expore MGD1k Dataset`` with ``Original
    Images/*.JPG`` and ``Meibomian Gland Labels/*.png`` of the same names, 1000 pictures of 1280 x 640. A label unpacked
    from its zip lies one folder deeper, which is recognised too, as is ``Original`` beside ``Meibomian_Gland_Labels``.
    Pictures whose names have the same number (``DMI_OD_LOWER_REFLECTED_IR_10209332``: two eyes, two lids) are of one
    subject. That the number is the subject's is inferred from the names; one person may have several. One picture is
    there twice (``…_14933989_001``), which is an error: ``--skip-damaged`` leaves the second out.
CAMG
    Children and adolescents, 1114 pictures of 730 people, linked from the paper. A folder ``CAMG`` with ``Original``
    and ``Meibomian_Gland_Labels``, in which a mask is called as its picture with ``Seg`` in place of ``Image``. Which
    pictures are of one person is not in the names: pictures of one may be in training and test, and scores are higher
    than those of new people.

The layout of CAMG is that in which FL-MedSegBench (arXiv:2603.11659) reads it; how its own archive is laid out was not
known here, and another one is refused. Masks are cut at half of 255, outlines of the eyelid are not read. Pictures are
read in grey; one that has colours is an error.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from data_prep.segmented import Contents, Site, add_sites_option, pair, pictures, plan_of, two_folders
from data_prep.volumes import VolumePlan
from fedshift.data.labels import Labels
from fedshift.data.scan_folders import contents, visible
from fedshift.schema.errors import DataError

NAME = re.compile(r"DMI_O[DS]_(?:UPPER|LOWER)_REFLECTED_IR_(\d+)(?:_\d+)?")
"""Of a picture of MGD-1k; its number is followed by another one where it would be there twice."""
LAYOUTS = (
    ("Original Images", "Meibomian Gland Labels"),
    ("Original Images", "Meibomian Gland Labels/Meibomian Gland Labels"),
    ("Original", "Meibomian_Gland_Labels"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_sites_option(parser)


def plan_volumes(source: Path, *, sites: Sequence[str] | None = None) -> VolumePlan:
    """Find the data sets; see the module's docstring. Errors as `data_prep.segmented.plan_of`."""
    return plan_of(
        source,
        SITES,
        dataset="meibomian",
        labels=Labels.named({"gland": (1,)}),
        expected="MGD-1k's Original Images and Meibomian Gland Labels, or CAMG with Original and "
        "Meibomian_Gland_Labels",
        sites=sites,
        coloured=False,
    )


def subject_of_name(name: str) -> str:
    """Whose eyelid a picture of MGD-1k shows; "" of another name."""
    parts = NAME.fullmatch(name)
    return parts[1] if parts else ""


def _mgd1k(folder: Path) -> Contents | None:
    if _is_camg(folder):
        return None
    candidates = (two_folders(folder, images, masks, subject=subject_of_name) for images, masks in LAYOUTS)
    return next((each for each in candidates if each is not None and any(item.subject for item in each.items)), None)


def _camg(folder: Path) -> Contents | None:
    if not _is_camg(folder):
        return None
    images, masks = (pictures(folder / name) for name in LAYOUTS[-1])
    if images and masks:
        return pair(images, {name.replace("Seg", "Image"): (file,) for name, file in masks.items()})
    if any(entry.is_dir() and _is_camg(entry) for entry in visible(folder)):
        return None
    raise DataError(
        "layout-unknown",
        f"{folder} has no pictures in Original and Meibomian_Gland_Labels ({contents(folder)}): put the pictures and "
        "the masks of the glands into folders of these names, a mask called as its picture with Seg in place of Image",
    )


def _is_camg(folder: Path) -> bool:
    return re.sub("[^a-z0-9]", "", folder.name.lower()) in ("camg", "camgdataset")


SITES = (
    Site(
        "MGD1K",
        "MGD-1k",
        "under the terms of the source (https://mgd1k.github.io)",
        "Saha RK et al. Automated quantification of meibomian gland dropout in infrared meibography using deep "
        "learning. The Ocular Surface 26, 2022",
        _mgd1k,
        {"masks": "above 127 of 255", "subjects": "the numbers in the pictures' names, inferred"},
    ),
    Site(
        "CAMG",
        "Children and Adolescents Meibomian Gland dataset (CAMG)",
        "under the terms of the source",
        "Li L et al. AI driven quantitative analysis of meibomian glands in children and adolescents: a benchmark "
        "dataset study. 2025",
        _camg,
        {"masks": "above 127 of 255"},
    ),
)
