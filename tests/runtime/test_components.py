"""The largest parts of a mask are the same ones however a scan is stored."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import numpy as np
import pytest
from scipy.ndimage import generate_binary_structure

from fedshift.runtime.components import keep_largest, largest_parts

EVERY_NEIGHBOUR = generate_binary_structure(3, 3)
SHAPE = (9, 11, 13)


def stored_otherwise(volume: np.ndarray) -> Iterator[np.ndarray]:
    """All 48 ways to store a volume."""
    for axes, flips in product(permutations(range(3)), product((False, True), repeat=3)):
        yield np.flip(volume.transpose(axes), [axis for axis in range(3) if flips[axis]])


def largest(classes: np.ndarray) -> np.ndarray:
    kept = classes.copy()
    keep_largest(kept, (1, 2), regions=False)
    return kept


def blocks(*parts: tuple[slice, slice, slice]) -> np.ndarray:
    mask = np.zeros(SHAPE, np.uint8)
    for part in parts:
        mask[part] = 1
    return mask


FIRST, SECOND = np.s_[1:3, 1:4, 1:4], np.s_[5:8, 6:9, 8:10]
"""Two parts of 18 voxels."""


LARGER, SINGLE = np.s_[5:8, 6:9, 8:11], np.s_[8:9, 0:1, 0:1]
CASES = {
    "equal": (blocks(FIRST, SECOND), blocks(FIRST, SECOND)),
    "equal and a smaller one": (blocks(FIRST, SECOND, SINGLE), blocks(FIRST, SECOND)),
    "unequal": (blocks(FIRST, LARGER), blocks(LARGER)),
    "alone": (blocks(SINGLE), blocks(SINGLE)),
    "none": (blocks(), blocks()),
}


@pytest.mark.parametrize("case", CASES)
def test_of_parts_of_one_size_all_are_kept_however_a_scan_is_stored(case: str) -> None:
    for given, wanted in zip(*map(stored_otherwise, CASES[case]), strict=True):
        assert np.array_equal(largest(given), wanted)


def test_each_class_has_its_own_largest_part_in_every_orientation() -> None:
    noise = np.random.default_rng(1).choice(3, size=SHAPE, p=(0.9, 0.06, 0.04)).astype(np.uint8)
    wanted = largest(noise)
    assert 0 < (wanted > 0).sum() < (noise > 0).sum() and set(np.unique(wanted)) == {0, 1, 2}
    for mask, same in zip(stored_otherwise(noise), stored_otherwise(wanted), strict=True):
        assert np.array_equal(largest(mask), same)


def test_the_number_of_parts_and_what_is_connected_can_be_said() -> None:
    corner = blocks(np.s_[0:2, 0:2, 0:2], np.s_[2:4, 2:4, 2:4], np.s_[6:8, 6:8, 6:9]).astype(bool)
    faces = generate_binary_structure(3, 1)
    assert largest_parts(corner, neighbours=EVERY_NEIGHBOUR).sum() == 16, "corners touch"
    assert largest_parts(corner, neighbours=faces).sum() == 12
    assert largest_parts(corner, neighbours=faces, count=2).sum() == 28, "two of one size share the second place"
    assert largest_parts(corner, neighbours=faces, count=9).sum() == 28
