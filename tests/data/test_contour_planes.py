"""Contours between others are interpolated by shape, and volume is contours' area times distance."""

from __future__ import annotations

import numpy as np
import pytest

from fedshift.data.contours import BetweenSlices, on_slices, plane_of

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
    found = on_slices(sphere(np.arange(start, COUNT, every)), COUNT, interpolate=True, spacing=MM)
    assert found.voxels.sum() * 2 == pytest.approx(4 / 3 * np.pi * 15**3, rel=0.07)
    truth = np.stack([sphere(np.array([k])).get(k, np.zeros(SHAPE, bool)) for k in range(COUNT)])
    both = 2 * (found.voxels & truth).sum() / (found.voxels.sum() + truth.sum())
    assert both > (0.95 if every < 3 else 0.91)


def test_between_two_outlines_the_shape_changes_steadily() -> None:
    found = on_slices({10: disc(10), 14: disc(20)}, COUNT, interpolate=True, spacing=MM)
    radii = [np.sqrt(found.voxels[k].sum() / np.pi) for k in range(10, 15)]
    np.testing.assert_allclose(radii, [10, 12.5, 15, 17.5, 20], atol=0.6)
    assert found.made == (8, 9, 11, 12, 13, 15)
    moved = on_slices({10: disc(12, x=36), 12: disc(12, x=44)}, COUNT, interpolate=True, spacing=MM).voxels[11]
    columns = np.nonzero(moved)[1]
    assert columns.mean() == pytest.approx(40, abs=0.1) and columns.max() - columns.min() in range(20, 24)


def test_two_parts_far_from_each_other_stay_two() -> None:
    planes = {k: disc(8) for k in (3, 4, 5, 6, 25, 26, 27)}
    found = on_slices(planes, COUNT, interpolate=True, spacing=MM)
    assert found.made == () and np.flatnonzero(found.voxels.any((1, 2))).tolist() == sorted(planes)


def test_without_being_asked_nothing_is_interpolated() -> None:
    found = on_slices({5: disc(8), 7: disc(8)}, COUNT, interpolate=False, spacing=MM)
    assert np.flatnonzero(found.voxels.any((1, 2))).tolist() == [5, 7] and not found.made
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
    found = on_slices(planes, COUNT, interpolate=False, spacing=MM)
    assert np.flatnonzero(found.voxels.any((1, 2))).tolist() == expected


def test_a_contour_around_no_centre_has_no_shape() -> None:
    planes = {5: disc(8), 6: disc(0), 7: disc(8)}
    found = on_slices(planes, COUNT, interpolate=True, spacing=MM)
    assert (found.voxels[6] == disc(8)).all() and found.made[-1] >= 6
    assert not on_slices({5: disc(0)}, COUNT, interpolate=True, spacing=MM).voxels.any()
