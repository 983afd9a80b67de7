"""The papers' split by slice, for reproduction only: slices of one patient are in training and test."""

from __future__ import annotations

import numpy as np

from fedshift.schema.manifest import Split
from fedshift.schema.seeding import derive_seed

TRAIN_SHARE, HELD_OUT_SHARE, TRAIN_FLOOR = 0.6, 0.2, 32


def legacy_split(slices: np.ndarray, *, fraction: float, site: str) -> dict[Split, np.ndarray]:
    """Shuffle n slices, then: first max(0.6·fraction·n, 32) train, next 0.2·n val, last 0.2·n test.

    The counts are those of FedFA's Table 13 (``fraction`` 1) and Table 2 (``fraction`` 1/6; the minimum of 32 is
    the released code's). The permutation depends only on the site, so the split is the same for every seed. It is
    not the authors' permutation, whose index files are not published with the data.

    Args:
        slices: slice numbers (n,).
        fraction: fraction of the training part to use, in (0, 1].
        site: the site's name.

    Returns:
        Disjoint slice numbers for each split. If the minimum of 32 would reach into the validation part of a very
        small site, training gets fewer.
    """
    n = len(slices)
    order = np.random.default_rng(derive_seed(0, site, 0, "slice-legacy")).permutation(slices)
    held_out = int(HELD_OUT_SHARE * n)
    start = int(max(TRAIN_SHARE * n, TRAIN_FLOOR))
    train = int(max(TRAIN_SHARE * fraction * n, TRAIN_FLOOR))
    start = min(start, n - 2 * held_out)
    return {
        "train": order[: min(train, start)],
        "val": order[start : start + held_out],
        "test": order[n - held_out :],
    }
