"""Divide the domains of a data set into sub-sites, except one that is held out.

This follows the released code of "Mitigating Data Heterogeneity in Federated Learning with Data Augmentation". A tenth
of each class of a domain is for validation. Of the remaining pictures, the sub-sites get about 80 % for training, in
unequal sizes and class proportions, see `data_prep.partition`. The pictures left over, which that code does not use,
are the test part here. Validation and test pictures are distributed in the sub-sites' class proportions. The domain
that is not divided is split by content.

The data set is named ``<data set>_subsites``, its sites ``<domain>_1``, ``<domain>_2``, … and the undivided domain.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from data_prep.dealing import BY_CONTENT, deal_by_content, keep_together
from data_prep.partition import like, require_seed, sub_sites
from data_prep.pictures import Dealing, Hashed, PicturesBySite, PictureSet, Plan
from fedshift.schema.errors import DataError
from fedshift.schema.manifest import Split

VALIDATION = 10
"""One in so many pictures of a divided domain is for validation."""


@dataclass(frozen=True, kw_only=True)
class SubSites:
    """The sub-sites requested on the command line: ``count`` per domain, or None for no sub-sites.

    Raises:
        DataError: ``whole`` or ``seed`` without ``count``, or a negative seed.
    """

    count: int | None = None
    whole: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.count is None and (self.whole is not None or self.seed is not None):
            raise DataError(
                "invalid-value", "--whole and --seed only apply to sub-sites: add --subsites or remove them"
            )
        require_seed(self.seed or 0)


def add_subsite_options(parser: argparse.ArgumentParser, picture_set: PictureSet, *, whole: str) -> None:
    """Add ``--subsites``, ``--whole`` and ``--seed``; ``whole`` is the domain that the paper holds out."""
    parser.add_argument("--subsites", type=int, metavar="N", help="divide the domains into N sites each (the paper: 4)")
    parser.add_argument(
        "--whole", choices=picture_set.sites, help=f"with --subsites, the domain that stays one site (default: {whole})"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the sub-sites (default: 0)")


def plan_domains(
    picture_set: PictureSet,
    domains: PicturesBySite,
    sizes: tuple[int, ...],
    asked: SubSites,
    *,
    whole: str,
    source: Path,
) -> Plan:
    """The pictures by domain, split by content, or divided into sub-sites if these are requested.

    Args:
        picture_set: the data set, with one site per domain.
        domains: its pictures by domain.
        sizes: sides in pixels of the cached pictures.
        asked: the requested sub-sites.
        whole: the domain that is not divided by default.
        source: the download, as named in errors.

    Raises:
        DataError: sub-sites that are not possible.
    """
    if asked.count is None:
        return Plan(picture_set, domains, sizes, BY_CONTENT)
    whole, seed = asked.whole or whole, asked.seed or 0
    by_site: PicturesBySite = {}
    split_of: dict[str, dict[str, Split]] = {}
    for number, (domain, pictures) in enumerate(domains.items()):
        if domain == whole:
            by_site[domain] = pictures
            continue
        try:
            splits = _divide(np.array([picture.label for picture in pictures]), asked.count, seed=8 * seed + number)
        except DataError as error:
            raise DataError(error.code, f"{source / domain}: {error}") from None
        for k, of_site in enumerate(splits, start=1):
            numbers = sorted(of_site)
            by_site[f"{domain}_{k}"] = [pictures[n] for n in numbers]
            split_of[f"{domain}_{k}"] = {pictures[n].id: of_site[n] for n in numbers}

    def deal(site: str, pictures: Hashed) -> dict[str, Split]:
        return keep_together(split_of[site], pictures) if site in split_of else deal_by_content(site, pictures)

    divided = replace(picture_set, dataset=f"{picture_set.dataset}_subsites", sites=tuple(by_site))
    rule = f"{asked.count} sub-sites a domain, seed {seed}, {whole} whole by content"
    dealing = Dealing(deal, rule, notes={"partition": f"{rule}; see data_prep.subsites"}, whole=True)
    return Plan(divided, by_site, sizes, dealing)


def _divide(labels: np.ndarray, count: int, *, seed: int) -> list[dict[int, Split]]:
    """Split of each picture, by number, for each sub-site.

    Every picture of the domain is assigned to one sub-site, except validation and test pictures of a class that no
    sub-site has for training.
    """
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
