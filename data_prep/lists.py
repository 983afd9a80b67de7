"""Lists that assign the pictures of a download to training and testing."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from data_prep.pickles import read_pickle
from data_prep.pictures import PicturesBySite
from data_prep.trees import Tree
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Split

log = logging.getLogger(__name__)

Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = ("train", "test")


def fedbn_names(site: str) -> dict[Part, str]:
    """File names of FedBN's two lists of a site."""
    return {part: f"{site}_{part}.pkl" for part in PARTS}


def read_fedbn(tree: Tree, site: str, *, instead: str | None = None) -> dict[Part, list[str]]:
    """Read FedBN's lists of a site, ``<site>_train.pkl`` and ``<site>_test.pkl``: picture ids in their order.

    ``instead`` is the name of a file that could be used instead; it only appears in the error.

    Raises:
        DataError: a list is missing, is not one of FedBN's, or names a picture of another site.
    """
    return {part: _read_pickled(tree, name, site, instead) for part, name in fedbn_names(site).items()}


def split_of(site: str, parts: Mapping[Split, Sequence[str]], name: str) -> dict[str, Split]:
    """Split by id from a site's lists; errors refer to the lists as ``name``.

    Raises:
        DataError: a picture is listed twice.
    """
    splits: dict[str, Split] = {}
    for split, ids in parts.items():
        for picture in ids:
            if picture in splits:
                raise DataError("list-form", f"{name}: {site}/{picture} is listed twice, download the lists again")
            splits[picture] = split
    return splits


def ids_of(site: str, paths: Sequence[str], name: str) -> list[str]:
    """Ids ``<class>/<file>`` from paths that end in ``<site>/<class>/<file>``.

    Raises:
        DataError: a path belongs to another site.
    """
    ids = []
    for path in paths:
        domain, folder, file = ["", "", *path.split("/")][-3:]
        if domain != site:
            raise DataError(
                "list-form", f"{name}: {path} is listed for {site}, but does not end in {site}/<class>/<file>"
            )
        ids.append(f"{folder}/{file}")
    return ids


def keep_listed(
    by_site: PicturesBySite, listed: Mapping[str, Mapping[str, Split]], *, source: object, name: str, otherwise: str
) -> PicturesBySite:
    """Keep only the pictures that are listed for their site, and log a warning with the number of the others.

    Args:
        by_site: the pictures of the download.
        listed: split by site and id.
        source: the download, as named in errors.
        name: name of the lists in errors.
        otherwise: what the user can do without the lists.

    Raises:
        DataError: a listed picture is missing.
    """
    kept: PicturesBySite = {}
    for site, splits in listed.items():
        absent = sorted(splits.keys() - {picture.id for picture in by_site[site]})
        if absent:
            raise DataError(
                "file-missing",
                f"{source}/{site}/{absent[0]} is named in {name} but does not exist, nor do {len(absent) - 1} others: "
                f"download the data set again, or {otherwise}",
            )
        kept[site] = [picture for picture in by_site[site] if picture.id in splits]
        if unlisted := len(by_site[site]) - len(kept[site]):
            log.warning("%s/%s: %d picture(s) that are in no list are skipped", source, site, unlisted)
    return kept


def in_order(by_site: PicturesBySite, listed: Mapping[str, Mapping[str, Split]]) -> PicturesBySite:
    """The pictures of each site in the order of its list, which `split_of` keeps.

    So the first pictures of a list, which FedBN and FedRDN train on, can be told from the manifest.
    """
    by_id = {site: {picture.id: picture for picture in by_site[site]} for site in listed}
    return {site: [by_id[site][picture] for picture in splits] for site, splits in listed.items()}


def _read_pickled(tree: Tree, name: str, site: str, instead: str | None) -> list[str]:
    if name not in tree.files():
        which = f"neither {name} nor {instead}" if instead else f"no {name}"
        raise DataError(
            "list-form",
            f"{tree.top} has {which}, the papers' split needs FedBN's lists in the folder of the pictures: download "
            "them as https://github.com/med-air/FedBN describes, or use --split hash",
        )
    where = f"{tree.top}/{name}"
    with tree.open(name) as stream:
        lists = _listed(read_pickle(stream, where))
    paths, labels = map(_listed, lists) if len(lists) == 2 else ([], [None])
    if len(paths) != len(labels) or not all(isinstance(text, str) for text in (*paths, *labels)):
        raise DataError(
            "file-form",
            f"{where} is not one of FedBN's lists, a pickle of paths ending in {site}/<class>/<file> and of as many "
            "classes: download it again",
        )
    ids = ids_of(site, paths, where)
    for picture, label in zip(ids, labels, strict=True):
        if not picture.startswith(f"{label}/"):
            raise DataError("list-form", f"{where}: {site}/{picture} is listed as {label}, download the lists again")
    return ids


def _listed(value: object) -> list[Any]:
    """A list, tuple or array as a list; an empty list for any other value."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return list(value) if isinstance(value, list | tuple) else []
