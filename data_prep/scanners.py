"""Simulated scanners for volumes that were all taken by one: the same anatomy with other intensities.

In order: a smooth brightness field of the receive coil multiplies the signal, thicker slices average it along z, and
noise (Rician, as in magnitude images) and a gamma curve follow. Grid and masks do not change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from data_prep.phantom_anatomy import Grid, smooth_noise
from fedshift.data.scans import Scan
from fedshift.runtime.grids import resize_weights

COIL_SCALE = 25.0
"""Millimetres over which the coil's field changes."""
TOP = 1000.0
"""Intensity that the 99th percentile of a volume gets."""


@dataclass(frozen=True, kw_only=True)
class Scanner:
    """What a simulated scanner does to a volume; 1, 0, 0 and 1 change nothing.

    Attributes:
        gamma: exponent of the intensities, relative to the 99th percentile.
        bias: standard deviation of the logarithm of the coil's brightness field.
        noise: standard deviation in each channel, relative to the 99th percentile.
        thickness: of a slice in multiples of the grid's; slices are averaged and interpolated back.
    """

    gamma: float = 1.0
    bias: float = 0.0
    noise: float = 0.0
    thickness: float = 1.0


def scan_again(scan: Scan, scanner: Scanner, rng: np.random.Generator) -> Scan:
    """The volume as a simulated scanner would have taken it, as int16; unchanged if the scanner changes nothing."""
    if scanner == Scanner():
        return scan
    x, y, z = scan.spacing
    signal = scan.voxels.astype(np.float32)
    signal -= signal.min()
    if scanner.bias:
        grid = Grid.centred(shape=(len(signal), signal.shape[1], signal.shape[2]), spacing=(z, y, x))
        signal = signal * np.exp(np.float32(scanner.bias) * smooth_noise(rng, grid, scale=COIL_SCALE))
    if scanner.thickness > 1:
        n = len(signal)
        fewer = max(1, round(n / scanner.thickness))
        mix = (resize_weights(fewer, n) @ resize_weights(n, fewer)).astype(np.float32)
        signal = np.einsum("ij,jyx->iyx", mix, signal)
    signal = signal / max(float(np.percentile(signal, 99)), 1e-6)
    if scanner.noise:
        real, other = np.float32(scanner.noise) * rng.standard_normal((2, *signal.shape), dtype=np.float32)
        signal = np.sqrt((signal + real) ** 2 + other**2)
    image = TOP * signal ** np.float32(scanner.gamma)
    return replace(scan, voxels=np.rint(np.clip(image, 0, np.iinfo(np.int16).max)).astype(np.int16))
