"""The presets ``light`` and ``strong``.

``strong`` is the list of nnU-Net (version 2, its default trainer): probabilities, ranges and order are its own, with
MONAI's way of drawing: factors are uniform in their range (nnU-Net draws below and above 1 with equal probability).
``light`` has smaller ranges, and no blur or low resolution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Range = tuple[float, float]


@dataclass(frozen=True)
class Preset:
    """Probabilities for a sample, and ranges.

    Rotation (degrees) and scaling; Gaussian noise (its standard deviation is drawn up to ``noise_std``, in units of the
    normalised intensities); blur (standard deviation in voxels, for each axis); brightness (a factor); contrast (a
    factor around the mean, clipped to the old range); low resolution (a factor for the number of voxels on each axis,
    of flat volumes within their slices only: nearest down, linear up); gamma of inverted and of plain intensities
    (mean and deviation kept); mirroring of each axis.

    ``part``: the probability that blur and low resolution meet a sequence of a chosen sample.
    """

    rotate: float = 0.2
    angle_in_plane: float = 180.0
    angle: float = 30.0
    scale: float = 0.2
    scales: Range = (0.7, 1.4)
    noise: float = 0.1
    noise_std: float = 0.1
    blur: float = 0.2
    sigmas: Range = (0.5, 1.0)
    brightness: float = 0.15
    factors: Range = (0.75, 1.25)
    contrast: float = 0.15
    contrasts: Range = (0.75, 1.25)
    low: float = 0.25
    zooms: Range = (0.5, 1.0)
    inverted: float = 0.1
    gamma: float = 0.3
    gammas: Range = (0.7, 1.5)
    mirror: float = 0.5
    part: float = 0.5


PRESETS: Mapping[str, Preset] = {
    "light": Preset(
        angle_in_plane=15.0,
        angle=15.0,
        scales=(0.9, 1.1),
        noise_std=0.05,
        blur=0.0,
        factors=(0.9, 1.1),
        contrasts=(0.9, 1.1),
        low=0.0,
        inverted=0.0,
        gamma=0.15,
        gammas=(0.8, 1.25),
    ),
    "strong": Preset(),
}
ANISOTROPIC = 3.0
"""With a first side so many times smaller than the largest, a volume is turned and scaled in its planes (nnU-Net)."""
ELONGATED = 1.5
"""With sides in a plane so different, angles in it are at most ``ELONGATED_ANGLE`` (nnU-Net)."""
ELONGATED_ANGLE = 15.0
MARGIN_SCALE = 1 / 0.85
"""The scale that `margin` leaves room for (nnU-Net); beyond it, edge voxels are repeated."""
