"""Items dealt to many sites: each once at most, the same for the same seed, as uneven as asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from data_prep.partition import dirichlet, distinct, least, like, size_skewed, sub_sites
from fedshift.schema.errors import DataError

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 500))


def once(parts: Sequence[np.ndarray], n: int, *, all_: bool = True) -> None:
    items = np.concatenate(parts)
    assert len(np.unique(items)) == len(items) and (len(items) == n or not all_)
    assert items.min() >= 0 and items.max() < n
    assert all((np.diff(part) > 0).all() for part in parts)


def sizes(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([len(part) for part in parts])


def proportions(parts: Sequence[np.ndarray], labels: np.ndarray = LABELS) -> np.ndarray:
    """(sites, classes)"""
    counts = np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])
    return counts / counts.sum(1, keepdims=True)


def same(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_dirichlet_deals_every_item_once() -> None:
    parts = dirichlet(LABELS, 100, 0.6, seed=0, min_each=10)
    once(parts, 5000)
    assert len(parts) == 100 and sizes(parts).min() >= 10
    assert sizes(parts).std() > 10, "sites differ in size too"


def test_dirichlet_has_the_spread_of_its_distribution() -> None:
    """Proportions of a class over K sites from Dirichlet(α) have variance (1/K)(1 - 1/K) / (K α + 1)."""
    labels = np.repeat(np.arange(40), 1000)
    for alpha in (0.3, 0.6, 5.0):
        counts = np.array([np.bincount(labels[p], minlength=40) for p in dirichlet(labels, 20, alpha, seed=1)])
        expected = (1 / 20) * (19 / 20) / (20 * alpha + 1)
        assert 0.75 < (counts / 1000).var() / expected < 1.3, alpha


def test_a_smaller_alpha_is_more_skew() -> None:
    largest = [proportions(dirichlet(LABELS, 20, alpha, seed=3)).max(1).mean() for alpha in (0.1, 0.3, 0.6, 10, 1000)]
    assert sorted(largest, reverse=True) == largest
    assert largest[0] > 0.5 and largest[-1] < 0.13


def test_sites_that_got_too_little_get_their_least() -> None:
    assert sizes(dirichlet(LABELS, 100, 0.05, seed=0)).min() < 20
    parts = dirichlet(LABELS, 100, 0.05, seed=0, min_each=20)
    once(parts, 5000)
    assert sizes(parts).min() == 20
    exact = dirichlet(LABELS[:100], 10, 0.1, seed=0, min_each=10)
    once(exact, 100)
    assert (sizes(exact) == 10).all()


def test_sizes_are_log_normal_and_labels_alike() -> None:
    parts = size_skewed(200_000, 400, 0.5, seed=0)
    once(parts, 200_000)
    logs = np.log(sizes(parts))
    assert 0.45 < logs.std() < 0.55
    spread = [sizes(size_skewed(5000, 20, skew, seed=2)).std() for skew in (0, 0.3, 1.0)]
    assert spread[0] == 0 and spread[0] < spread[1] < spread[2]
    assert np.abs(proportions(size_skewed(5000, 5, 0.3, seed=0)) - 0.1).max() < 0.04
    small = size_skewed(1000, 50, 2.0, seed=0, min_each=5)
    once(small, 1000)
    assert sizes(small).min() >= 5 and sizes(small).max() > 50


def test_sub_sites_are_those_of_the_released_code() -> None:
    labels = np.repeat(np.arange(7), 250)
    seen = [sub_sites(labels, 4, seed=seed) for seed in range(60)]
    for parts in seen:
        once(parts, 1750, all_=False)
    lengths = np.array([sizes(parts) for parts in seen])
    assert abs(lengths.mean() - 350) < 25 and 85 < lengths.std() < 115
    assert 0.7 < lengths.sum(1).mean() / 1750 < 0.87
    spread = np.concatenate([proportions(parts, labels) for parts in seen]).std()
    expected = np.sqrt((1 / 7) * (6 / 7) / 201)  # of a symmetric Dirichlet with concentration 200 over all
    assert 0.85 < spread / expected < 1.25


def test_small_domains_have_smaller_deviations() -> None:
    labels = np.repeat(np.arange(7), 30)
    lengths = np.array([sizes(sub_sites(labels, 4, seed=seed)) for seed in range(60)])
    assert lengths.min() >= 1 and abs(lengths.mean() - 42) < 3 and 11 < lengths.std() < 17


def test_a_class_that_runs_out_is_replaced_by_others() -> None:
    labels = np.array([0] * 3 + [1] * 97)
    parts = sub_sites(labels, 4, seed=0)
    once(parts, 100, all_=False)
    assert sum((labels[part] == 0).sum() for part in parts) == 3 and sizes(parts).min() >= 5


def test_five_sub_sites_fit() -> None:
    """Six do not: see below."""
    once(sub_sites(LABELS, 5, seed=0), 5000, all_=False)


def test_others_follow_the_proportions_that_are_there() -> None:
    parts = dirichlet(LABELS, 10, 0.3, seed=0)
    others = np.repeat(np.arange(10), 200)
    more = like(parts, LABELS, others, seed=0)
    once(more, 2000)
    here, there = (
        np.array([np.bincount(labels[part], minlength=10) for part in given])
        for labels, given in ((LABELS, parts), (others, more))
    )
    assert np.abs(here * 0.4 - there).max() <= 1
    assert sizes(like(parts, LABELS, np.full(9, 11), seed=0)).sum() == 0, "nobody has that class"


@pytest.mark.parametrize(
    "deal",
    [
        lambda seed: dirichlet(LABELS, 20, 0.6, seed=seed, min_each=200),
        lambda seed: size_skewed(5000, 20, 0.4, seed=seed),
        lambda seed: sub_sites(LABELS, 4, seed=seed),
        lambda seed: like(dirichlet(LABELS, 20, 0.6, seed=0), LABELS, LABELS[:600], seed=seed),
    ],
)
def test_the_seed_decides(deal: object) -> None:
    a, b, c = (deal(seed) for seed in (4, 4, 5))  # type: ignore[operator]
    assert same(a, b) and not same(a, c)


@pytest.mark.parametrize(
    ("deal", "message"),
    [
        (lambda: dirichlet(LABELS[:99], 10, 0.6, seed=0, min_each=10), "99 pictures are too few for 10 sites"),
        (lambda: size_skewed(9, 10, 0.4, seed=0), "9 pictures are too few for 10 sites"),
        (lambda: sub_sites(LABELS[:19], 4, seed=0), "19 pictures are too few for 4 sites of at least 5"),
        (lambda: sub_sites(LABELS, 6, seed=0), "6 sub-sites"),
        (lambda: dirichlet(LABELS, 0, 0.6, seed=0), "0 sites"),
        (lambda: sub_sites(LABELS, 0, seed=0), "0 sites"),
        (lambda: dirichlet(LABELS, 10, 0.0, seed=0), "alpha must be a number from 0.001 to 1000, not 0"),
        (lambda: dirichlet(LABELS, 10, float("nan"), seed=0), "alpha must be a number from 0.001 to 1000, not nan"),
        (lambda: size_skewed(100, 10, -1, seed=0), "skew must be a number from 0 to 10, not -1"),
        (lambda: size_skewed(100, 10, float("nan"), seed=0), "skew must be a number from 0 to 10, not nan"),
    ],
)
def test_what_cannot_be_gets_a_sentence(deal: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        deal()  # type: ignore[operator]
    assert "\n" not in str(raised.value)


def test_copies_are_found_by_content() -> None:
    images = np.arange(5, dtype=np.uint8)[[0, 1, 1, 2, 0, 3]][:, None, None] * np.ones((1, 3, 3), np.uint8)
    assert distinct(images).tolist() == [0, 1, 3, 5]
    assert distinct(images, besides=images[3:4]).tolist() == [0, 1, 5]
    assert distinct(images[:0]).tolist() == []


def test_every_site_has_ten_items_or_a_third_of_the_mean() -> None:
    assert [least(n, 100) for n in (50_000, 1500, 250, 9)] == [10, 5, 1, 1]
