"""N4: take out the slow change of brightness that a coil leaves in a magnetic resonance image.

Tustison et al., "N4ITK: Improved N3 Bias Correction", IEEE TMI 2010, as SimpleITK has it with its defaults: four
resolutions of 50 steps at most, on voxels that are taken out as there (every fourth along an axis, fewer where it is
short). The field is then divided out at the scan's own resolution.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

BiasField = Literal["none", "n4"]
SHRINK = 4
"""Along an axis, of which at least as many voxels stay."""
MOST_BELOW = 0.01
"""Largest part of the voxels with intensities below 0: interpolation leaves a few."""


def corrected(voxels: np.ndarray, *, nonzero: bool) -> np.ndarray:
    """One sequence of one volume (z, y, x), float32, without its bias field; as it is if it has one intensity or row.

    The field is found where there is signal: above the volume's mean, or with ``nonzero`` where it is not 0. The same
    scan gives the same bits, whatever the number of threads.

    Raises:
        ValueError: many intensities below 0: a field is a factor of a magnitude, which CT has not.
    """
    import SimpleITK as sitk  # noqa: N813 - its customary name; most tasks do without

    values = voxels.astype(np.float32)
    below = np.count_nonzero(values < 0) / max(values.size, 1)
    if below > MOST_BELOW:
        raise ValueError(
            f"has intensities below 0 in {below:.0%} of its voxels, and data.bias_field=n4 is for magnetic resonance "
            "images, which have none: give them as they were taken, or set data.bias_field=none"
        )
    signal = values > (0 if nonzero else values.mean())
    shape = [side for side in values.shape if side > 1]  # a single slice is an image in 2D
    if not signal.any() or len(shape) < 2:
        return values
    image, mask = (sitk.GetImageFromArray(v.reshape(shape)) for v in (values, signal.astype(np.uint8)))
    shrink = [max(1, min(SHRINK, side // SHRINK)) for side in reversed(shape)]
    n4 = sitk.N4BiasFieldCorrectionImageFilter()
    threads = sitk.ProcessObject.GetGlobalDefaultNumberOfThreads()
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)  # sums over threads are rounded by their number
    try:
        n4.Execute(sitk.Shrink(image, shrink), sitk.Shrink(mask, shrink))
        field = sitk.GetArrayFromImage(n4.GetLogBiasFieldAsImage(image))
    finally:
        sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(threads)
    return np.asarray(values / np.exp(field.reshape(values.shape)))
