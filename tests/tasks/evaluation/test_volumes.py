"""Volumes are put together from slices that are predicted in any order."""

from __future__ import annotations

import numpy as np
import torch

from fedshift.tasks.evaluation.volumes import volumes


def test_a_case_comes_when_its_last_slice_has_come_and_in_its_order() -> None:
    case_of = np.array([7, 7, 7, 4, 4])
    members = [np.array([4, 2]), np.array([0, 3]), np.array([1])]
    taken = []

    def values() -> object:
        for index in members:
            taken.append(len(index))
            yield torch.tensor(index * 10.0)

    found = volumes(values(), iter(members), case_of, {7: 3, 4: 2})  # type: ignore[arg-type]
    case, numbers, stack = next(found)
    assert (case, numbers.tolist(), stack.tolist()) == (4, [3, 4], [30, 40]) and len(taken) == 2
    case, numbers, stack = next(found)
    assert (case, numbers.tolist(), stack.tolist()) == (7, [0, 1, 2], [0, 10, 20])
    assert next(found, None) is None
