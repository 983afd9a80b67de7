"""Histogram landmarks: what they are of, and what mapping them keeps."""

from __future__ import annotations

import numpy as np
import pytest

from fedshift.runtime.grids import (
    INNER,
    LANDMARKS,
    MOST_DEVIATIONS,
    SCALE,
    landmarks,
    network_volume,
    normalised,
    piecewise_linear,
    standard_landmarks,
)


def scan(seed: int = 0) -> np.ndarray:
    """Air, and tissue of three kinds (z, y, x)."""
    rng = np.random.default_rng(seed)
    tissue = rng.choice([0, 300, 520, 900], (6, 40, 40), p=[0.3, 0.4, 0.2, 0.1])
    return np.abs(tissue + rng.normal(0, 25, tissue.shape))


def mapped(voxels: np.ndarray, *, nonzero: bool = False) -> np.ndarray:
    return normalised(voxels, "landmarks", nonzero=nonzero, fixed=None)


def test_a_mapped_volume_has_the_landmarks_of_a_normal_distribution() -> None:
    np.testing.assert_allclose(landmarks(mapped(scan())), SCALE, atol=0.01)
    normal = np.random.default_rng(0).normal(700, 90, 400_000)
    np.testing.assert_allclose(mapped(normal), (normal - 700) / 90, atol=0.05)


def test_mapping_a_volume_whose_landmarks_are_the_scale_changes_nothing() -> None:
    values = np.linspace(-5, 5, 1001)
    np.testing.assert_allclose(piecewise_linear(values, np.array(SCALE), np.array(SCALE)), values, atol=1e-12)


def test_with_nonzero_what_is_0_counts_nowhere_and_stays_0() -> None:
    inside = scan()
    inside[:, :8] = 0
    wider = np.pad(inside, 5)
    np.testing.assert_array_equal(mapped(wider, nonzero=True)[5:-5, 5:-5, 5:-5], mapped(inside, nonzero=True))
    np.testing.assert_array_equal(standard_landmarks(wider, nonzero=True), standard_landmarks(inside, nonzero=True))
    assert (mapped(wider, nonzero=True)[wider == 0] == 0).all()
    np.testing.assert_allclose(landmarks(mapped(wider, nonzero=True)[wider != 0]), SCALE, atol=0.01)


@pytest.mark.parametrize("nonzero", [False, True])
def test_gain_changes_nothing_and_without_nonzero_an_offset_neither(nonzero: bool) -> None:
    """The same to single precision, in which scans are given."""
    voxels = scan().astype(np.float32)
    voxels[:, :8] *= 0 if nonzero else 1
    other = 3.7 * voxels + (0 if nonzero else 100)
    np.testing.assert_allclose(mapped(other, nonzero=nonzero), mapped(voxels, nonzero=nonzero), atol=1e-4)
    same = [standard_landmarks(v, nonzero=nonzero) for v in (voxels, other)]
    np.testing.assert_allclose(*same, atol=1e-4)


def test_it_keeps_the_order_of_intensities_and_takes_most_of_a_gamma_away() -> None:
    voxels = scan()
    bent = 1000 * (voxels / 1000) ** 0.6
    order = np.argsort(voxels, axis=None)
    assert (np.diff(mapped(voxels).ravel()[order]) >= 0).all()
    plain = [normalised(v, "volume", nonzero=False, fixed=None) for v in (voxels, bent)]
    after, before = (np.abs(a - b).mean() for a, b in ([mapped(voxels), mapped(bent)], plain))
    assert after < before / 4


@pytest.mark.parametrize(
    "voxels",
    [
        np.zeros((2, 4, 4)),
        np.full((2, 4, 4), 7.0),
        np.pad(np.ones((1, 1, 1)), 3),
        np.round(scan() / 300),
        np.where(np.arange(1000).reshape(10, 10, 10) == 5, 1e6, 1.0),
    ],
    ids=["zeros", "one intensity", "one voxel", "four intensities", "one bright voxel"],
)
@pytest.mark.parametrize("nonzero", [False, True])
def test_volumes_with_few_intensities_are_mapped_in_order_to_something_finite(
    voxels: np.ndarray, nonzero: bool
) -> None:
    values, standard = mapped(voxels, nonzero=nonzero), standard_landmarks(voxels, nonzero=nonzero)
    assert np.isfinite(values).all() and np.abs(values).max() <= MOST_DEVIATIONS
    assert (np.diff(standard) >= 0).all() and standard.min() >= SCALE[0] and standard.max() <= SCALE[-1]
    if not nonzero:
        assert (np.diff(values.ravel()[np.argsort(voxels, axis=None)]) >= 0).all()


def test_standard_landmarks_are_the_quantiles_between_ends_at_one_place() -> None:
    voxels = scan()
    low, *inner, high = np.quantile(voxels, LANDMARKS)
    stretched = (np.array(inner) - low) / (high - low)
    landmarks = (standard_landmarks(voxels, nonzero=False) - SCALE[0]) / (SCALE[-1] - SCALE[0])
    np.testing.assert_allclose(landmarks, stretched, atol=1e-12)


def test_each_sequence_of_a_case_has_landmarks_of_its_own() -> None:
    voxels = np.stack([scan(), 1000 - scan(1)])
    standard = np.zeros((2, INNER))
    how = {"normalise": "landmarks", "nonzero": False, "fixed": None}
    volume = network_volume(voxels, (3, 20, 20), standard=standard, **how)
    for number in range(2):
        np.testing.assert_array_equal(standard[number], standard_landmarks(voxels[number], nonzero=False))
        alone = network_volume(voxels[number : number + 1], (3, 20, 20), **how)[0]
        np.testing.assert_array_equal(volume[number], alone)
    assert np.abs(standard[0] - standard[1]).max() > 0.2
