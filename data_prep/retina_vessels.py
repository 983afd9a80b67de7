"""Retinal vessels on colour photographs of the eye: CHASE_DB1, HRF, DRIVE and STARE.

Each is recognised by its files, in a folder of its own or at most three folders below ``--source``.

CHASE
    CHASE_DB1, https://blogs.kingston.ac.uk/retinal/chasedb1: 28 pictures of both eyes of 14 children, ``Image_01L.jpg``
    with the masks ``Image_01L_1stHO.png`` (which is used) and ``_2ndHO.png`` of two observers in one folder. Both eyes
    of a child are one subject.
HRF
    https://www5.cs.fau.de/research/data/fundus-images: 45 pictures of 45 people, ``images/01_h.jpg`` (healthy),
    ``01_dr.JPG`` (diabetic) and ``01_g.jpg`` (glaucoma), with ``manual1/01_h.tif``.
DRIVE
    https://drive.grand-challenge.org: ``training/images/21_training.tif`` with ``training/1st_manual/21_manual1.gif``,
    and ``test/images/01_test.tif``, whose masks newer downloads leave out; without them the test part is left out, and
    cases are dealt anew. With them its 20 pictures stay the test part.
STARE
    https://cecas.clemson.edu/~ahoover/stare: ``im0001.ppm`` with ``im0001.ah.ppm`` (the first observer), in one or two
    folders, unpacked from their ``.ppm.gz``.

Pictures that were reduced, as ``CHASE/images``, ``CHASE/masks`` and the same for the others, are recognised too. Fields
of view are not used. Licences are those that the sources state; DRIVE and STARE state none.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from data_prep.segmented import Contents, Site, add_sites_option, joined, pair, pictures, plan_of, two_folders
from data_prep.volumes import VolumePlan
from fedshift.data.labels import Labels

CHILD = re.compile(r"(Image_\d\d)[LR]")
NUMBERED = re.compile(r"\d\d_(?:h|dr|g)")
FIELD = re.compile(r"im\d{4}")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_sites_option(parser)


def plan_volumes(source: Path, *, sites: Sequence[str] | None = None) -> VolumePlan:
    """Find the data sets; see the module's docstring. Errors as `data_prep.segmented.plan_of`."""
    return plan_of(
        source,
        SITES,
        dataset="retina_vessels",
        labels=Labels.named({"vessel": (1,)}),
        expected="CHASE_DB1's Image_01L.jpg, HRF's images and manual1, DRIVE's training, or STARE's im0001.ppm",
        sites=sites,
    )


def _reduced(folder: Path, site: str) -> Contents | None:
    return two_folders(folder, subject=_subject) if folder.name == site else None


def _subject(name: str) -> str:
    eye = CHILD.fullmatch(name)
    return eye[1] if eye else ""


def _chase(folder: Path) -> Contents | None:
    files = pictures(folder)
    images = {name: file for name, file in files.items() if CHILD.fullmatch(name)}
    masks = {name.removesuffix("_1stHO"): (file,) for name, file in pictures(folder).items() if name.endswith("_1stHO")}
    return pair(images, masks, subject=_subject) if images and masks else _reduced(folder, "CHASE")


def _hrf(folder: Path) -> Contents | None:
    if any(NUMBERED.fullmatch(name) for name in pictures(folder / "manual1")):
        return two_folders(folder, masks="manual1")
    return _reduced(folder, "HRF")


def _drive(folder: Path) -> Contents | None:
    parts = [_part(folder / "training", "training"), _part(folder / "test", "test")]
    if parts[0] is None:
        return _reduced(folder, "DRIVE")
    return joined([part for part in parts if part is not None])


def _part(folder: Path, name: str) -> Contents | None:
    masks = {key.removesuffix("_manual1"): (file,) for key, file in pictures(folder / "1st_manual").items()}
    images = {key.removesuffix(f"_{name}"): file for key, file in pictures(folder / "images").items()}
    return pair(images, masks, split="test" if name == "test" else None) if images and masks else None


def _stare(folder: Path) -> Contents | None:
    images = {name: file for name, file in pictures(folder).items() if FIELD.fullmatch(name)}
    if not images:
        return _reduced(folder, "STARE")
    beside = [folder, *(entry for entry in sorted(folder.parent.iterdir()) if entry.is_dir() and entry != folder)]
    masks = {
        name.removesuffix(".ah"): (file,)
        for each in beside
        for name, file in pictures(each).items()
        if name.endswith(".ah")
    }
    return pair(images, masks) if masks else None


SITES = (
    Site(
        "CHASE",
        "CHASE_DB1",
        "CC BY 4.0",
        "Fraz MM et al. An ensemble classification-based approach applied to retinal blood vessel segmentation. IEEE "
        "Transactions on Biomedical Engineering 59(9), 2012",
        _chase,
    ),
    Site(
        "HRF",
        "High-Resolution Fundus image database",
        "CC BY 4.0",
        "Budai A et al. Robust vessel segmentation in fundus images. International Journal of Biomedical Imaging 2013",
        _hrf,
    ),
    Site(
        "DRIVE",
        "DRIVE",
        "research use; the source states no licence, not for redistribution",
        "Staal J et al. Ridge-based vessel segmentation in color images of the retina. IEEE Transactions on Medical "
        "Imaging 23(4), 2004",
        _drive,
    ),
    Site(
        "STARE",
        "STARE",
        "research use; the source states no licence, not for redistribution",
        "Hoover A, Kouznetsova V, Goldbaum M. Locating blood vessels in retinal images by piecewise threshold probing "
        "of a matched filter response. IEEE Transactions on Medical Imaging 19(3), 2000",
        _stare,
    ),
)
