"""Outlines, filled again, are the mask; also after their points have been rounded as in a file."""

from __future__ import annotations

import numpy as np
import pytest

from fedshift.data.contours import BetweenSlices, filled, on_slices, outlines, plane_of


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
    inside = filled([square, inner], (10, 10))
    assert inside.sum() == 64 - 9 and inside[0, 0] and not inside[3, 3] and not inside[8, 0]


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


SHAPE, MM = (81, 81), (2.0, 1.0, 1.0)
COUNT = 40


def disc(radius: float, *, x: float = 40.0) -> np.ndarray:
    rows, columns = np.indices(SHAPE)
    return np.asarray((rows - 40) ** 2 + (columns - x) ** 2 < radius**2)


def sphere(places: np.ndarray, *, middle: float = 20.0, radius: float = 15.0) -> dict[float, np.ndarray]:
    """Its contours at these places; slices are 2 mm apart."""
    return {
        plane_of(float(place)): disc(float(np.sqrt(radius**2 - (2 * (place - middle)) ** 2)))
        for place in places
        if abs(2 * (place - middle)) < radius
    }


@pytest.mark.parametrize("every", [1, 2, 3, 4])
@pytest.mark.parametrize("start", [0.0, 0.5, 1.0])
def test_a_sphere_keeps_its_volume_however_far_its_contours_are_apart(every: int, start: float) -> None:
    filled = on_slices(sphere(np.arange(start, COUNT, every)), COUNT, interpolate=True, spacing=MM)
    assert filled.voxels.sum() * 2 == pytest.approx(4 / 3 * np.pi * 15**3, rel=0.07)
    truth = np.stack([sphere(np.array([k])).get(k, np.zeros(SHAPE, bool)) for k in range(COUNT)])
    both = 2 * (filled.voxels & truth).sum() / (filled.voxels.sum() + truth.sum())
    assert both > (0.95 if every < 3 else 0.91)


def test_between_two_outlines_the_shape_changes_steadily() -> None:
    filled = on_slices({10: disc(10), 14: disc(20)}, COUNT, interpolate=True, spacing=MM)
    radii = [np.sqrt(filled.voxels[k].sum() / np.pi) for k in range(10, 15)]
    np.testing.assert_allclose(radii, [10, 12.5, 15, 17.5, 20], atol=0.6)
    assert filled.interpolated == (8, 9, 11, 12, 13, 15)
    moved = on_slices({10: disc(12, x=36), 12: disc(12, x=44)}, COUNT, interpolate=True, spacing=MM).voxels[11]
    columns = np.nonzero(moved)[1]
    assert columns.mean() == pytest.approx(40, abs=0.1) and columns.max() - columns.min() in range(20, 24)


def test_two_parts_far_from_each_other_stay_two() -> None:
    planes = {k: disc(8) for k in (3, 4, 5, 6, 25, 26, 27)}
    filled = on_slices(planes, COUNT, interpolate=True, spacing=MM)
    assert filled.interpolated == () and np.flatnonzero(filled.voxels.any((1, 2))).tolist() == sorted(planes)


def test_without_being_asked_nothing_is_interpolated() -> None:
    filled = on_slices({5: disc(8), 7: disc(8)}, COUNT, interpolate=False, spacing=MM)
    assert np.flatnonzero(filled.voxels.any((1, 2))).tolist() == [5, 7] and not filled.interpolated
    with pytest.raises(BetweenSlices):
        on_slices({5.5: disc(8), 7.5: disc(8)}, COUNT, interpolate=False, spacing=MM)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([5.3, 6.3, 7.3], [5, 6, 7]),
        ([5.5, 6.5, 7.5], [5, 6, 7]),
        ([5.0, 5.5, 6.0, 6.5, 7.0], [5, 6, 7]),
        ([4.75, 5.25, 5.75], [5, 6]),
        ([5.05, 5.95], [5, 6]),
        ([6.4], [6]),
    ],
)
def test_contours_no_further_apart_than_slices_go_to_the_nearest(places: list[float], expected: list[int]) -> None:
    planes = {plane_of(place): disc(8) for place in places}
    filled = on_slices(planes, COUNT, interpolate=False, spacing=MM)
    assert np.flatnonzero(filled.voxels.any((1, 2))).tolist() == expected


def test_a_contour_around_no_centre_has_no_shape() -> None:
    planes = {5: disc(8), 6: disc(0), 7: disc(8)}
    filled = on_slices(planes, COUNT, interpolate=True, spacing=MM)
    assert (filled.voxels[6] == disc(8)).all() and filled.interpolated[-1] >= 6
    assert not on_slices({5: disc(0)}, COUNT, interpolate=True, spacing=MM).voxels.any()
