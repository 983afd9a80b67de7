"""Distribute one data set to many sites by seed: by label, by size, or as sub-sites of a domain.

These functions take the labels (or the number) of the items and return each site's item numbers in ascending order. An
item goes to at most one site. The result depends only on the arguments and the seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from fedshift.schema.errors import DataError

SUB_SITE_SHARE = 5
"""A sub-site has one in so many items of its domain on average."""
DEVIATION, CONCENTRATION = 100, 200
"""Standard deviation of a sub-site's size, and total Dirichlet concentration of its class proportions."""
SCALED_BELOW = 15
"""In a domain with fewer than SCALED_BELOW * DEVIATION items, the deviation is N / SCALED_BELOW instead."""


def dirichlet(
    labels: np.ndarray, n_sites: int, alpha: float, *, seed: int, min_each: int = 1
) -> tuple[np.ndarray, ...]:
    """Distribute each class over all sites in proportions from Dirichlet(α, …, α); every item is assigned.

    This is the form of Yurochkin et al. (ICML 2019): sites differ in their classes and in their number of items. (Hsu
    et al., 2019, instead draw each site's class proportions, for sites of equal size.) Sites with fewer than
    ``min_each`` items then receive random items of the largest site, where other implementations repeat the draw.

    Args:
        labels: the class of each item (N,).
        n_sites: number of sites.
        alpha: α; the smaller it is, the fewer classes a site has.
        seed: seed of all draws.
        min_each: minimum number of items of each site.

    Raises:
        DataError: the arguments are out of range, or there are too few items.
    """
    _require(len(labels), n_sites, min_each)
    if not 0.001 <= alpha <= 1000:
        raise DataError("invalid-value", f"alpha must be a number from 0.001 to 1000, not {alpha}")
    rng = np.random.default_rng([seed, 1])
    site_of = np.zeros(len(labels), np.int64)
    for label in np.unique(labels):
        items = rng.permutation(np.flatnonzero(labels == label))
        site_of[items] = np.repeat(np.arange(n_sites), _counts(rng.dirichlet(np.full(n_sites, alpha)), len(items)))
    sizes = np.bincount(site_of, minlength=n_sites)
    while sizes.min() < min_each:
        poor, rich = int(sizes.argmin()), int(sizes.argmax())
        moved = rng.choice(np.flatnonzero(site_of == rich))
        site_of[moved] = poor
        sizes[[poor, rich]] += 1, -1
    return tuple(np.flatnonzero(site_of == site) for site in range(n_sites))


def size_skewed(n_items: int, n_sites: int, skew: float, *, seed: int, min_each: int = 1) -> tuple[np.ndarray, ...]:
    """Sites with log-normal sizes, each a random sample of all items; every item is assigned.

    Args:
        n_items: number of items.
        n_sites: number of sites.
        skew: standard deviation of the log of the sizes, before each site gets its ``min_each``; 0 for equal sizes. The
            3,550 writers of FEMNIST (mean 226.8 images, standard deviation 88.9) have 0.38.
        seed: seed of all draws.
        min_each: minimum number of items of each site.

    Raises:
        DataError: the arguments are out of range, or there are too few items.
    """
    _require(n_items, n_sites, min_each)
    if not 0 <= skew <= 10:
        raise DataError("invalid-value", f"skew must be a number from 0 to 10, not {skew}")
    rng = np.random.default_rng([seed, 2])
    weights = np.exp(skew * rng.standard_normal(n_sites))
    sizes = min_each + _counts(weights, n_items - min_each * n_sites)
    return tuple(np.sort(part) for part in np.split(rng.permutation(n_items), np.cumsum(sizes)[:-1]))


def sub_sites(labels: np.ndarray, n_sites: int, *, seed: int) -> tuple[np.ndarray, ...]:
    """A domain's sub-sites as in the released code of "Mitigating Data Heterogeneity … with Data Augmentation".

    Sizes are round(Normal(N/5, 100)), the class proportions of each Dirichlet with concentration 200 over all classes,
    so four sub-sites use about 80 % of the items. In a domain of fewer than 1500 items the standard deviation is N/15,
    which is a third of the mean. Sizes are drawn again until they fit into the domain and no site is empty. When a
    class runs out, the missing items are taken from the other classes in proportion to what is left of them.

    Args:
        labels: the class of each item (N,).
        n_sites: number of sub-sites, at most 5.
        seed: seed of all draws.

    Raises:
        DataError: too many sub-sites, or too few items.
    """
    n = len(labels)
    if n_sites > SUB_SITE_SHARE:
        raise DataError(
            "invalid-value",
            f"{n_sites} sub-sites of a fifth of a domain each need more than the domain: ask for at most 5",
        )
    _require(n, n_sites, SUB_SITE_SHARE)
    rng = np.random.default_rng([seed, 3])
    deviation = min(DEVIATION, n / SCALED_BELOW)
    sizes = np.zeros(n_sites, int)
    while sizes.min() < 1 or sizes.sum() > n:
        sizes = np.rint(rng.normal(n / SUB_SITE_SHARE, deviation, n_sites)).astype(int)
    classes = np.unique(labels)
    items_of = [list(rng.permutation(np.flatnonzero(labels == label))) for label in classes]
    dealt = []
    for size in sizes:
        wanted = _counts(rng.dirichlet(np.full(len(classes), CONCENTRATION / len(classes))), int(size))
        counts = np.minimum(wanted, [len(items) for items in items_of])
        while counts.sum() < size:
            room = np.array([len(items) for items in items_of]) - counts
            counts += np.minimum(_counts(room, int(size - counts.sum())), room)
        dealt.append(
            np.sort([items.pop() for items, count in zip(items_of, counts, strict=True) for _ in range(count)])
        )
    return tuple(dealt)


def like(parts: Iterable[np.ndarray], labels: np.ndarray, others: np.ndarray, *, seed: int) -> tuple[np.ndarray, ...]:
    """Distribute more items to the sites of a partition, each class in the proportions that the sites already have.

    Items of a class that no site has are assigned to no site; all others are assigned.

    Args:
        parts: item numbers of each site.
        labels: the classes of these items.
        others: the classes of the further items; their numbers are returned.
        seed: seed of all draws.
    """
    rng = np.random.default_rng([seed, 4])
    parts = tuple(parts)
    site_of = np.full(len(others), -1)
    for label in np.unique(others):
        weights = np.array([(labels[part] == label).sum() for part in parts])
        if weights.any():
            items = rng.permutation(np.flatnonzero(others == label))
            site_of[items] = np.repeat(np.arange(len(parts)), _counts(weights, len(items)))
    return tuple(np.flatnonzero(site_of == site) for site in range(len(parts)))


def distinct(images: np.ndarray, *, besides: np.ndarray | None = None) -> np.ndarray:
    """Numbers of the images (N, …) that are the first with their content and whose content is not in ``besides``."""
    known = set() if besides is None else {_content(image) for image in besides}
    kept = []
    for number, image in enumerate(images):
        content = _content(image)
        if content not in known:
            known.add(content)
            kept.append(number)
    return np.array(kept, np.int64)


def _content(image: np.ndarray) -> bytes:
    return hashlib.blake2b(image.tobytes(), digest_size=16).digest()


def _counts(weights: np.ndarray, total: int) -> np.ndarray:
    """Integers in proportion to ``weights`` that sum to ``total``."""
    ends = np.rint(np.cumsum(weights) / max(weights.sum(), 1e-300) * total).astype(int)
    return np.diff(ends, prepend=0)


def require_seed(seed: int) -> None:
    """Check that NumPy accepts the seed.

    Raises:
        DataError: the seed is negative.
    """
    if seed < 0:
        raise DataError("invalid-value", f"seed must be 0 or more, not {seed}")


def least(n_items: int, n_sites: int) -> int:
    """Minimum number of items of each site of a partition: ten, or a third of the mean if that is less."""
    return max(1, min(10, n_items // (3 * max(n_sites, 1))))


def _require(n_items: int, n_sites: int, min_each: int) -> None:
    if n_sites < 1:
        raise DataError("invalid-value", f"{n_sites} sites are not possible: ask for one or more")
    if n_items < n_sites * min_each:
        raise DataError(
            "too-few-items",
            f"{n_items} pictures are too few for {n_sites} sites of at least {min_each}: ask for fewer sites",
        )
