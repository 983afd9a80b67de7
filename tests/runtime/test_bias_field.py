"""N4 takes a bias field out, the same on every machine, and refuses what has none."""

from __future__ import annotations

import numpy as np
import pytest
import SimpleITK as sitk

from fedshift.runtime.bias_field import corrected


def phantom(slices: int = 8, side: int = 48) -> tuple[np.ndarray, np.ndarray]:
    """A head with a bright ball (z, y, x), and the same under a coil at its right."""
    rng = np.random.default_rng(0)
    z, y, x = np.meshgrid(*(np.linspace(-1, 1, n) for n in (slices, side, side)), indexing="ij")
    image = 100.0 * (x**2 + y**2 < 0.8) + 60 * ((x - 0.2) ** 2 + y**2 + z**2 < 0.15)
    image = np.abs(image + rng.normal(0, 2, image.shape))
    return image, image * np.exp(0.6 * x + 0.2 * y)


@pytest.mark.parametrize("slices", [8, 1])
def test_the_field_is_taken_out(slices: int) -> None:
    true, shaded = phantom(slices)
    inside = true > 50
    left = [
        (values[inside] / true[inside]).std() / (values[inside] / true[inside]).mean()
        for values in (shaded, corrected(shaded, nonzero=False))
    ]
    assert left[1] < left[0] / 4


def test_the_same_scan_gives_the_same_bits_whatever_the_number_of_threads() -> None:
    before = sitk.ProcessObject.GetGlobalDefaultNumberOfThreads()
    results = []
    try:
        for threads in (1, 2):
            sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(threads)
            results.append(corrected(phantom()[1], nonzero=False))
            assert sitk.ProcessObject.GetGlobalDefaultNumberOfThreads() == threads
    finally:
        sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(before)
    np.testing.assert_array_equal(*results)


def test_zeros_stay_zeros_and_one_intensity_stays() -> None:
    shaded = phantom()[1] * (phantom()[0] > 50)
    assert (corrected(shaded, nonzero=True)[shaded == 0] == 0).all()
    for value in (0.0, 3.0):
        np.testing.assert_array_equal(corrected(np.full((2, 8, 8), value), nonzero=False), value)


def test_hounsfield_units_are_refused_and_what_interpolation_leaves_below_0_is_not() -> None:
    shaded = phantom()[1]
    with pytest.raises(ValueError, match=r"below 0 in .*data\.bias_field=none"):
        corrected(shaded - 1000, nonzero=False)
    shaded[0, 0, 0] = -0.5
    assert np.isfinite(corrected(shaded, nonzero=False)).all()
