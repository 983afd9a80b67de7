"""Public data sets of pictures with masks: finding the folders, pairing the files, and putting masks together.

A module of such a data set says how each of its sites lies in a download (`Site`): a function that looks at one folder
and gives the pictures that it finds there. Masks come as pictures of any form, often several for one picture: a pixel
is of the structure where one of them is brighter than half.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from data_prep.volumes import CaseFiles, SitePlan, VolumePlan
from fedshift.data.case_check import Draw
from fedshift.data.decode import UNREADABLE
from fedshift.data.downloads import names_in
from fedshift.data.labels import Labels
from fedshift.data.picture_files import is_picture
from fedshift.data.picture_scan import COLOURS
from fedshift.data.scan_file import Finding, ScanError
from fedshift.data.scan_folders import contents, visible
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Split
from fedshift.schema.names import comma_separated
from fedshift.schema.strict import nearest

DEEPEST = 3
"""Folders of a site are looked for at most so far below the source."""
INSIDE = 127
"""Pixels of a mask that are brighter are of the structure."""
AGAIN = "download it again"
FORMS = (".gif",)
"""Of masks, beside the pictures that are read anywhere."""


@dataclass(frozen=True)
class Item:
    """A picture and the files of its mask; ``subject`` and ``split`` where the download says them."""

    id: str
    image: Path
    masks: tuple[Path, ...]
    subject: str = ""
    split: Split | None = None


@dataclass(frozen=True)
class Contents:
    """The pictures of a site, and what is wrong with their files."""

    items: tuple[Item, ...]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Site:
    """A site of a public data set: where it is from, on what terms, and how it is found.

    ``look``: the contents of a folder, None if it is none of the site's.
    """

    name: str
    source: str
    licence: str
    citation: str
    look: Callable[[Path], Contents | None]
    preparation: Mapping[str, Any] | None = None


def add_sites_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sites", type=comma_separated, metavar="A,B", help="only these sites (default: all)")


def plan_of(
    source: Path,
    known: Sequence[Site],
    *,
    dataset: str,
    labels: Labels,
    expected: str,
    sites: Sequence[str] | None = None,
    coloured: bool = True,
    draw: Callable[[Mapping[str, Item]], Draw] | None = None,
) -> VolumePlan:
    """The sites that are found below a source, in the order of ``known``.

    Args:
        source: the unpacked download.
        known: all sites of the data set.
        dataset: its name.
        labels: classes, and what masks' values mean once they are put together.
        expected: the layouts, for an error.
        sites: only these; default all that are found.
        coloured: whether pictures have red, green and blue; otherwise they are grey.
        draw: puts masks together; default `union`.

    Raises:
        DataError: an unknown site or layout, or a site that is there twice.
    """
    names = [site.name for site in known]
    if other := next((name for name in sites or () if name not in names), None):
        raise DataError("site-unknown", f"no site is called {other!r}{nearest(other, names)}")
    by_site: dict[str, tuple[Path, Contents]] = {}
    for folder in folders(source):
        for site in known:
            held = site.look(folder)
            if held is None:
                continue
            if site.name in by_site:
                both = f"{by_site[site.name][0]} and {folder}"
                raise DataError("site-twice", f"{source} has site {site.name} twice, in {both}: remove one")
            by_site[site.name] = folder, held
    if not by_site:
        what = f"{source} holds none of the known layouts ({contents(source)})"
        raise DataError("other-data", f"{what}: expected {expected}")
    if absent := [name for name in sites or () if name not in by_site]:
        listing = ", ".join(name for name in names if name in by_site)
        raise DataError(
            "site-unknown", f"{source} has no site {', '.join(absent)}: it holds {listing}, name some of these"
        )
    plans = [
        _plan(site, by_site[site.name][1], coloured=coloured, draw=draw or union)
        for site in known
        if site.name in by_site and (not sites or site.name in sites)
    ]
    return VolumePlan(dataset=dataset, labels=labels, sites=tuple(plans), sequences=COLOURS if coloured else ())


def _plan(site: Site, contents: Contents, *, coloured: bool, draw: Callable[[Mapping[str, Item]], Draw]) -> SitePlan:
    count = len(COLOURS) if coloured else 1
    cases = tuple(
        CaseFiles(
            id=item.id,
            images=(item.image,) * count,
            channels=tuple(range(count)) if coloured else (),
            sequences=COLOURS if coloured else (),
            mask=item.masks[0],
            subject=item.subject,
            split=item.split,
        )
        for item in contents.items
    )
    return SitePlan(
        site=site.name,
        cases=cases,
        findings=contents.findings,
        source=site.source,
        licence=site.licence,
        citation=site.citation,
        preparation=site.preparation,
        draw=draw({item.id: item for item in contents.items}),
    )


def folders(source: Path) -> Iterator[Path]:
    """A folder and those below it, in order."""
    names_in(source)  # which says what is wrong with it
    yield from _below(source, DEEPEST)


def _below(folder: Path, deeper: int) -> Iterator[Path]:
    yield folder
    if deeper:
        for entry in visible(folder):
            if entry.is_dir():
                yield from _below(entry, deeper - 1)


def pictures(folder: Path) -> dict[str, Path]:
    """Name without ending -> file, of the pictures in a folder; nothing if there is no such folder."""
    if not folder.is_dir():
        return {}
    files = (file for file in visible(folder) if is_picture(file) or file.suffix.lower() in FORMS)
    return {file.stem: file for file in files}


def pair(
    images: Mapping[str, Path],
    masks: Mapping[str, Sequence[Path]],
    *,
    subject: Callable[[str], str] = lambda name: "",
    split: Split | None = None,
) -> Contents:
    """Pictures with their masks, by name; a picture or a mask without its counterpart is an error."""
    items = [
        Item(name, file, tuple(masks[name]), subject(name), split) for name, file in images.items() if name in masks
    ]
    alone = [(name, file, "image", "mask") for name, file in images.items() if name not in masks]
    alone += [(name, files[0], "mask", "image") for name, files in masks.items() if name not in images]
    findings = [
        Finding("error", f"{lacks}-missing", file, f"is an {has} without its {lacks}", AGAIN, name)
        if has == "image"
        else Finding("error", f"{lacks}-missing", file, f"is a {has} without its {lacks}", AGAIN, name)
        for name, file, has, lacks in alone
    ]
    return Contents(tuple(items), tuple(findings))


def two_folders(folder: Path, images: str = "images", masks: str = "masks", **options: Any) -> Contents | None:
    """Pictures in one folder and their masks, of the same names, in another one; options of `pair`."""
    of_images, of_masks = pictures(folder / images), pictures(folder / masks)
    if not of_images or not of_masks:
        return None
    return pair(of_images, {name: (file,) for name, file in of_masks.items()}, **options)


def joined(parts: Sequence[Contents]) -> Contents:
    return Contents(
        tuple(item for part in parts for item in part.items),
        tuple(finding for part in parts for finding in part.findings),
    )


# --- masks ------------------------------------------------------------------------------------------------------------


def union(items: Mapping[str, Item]) -> Draw:
    """A mask is 1 where one of its files is bright."""

    def draw(case: CaseFiles) -> np.ndarray:
        files = items[case.id].masks
        inside = grey(files[0]) > INSIDE
        for file in files[1:]:
            other = grey(file)
            if other.shape != inside.shape:
                sizes = " and ".join(" x ".join(map(str, array.shape[::-1])) for array in (other, inside))
                raise ScanError("mask-grid", file, f"differs in size from {files[0].name}: {sizes} pixels", AGAIN)
            inside |= other > INSIDE
        return inside.astype(np.int32)

    return draw


def grey(file: Path) -> np.ndarray:
    """A picture (rows, columns) uint8 in grey.

    Raises:
        ScanError: it cannot be read.
    """
    try:
        with Image.open(file) as stored:
            return np.asarray(stored.convert("L"))
    except UNREADABLE as error:
        raise ScanError("file-damaged", file, f"cannot be read ({type(error).__name__})", AGAIN) from None
