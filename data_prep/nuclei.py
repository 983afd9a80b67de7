"""Nuclei in microscopy pictures of the 2018 Data Science Bowl (BBBC038), grouped by staining and size.

The source is ``stage1_train`` (https://bbbc.broadinstitute.org/BBBC038, CC0), unpacked: a folder for each picture, with
``images/<id>.png`` and in ``masks`` a file for each nucleus, which are put together. No site is recorded. Pictures are
grouped by what tells experiments apart: ``FLUO256``, ``FLUO360`` and ``FLUO520`` are grey (fluorescence) of 256 x 256,
360 x 360 and 696 x 520 pixels, ``HE320`` is in colour, 320 x 256. The sites are inferred, and must be called so; others
are left out and counted. Pictures of a group may be crops of one field of view, which the download does not say.

Pictures that were reduced, as ``FLUO256/images``, ``FLUO256/masks`` and the same for the others, are recognised too.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from PIL import Image

from data_prep.segmented import AGAIN, Contents, Item, Site, add_sites_option, pictures, plan_of, two_folders
from data_prep.volumes import VolumePlan
from fedshift.data.decode import UNREADABLE
from fedshift.data.labels import Labels
from fedshift.data.scan_file import Finding, ScanError
from fedshift.data.scan_folders import visible

GROUPS = {"FLUO256": (256, 256, False), "FLUO360": (360, 360, False), "FLUO520": (696, 520, False)}
GROUPS |= {"HE320": (320, 256, True)}
"""Columns, rows, and whether in colour."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_sites_option(parser)


def plan_volumes(source: Path, *, sites: Sequence[str] | None = None) -> VolumePlan:
    """Find the groups; see the module's docstring. Errors as `data_prep.segmented.plan_of`."""
    return plan_of(
        source,
        SITES,
        dataset="nuclei",
        labels=Labels.named({"nucleus": (1,)}),
        expected="stage1_train with a folder for each picture, and in it images and masks",
        sites=sites,
    )


def _look(site: str, folder: Path) -> Contents | None:
    if folder.name == site:
        return two_folders(folder)
    groups = _groups(folder)
    if groups is None or site not in groups:
        return None
    items = groups[site]
    if site != next(name for name in GROUPS if name in groups):
        return Contents(items)
    return Contents(items, _left_out(folder))  # said once


@lru_cache(maxsize=64)
def _groups(folder: Path) -> dict[str, tuple[Item, ...]] | None:
    """The pictures of stage1_train by group, "" for none; None of any other folder."""
    cases = [entry for entry in visible(folder) if (entry / "images").is_dir() and (entry / "masks").is_dir()]
    cases = [case for case in cases if case.name not in GROUPS]
    if not cases:
        return None
    groups: dict[str, list[Item]] = {}
    for case in cases:
        for name, file in pictures(case / "images").items():
            masks = tuple(pictures(case / "masks").values())
            if not masks:
                raise ScanError("mask-missing", case, "has no mask", AGAIN)
            groups.setdefault(_group(file), []).append(Item(name, file, masks))
    return {name: tuple(items) for name, items in groups.items()}


def _group(file: Path) -> str:
    try:
        with Image.open(file) as stored:
            colours = np.asarray(stored.convert("RGB"))
    except UNREADABLE as error:
        raise ScanError("file-damaged", file, f"cannot be read ({type(error).__name__})", AGAIN) from None
    rows, columns, _ = colours.shape
    form = columns, rows, bool((colours != colours[..., :1]).any())
    return next((name for name, group in GROUPS.items() if group == form), "")


def _left_out(folder: Path) -> tuple[Finding, ...]:
    others = (_groups(folder) or {}).get("", ())
    if not others:
        return ()
    sizes = Counter(Image.open(item.image).size for item in others)
    sizes_left_out = ", ".join(f"{count} of {columns} x {rows}" for (columns, rows), count in sorted(sizes.items()))
    what = f"holds {len(others)} picture(s) of no group ({sizes_left_out})"
    return (Finding("warning", "pictures-left-out", folder, what, "they are left out"),)


SITES = tuple(
    Site(
        name,
        f"2018 Data Science Bowl, stage 1 training set, {columns} x {rows} in {'colour' if colour else 'grey'}",
        "CC0 1.0",
        "Caicedo JC et al. Nucleus segmentation across imaging experiments: the 2018 Data Science Bowl. Nature Methods "
        "16, 2019",
        partial(_look, name),
        {"sites": "inferred from size and staining"},
    )
    for name, (columns, rows, colour) in GROUPS.items()
)
