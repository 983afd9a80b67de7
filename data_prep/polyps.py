"""Polyps on colonoscopy frames of four sources: Kvasir-SEG, CVC-ClinicDB, CVC-ColonDB and ETIS-LaribPolypDB.

Sites are recognised by their folder's name, written with or without hyphens, at most three folders below ``--source``.

KVASIR
    ``Kvasir-SEG/images`` and ``masks`` (https://datasets.simula.no/kvasir-seg), 1000 JPEG pictures; the masks are JPEG
    too, and are cut at half. Which pictures are of one person is not published.
CLINICDB
    ``CVC-ClinicDB/Original`` and ``Ground Truth`` (https://polyp.grand-challenge.org/CVCClinicDB), 612 frames
    ``1.tif`` of 29 sequences; ``PNG/Original`` of other copies is recognised too. The frames of a sequence are one
    subject: their numbers are in ``SEQUENCES``, as the data set's page had them.
COLONDB, ETIS
    ``CVC-ColonDB`` (380 frames) and ``ETIS-LaribPolypDB`` (196), with ``images`` and ``masks`` as in PraNet's
    ``TestDataset`` (https://github.com/DengPingFan/PraNet), whose ``CVC-ClinicDB`` and ``Kvasir``, which are parts,
    have that layout too. Which frames are of one video is not said there: frames of one are in training and test, and
    scores are higher than those of new patients.

The frames of CVC-300 (EndoScene) are of the videos of CVC-ColonDB, which is why it is no site of its own. Licences:
Kvasir-SEG is for research and education; the others ask for citation and state research use.
"""

from __future__ import annotations

import argparse
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path

from data_prep.segmented import Contents, Site, add_sites_option, plan_of, two_folders
from data_prep.volumes import VolumePlan
from fedshift.data.labels import Labels

SEQUENCES = (
    *(1, 26, 51, 68, 79, 104, 127, 152, 178, 200, 206, 228, 253, 278, 298),
    *(318, 343, 364, 384, 409, 429, 448, 467, 479, 504, 529, 547, 572, 592),
)
"""The first frame of each of CVC-ClinicDB's sequences; the last one ends with frame 612."""
FRAMES = 612
LAYOUTS = (("images", "masks"), ("Original", "Ground Truth"), ("PNG/Original", "PNG/Ground Truth"))


def add_options(parser: argparse.ArgumentParser) -> None:
    add_sites_option(parser)


def plan_volumes(source: Path, *, sites: Sequence[str] | None = None) -> VolumePlan:
    """Find the sources; see the module's docstring. Errors as `data_prep.segmented.plan_of`."""
    return plan_of(
        source,
        SITES,
        dataset="polyps",
        labels=Labels.named({"polyp": (1,)}),
        expected="Kvasir-SEG, CVC-ClinicDB, CVC-ColonDB or ETIS-LaribPolypDB with images and masks",
        sites=sites,
    )


def sequence_of(name: str) -> str:
    """The sequence of a frame of CVC-ClinicDB, from its number."""
    number = int(name) if name.isdecimal() else 0
    return f"sequence {bisect_right(SEQUENCES, number):02d}" if 1 <= number <= FRAMES else ""


def _named(*names: str, subject: Callable[[str], str] = lambda name: "") -> Callable[[Path], Contents | None]:
    def look(folder: Path) -> Contents | None:
        if re.sub("[^a-z0-9]", "", folder.name.lower()) not in names:
            return None
        candidates = (two_folders(folder, images, masks, subject=subject) for images, masks in LAYOUTS)
        return next((contents for contents in candidates if contents is not None), None)

    return look


SITES = (
    Site(
        "KVASIR",
        "Kvasir-SEG",
        "research and education, under the terms of the source",
        "Jha D et al. Kvasir-SEG: a segmented polyp dataset. MultiMedia Modeling 2020",
        _named("kvasir", "kvasirseg"),
        {"masks": "JPEG, above 127 of 255"},
    ),
    Site(
        "CLINICDB",
        "CVC-ClinicDB",
        "research use, under the terms of the source",
        "Bernal J et al. WM-DOVA maps for accurate polyp highlighting in colonoscopy. Computerized Medical Imaging and "
        "Graphics 43, 2015",
        _named("clinicdb", "cvcclinicdb", subject=sequence_of),
    ),
    Site(
        "COLONDB",
        "CVC-ColonDB",
        "research use, under the terms of the source",
        "Bernal J, Sanchez J, Vilarino F. Towards automatic polyp detection with a polyp appearance model. Pattern "
        "Recognition 45(9), 2012",
        _named("colondb", "cvccolondb"),
    ),
    Site(
        "ETIS",
        "ETIS-LaribPolypDB",
        "research use, under the terms of the source",
        "Silva J et al. Toward embedded detection of polyps in WCE images for early diagnosis of colorectal cancer. "
        "International Journal of Computer Assisted Radiology and Surgery 9(2), 2014",
        _named("etis", "etislarib", "etislaribpolypdb"),
    ),
)
