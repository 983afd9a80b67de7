"""The papers' split by slice."""

from __future__ import annotations

import numpy as np
import pytest

from fedshift.data.splits import legacy_split

SLICES = np.arange(1000, 1200)


@pytest.mark.parametrize(("n", "fraction", "train"), [(200, 1.0, 120), (200, 0.5, 60), (200, 0.01, 32), (40, 1.0, 24)])
def test_shares(n: int, fraction: float, train: int) -> None:
    split = legacy_split(SLICES[:n], fraction=fraction, site="HK")
    assert [len(split[part]) for part in ("train", "val", "test")] == [train, n // 5, n // 5]
    every = np.concatenate([*split.values()])
    assert len(set(every)) == len(every) and set(every) <= set(SLICES[:n]), "disjoint"


def test_the_order_is_the_sites_own_and_a_share_is_the_first_of_the_whole() -> None:
    one, other = (legacy_split(SLICES, fraction=1.0, site=site) for site in ("HK", "UCL"))
    assert not np.array_equal(one["train"], other["train"])
    half = legacy_split(SLICES, fraction=0.5, site="HK")
    np.testing.assert_array_equal(half["train"], one["train"][:60])
    np.testing.assert_array_equal(half["test"], one["test"])
