"""The papers' split of single slices, kept for reproduction only: one patient lands in training and test."""

from __future__ import annotations

import numpy as np

from fedshift.schema.manifest import Split
from fedshift.schema.seeding import derive_seed

TRAIN_SHARE, HELD_OUT_SHARE, TRAIN_FLOOR = 0.6, 0.2, 32


def legacy_split(slices: np.ndarray, *, fraction: float, site: str) -> dict[Split, np.ndarray]:
    """Shuffle n slices, then: first max(0.6·fraction·n, 32) train, next 0.2·n val, last 0.2·n test.

    The counts are those of FedFA's Table 13 (``fraction`` 1) and Table 2 (``fraction`` 1/6, where the released
    code has the floor of 32). The permutation depends on the site only, so runs of any seed share the split; it
    is not the authors', whose index files are not part of the data.

    Args:
        slices: slice numbers (n,).
        fraction: part of the training share, (0, 1].
        site: the site's name.

    Returns:
        Disjoint slice numbers, unless the floor of 32 reaches into the validation part of a very small site, in
        which case training gives way.
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
