"""Outlines, filled again, are the mask; also after their points have been rounded as in a file."""

from __future__ import annotations

import numpy as np
import pytest

from fedshift.data.contours import filled, outlines


@pytest.mark.parametrize("density", [0.2, 0.5, 0.8, 0.97])
def test_filled_outlines_are_the_mask(density: float) -> None:
    """Noise has all that is awkward: holes in parts in holes, corners that touch, edges of the slice."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        shape = int(rng.integers(1, 30)), int(rng.integers(1, 30))
        mask = rng.random(shape) < density
        polygons = outlines(mask)
        np.testing.assert_array_equal(filled(polygons, shape), mask)
        in_mm = [np.round(polygon * 0.7 + 5.1, 4) for polygon in polygons]
        np.testing.assert_array_equal(filled([(points - 5.1) / 0.7 for points in in_mm], shape), mask)


def test_a_polygon_within_another_is_a_hole_and_one_past_the_edge_is_cut() -> None:
    square = np.array([[-3.0, -3.0], [-3.0, 7.5], [7.5, 7.5], [7.5, -3.0]])
    inner = np.array([[2.5, 2.5], [5.5, 2.5], [5.5, 5.5], [2.5, 5.5]])
    found = filled([square, inner], (10, 10))
    assert found.sum() == 64 - 9 and found[0, 0] and not found[3, 3] and not found[8, 0]


def box(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], float)


OUTER, PIXELS = box(1.5, 1.5, 12.5, 12.5), 11 * 11
SHAPE = (20, 20)


@pytest.mark.parametrize("odd", [False, True])
def test_an_outline_that_is_there_twice_counts_once(odd: bool) -> None:
    closed = np.concatenate([OUTER, OUTER[:1]])
    more_points = np.concatenate([[(a + b) / 2, b] for a, b in zip(OUTER, np.roll(OUTER, -1, 0), strict=True)])
    for other in (OUTER, OUTER[::-1], np.roll(OUTER, 2, axis=0), closed, more_points, OUTER + 0.001):
        assert filled([OUTER, other], SHAPE, odd=odd).sum() == PIXELS
        assert filled([OUTER, other, box(4.5, 4.5, 7.5, 7.5)], SHAPE, odd=odd).sum() == PIXELS - 9, "its hole stays"


def test_outlines_that_overlap_in_part_are_united_unless_the_file_says_xor() -> None:
    other = box(8.5, 8.5, 16.5, 16.5)
    assert filled([OUTER, other], SHAPE).sum() == PIXELS + 64 - 16
    assert filled([OUTER, other], SHAPE, odd=True).sum() == PIXELS + 64 - 32
    nearly = box(1.5, 1.5, 12.4, 12.7)
    assert filled([OUTER, nearly], SHAPE).sum() == PIXELS, "drawn again by hand"
    hole, again = box(4.5, 4.5, 7.5, 7.5), box(4.4, 4.6, 7.5, 7.5)
    assert filled([OUTER, nearly, hole, again], SHAPE).sum() == PIXELS - 9, "with its hole"


@pytest.mark.parametrize("odd", [False, True])
def test_holes_in_islands_in_holes_and_keyholes_stay(odd: bool) -> None:
    rings = [box(k + 0.5, k + 0.5, 15.5 - k, 15.5 - k) for k in (0, 2, 4, 6)]
    expected = 15**2 - 11**2 + 7**2 - 3**2
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        assert filled([rings[k] for k in order], SHAPE, odd=odd).sum() == expected
    ring = np.ones((11, 11), bool)
    ring[3:8, 3:8] = False
    (keyhole,) = outlines(ring)
    assert filled([keyhole, box(3.5, 3.5, 6.5, 6.5)], (11, 11), odd=odd).sum() == ring.sum() + 9, "an island in it"
    assert filled([keyhole, box(0.5, 0.5, 1.5, 1.5)], (11, 11), odd=odd).sum() == ring.sum() - 1, "another hole"
    touching = box(1.5, 4.5, 5.5, 7.5)  # a side of it lies on the outline
    assert filled([OUTER, touching], SHAPE, odd=odd).sum() == PIXELS - 12
