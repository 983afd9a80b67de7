"""Reassemble volumes from slices that are predicted in batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor


def volumes(
    values: Iterator[Tensor], members: Iterator[np.ndarray], case_of: np.ndarray, expected: dict[int, int]
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield each case as soon as its last slice is predicted; only incomplete cases are held in memory.

    Args:
        values: predictions of each batch, (B, …).
        members: slice numbers of each batch, (B,).
        case_of: the case of every slice number.
        expected: case -> number of its slices.

    Yields:
        Case, its slice numbers in ascending order, and the values in that order.
    """
    begun: dict[int, list[tuple[int, np.ndarray]]] = {}
    for index, batch in zip(members, values, strict=True):
        for number, value in zip(index.tolist(), batch.numpy(), strict=True):
            case = int(case_of[number])
            slices = begun.setdefault(case, [])
            slices.append((number, value))
            if len(slices) == expected[case]:
                slices.sort(key=lambda entry: entry[0])
                yield case, np.array([n for n, _ in slices]), np.stack([v for _, v in slices])
                del begun[case]
