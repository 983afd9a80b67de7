"""PACS: seven kinds of things as photographs, art paintings, cartoons and sketches.

Expected is the download, unpacked or as the zip, ``<domain>/<class>/*.jpg`` (or ``.png``) with the domains
art_painting (2048 pictures), cartoon (2344), photo (1670) and sketch (3929), 227 x 227, about 200 MB. It is described
at https://dali-dl.github.io/project_iccv2017.html; a copy in the same folders is below ``PACS`` at
https://github.com/MachineLearning2020/Homework3-PACS. Described in Li, Yang, Song, Hospedales, "Deeper, broader and
artier domain generalization", ICCV 2017.

The split goes by content, see `data_prep.dealing`; the papers publish no lists that could be repeated.

``--subsites 4`` makes the data set ``pacs_subsites``: each domain but sketch becomes four sites, ``art_painting_1`` to
``photo_4``, and sketch, which the paper holds out, stays one site with the split by content. This follows the released
code of "Mitigating Data Heterogeneity in Federated Learning with Data Augmentation": a tenth of each class of a domain
is for validation; of the others the sub-sites get about 80 % to train on, in unequal sizes and class proportions, see
`data_prep.partition`. What they leave over, which is not used there, is the test part. Both are shared out in the
sub-sites' class proportions. ``--whole`` names another domain to hold out.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from data_prep.dealing import BY_CONTENT, deal_by_content, keep_together
from data_prep.partition import like, require_seed, sub_sites
from data_prep.pictures import Dealing, Found, Hashed, PictureSet, Plan
from data_prep.trees import find_pictures
from fedshift.data.manifest import Split
from fedshift.errors import DataError

PACS = PictureSet(
    dataset="pacs",
    name="PACS",
    sites=("art_painting", "cartoon", "photo", "sketch"),
    classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    described="the download is described at https://dali-dl.github.io/project_iccv2017.html",
    licence="research use; the pictures are their owners', not for redistribution",
    citation="Li D, Yang Y, Song Y-Z, Hospedales TM. Deeper, broader and artier domain generalization. ICCV 2017",
)
SIZES = (96, 224)  # the task's default, and the papers'


VALIDATION = 10
"""One of so many pictures of a divided domain is for validation."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `plan` for the command line."""
    parser.add_argument("--subsites", type=int, metavar="N", help="divide the domains into N sites each (the paper: 4)")
    parser.add_argument(
        "--whole", choices=PACS.sites, help="with --subsites, the domain that stays one site (default: sketch)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the sub-sites (default: 0)")


def plan(source: Path, *, subsites: int | None = None, whole: str | None = None, seed: int | None = None) -> Plan:
    """The pictures of a download, domain by domain, or divided into sub-sites.

    Raises:
        DataError: an unknown layout, sub-sites that cannot be, or options of theirs without them.
    """
    if subsites is None:
        if whole is not None or seed is not None:
            raise DataError("--whole and --seed are about sub-sites: name --subsites too, or leave them away")
        return Plan(PACS, find_pictures(source, PACS), SIZES, BY_CONTENT)
    whole, seed = whole or "sketch", seed or 0
    require_seed(seed)
    domains = find_pictures(source, PACS)
    found: Found = {}
    split_of: dict[str, dict[str, Split]] = {}
    for number, (domain, pictures) in enumerate(domains.items()):
        if domain == whole:
            found[domain] = pictures
            continue
        try:
            splits = _divide(np.array([picture.label for picture in pictures]), subsites, seed=8 * seed + number)
        except DataError as error:
            raise DataError(f"{source / domain}: {error}") from None
        for k, of_site in enumerate(splits, start=1):
            numbers = sorted(of_site)
            found[f"{domain}_{k}"] = [pictures[n] for n in numbers]
            split_of[f"{domain}_{k}"] = {pictures[n].id: of_site[n] for n in numbers}

    def deal(site: str, pictures: Hashed) -> dict[str, Split]:
        return keep_together(split_of[site], pictures) if site in split_of else deal_by_content(site, pictures)

    of = replace(PACS, dataset="pacs_subsites", sites=tuple(found))
    rule = f"{subsites} sub-sites a domain, seed {seed}, {whole} whole by content"
    dealing = Dealing(deal, rule, notes={"partition": f"{rule}; see data_prep.pacs"}, whole=True)
    return Plan(of, found, SIZES, dealing)


def _divide(labels: np.ndarray, count: int, *, seed: int) -> list[dict[int, Split]]:
    """Split of each picture of each sub-site, by number; all pictures of the domain are at one of them."""
    rng = np.random.default_rng([seed, 6])
    mixed = rng.permutation(len(labels))
    members = [mixed[labels[mixed] == label] for label in np.unique(labels)]
    val = np.concatenate([items[: round(len(items) / VALIDATION)] for items in members])
    rest = np.concatenate([items[round(len(items) / VALIDATION) :] for items in members])
    parts = sub_sites(labels[rest], count, seed=seed)
    test = np.delete(rest, np.concatenate(parts))
    shared: list[tuple[Split, np.ndarray]] = [("val", val), ("test", test)]
    splits: list[dict[int, Split]] = [dict.fromkeys(rest[part].tolist(), "train") for part in parts]
    for split, items in shared:
        for of_site, part in zip(splits, like(parts, labels[rest], labels[items], seed=seed), strict=True):
            of_site.update(dict.fromkeys(items[part].tolist(), split))
    return splits
