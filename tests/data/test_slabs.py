"""Masks on another grid than their image's keep volume and place, to less than a voxel."""

from __future__ import annotations

import numpy as np
import pytest
from scanfiles import IDENTITY, rotation

from fedshift.data.scans import Scan
from fedshift.data.slabs import Slab, beyond, draw, is_on_grid, matrix_of

CENTRE, RADII = np.array([3.0, -4.0, 8.0]), np.array([17.0, 13.0, 21.0])
ML = 4 / 3 * np.pi * RADII.prod() / 1000
SAGITTAL = (0.0, 0.0, -1.0, 1.0, 0.0, 0.0, 0.0, -1.0, 0.0)


def grid(spacing: tuple[float, float, float], direction: tuple[float, ...], *, shift: float = 0.0) -> Scan:
    """A grid whose middle is the world's, moved by ``shift`` of a voxel; more than the ellipsoid lies in it."""
    size = np.ceil(64 / np.array(spacing)).astype(int)
    matrix = np.reshape(direction, (3, 3)) * np.array(spacing)
    origin = tuple((matrix @ (shift - (size - 1) / 2)).tolist())
    return Scan(np.zeros(size[::-1], bool), spacing, origin, direction, "RAS", direction)


def ellipsoid(on: Scan) -> np.ndarray:
    z, y, x = np.indices(on.voxels.shape)
    at = np.stack([x, y, z], -1) @ matrix_of(on).T + np.array(on.origin)
    return np.asarray((((at - CENTRE) / RADII) ** 2).sum(-1) < 1)


def slabs_of(mask: np.ndarray, on: Scan) -> list[Slab]:
    matrix, half = matrix_of(on), on.spacing[2] / 2
    return [
        Slab(plane, np.array(on.origin) + matrix[:, 2] * k, matrix[:, :2], half, half) for k, plane in enumerate(mask)
    ]


@pytest.mark.parametrize("direction", [IDENTITY, rotation(20, 0)], ids=["axial", "oblique"])
@pytest.mark.parametrize(
    ("spacing", "turned", "shift"),
    [
        ((1.2, 1.2, 3.0), None, 0.0),
        ((1.2, 1.2, 6.0), None, 0.25),
        ((1.2, 1.2, 9.0), None, 0.0),
        ((1.2, 1.2, 4.1), None, 0.3),
        ((0.6, 0.6, 1.5), None, 0.0),
        ((2.0, 1.7, 3.0), None, 0.4),
        ((1.2, 1.2, 3.0), None, 0.5),
        ((1.0, 1.0, 4.0), SAGITTAL, 0.0),
        ((1.0, 1.0, 3.0), rotation(33, 0), 0.1),
    ],
    ids=str,
)
def test_the_volume_stays_and_every_voxel_is_of_the_pixel_around_its_centre(
    spacing: tuple[float, float, float], turned: tuple[float, ...] | None, shift: float, direction: tuple[float, ...]
) -> None:
    image, of_mask = grid((1.2, 1.2, 3.0), direction), grid(spacing, turned or direction, shift=shift)
    mask = ellipsoid(of_mask)
    slabs = slabs_of(mask, of_mask)
    drawn = draw(slabs, image)
    assert drawn.sum() * np.prod(image.spacing) / 1000 == pytest.approx(ML, rel=0.03)
    truth = ellipsoid(image)
    assert 2 * (drawn & truth).sum() / (drawn.sum() + truth.sum()) > 0.90
    z, y, x = np.indices(image.voxels.shape)
    world = np.stack([x, y, z], -1) @ matrix_of(image).T + np.array(image.origin)
    index = (world - np.array(of_mask.origin)) @ np.linalg.inv(matrix_of(of_mask)).T
    nearest = np.clip(np.rint(index).astype(int), 0, np.array(mask.shape[::-1]) - 1)
    clear = (np.abs(index - np.floor(index) - 0.5) > 0.02).all(-1)  # otherwise two are as near
    np.testing.assert_array_equal(drawn[clear], mask[tuple(nearest[..., ::-1].T)].T[clear])
    same = spacing == image.spacing and turned is None and shift == 0
    assert all(is_on_grid(slab, image) for slab in slabs) == same
    assert beyond(slabs, image)[0] == 0


@pytest.mark.parametrize("noise", [0.0, 1e-4])
def test_of_neighbours_exactly_one_has_a_centre_on_their_border(noise: float) -> None:
    """Slices of twice the thickness on the places of every second one: each of theirs is two of the image's."""
    image = grid((1.0, 1.0, 3.0), IDENTITY)
    rng = np.random.default_rng(0)
    for ahead in (1, -1):
        steps = np.array([[1.0, 0], [0, ahead], [0, 0]])
        slabs = [
            Slab(
                np.ones((4, 4), bool),
                np.array(image.origin) + np.array([9.0, 9.0, 6.0 * k]) + rng.uniform(-noise, noise, 3),
                steps,
                3.0,
                3.0,
            )
            for k in range(2, 7)
        ]
        each = [draw([slab], image) for slab in slabs]
        assert [int(one.sum()) for one in each] == [32] * 5
        assert not (np.sum(each, 0) > 1).any()


def test_what_is_beyond_the_image_is_measured() -> None:
    image = grid((1.0, 1.0, 2.0), IDENTITY)
    slab = Slab(np.ones((10, 10), bool), np.array(image.origin) - [4.0, 0, 0], np.eye(3)[:, :2], 1.0, 1.0)
    assert draw([slab], image).sum() == 60
    assert beyond([slab], image) == (pytest.approx(0.08), pytest.approx(0.2))
    assert beyond([Slab(slab.pixels, slab.position - 500, slab.steps, 1.0, 1.0)], image)[0] == pytest.approx(0.2)
