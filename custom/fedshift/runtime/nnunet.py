"""Volumes as nnU-Net prepares them, for models that train here and predict there.

Isensee et al., "nnU-Net: a self-configuring method for deep learning-based biomedical image segmentation", Nature
Methods 2021, as nnunetv2 2.8 does it: a volume is cropped to the box around what is not 0, normalised there, and
resampled with cubic splines; where voxels are much longer along one axis, slices are resampled each by itself and taken
from the nearest along that axis. What the network says is resampled back as logits, linearly, and there is background
outside the box. `fedshift.runtime.grids` measures whole volumes, resamples by area and resamples probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import scipy  # loads ndimage when it is used

from .grids import MOST_PLAIN, Normalise

ANISOTROPIC = 3.0
"""So many times longer than the others, the voxels of an axis are not interpolated between."""
LEAST_DEVIATION = 1e-8
"""By which a volume is divided at least."""
CUBIC, LINEAR, NEAREST = 3, 1, 0
LEAST_PROBABILITY = 1e-37
"""Below it a probability has no logarithm in single precision."""
LEAST_DOUBT = np.float32(2.0**-24)
"""By which the largest probability below 1 differs from 1 in single precision."""
WEIGHT = 10.0
"""Of a window's middle, before weights are rounded to half precision."""
AXES = 3
Millimetres = tuple[float, float, float]


@dataclass(frozen=True)
class Placement:
    """Where the network's grid lies in a scan: in a box of it, on voxels of another size.

    ``scan`` and ``shape``: voxels along z, y, x of the scan and of the network's grid. ``box``: first and last voxel
    (exclusive) of each axis. ``spacing`` and ``network``: mm of a voxel of the scan and of the network's grid.
    """

    scan: tuple[int, int, int]
    box: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
    spacing: Millimetres
    network: Millimetres

    @property
    def inside(self) -> tuple[slice, slice, slice]:
        """The box, for indexing (…, z, y, x) of the scan."""
        z, y, x = (slice(*edge) for edge in self.box)
        return z, y, x

    @property
    def cropped(self) -> tuple[int, int, int]:
        """Voxels of the box."""
        z, y, x = (end - first for first, end in self.box)
        return z, y, x

    @property
    def shape(self) -> tuple[int, int, int]:
        """Voxels of the network's grid; of an axis at least one."""
        lengths = zip(self.spacing, self.network, self.cropped, strict=True)
        z, y, x = (max(1, round(have / wanted * size)) for have, wanted, size in lengths)
        return z, y, x

    def on_scan(self, logits: np.ndarray, *, regions: bool) -> Iterator[np.ndarray]:
        """Probabilities (K, z, y, x) float32 on the scan's grid, one class or region after the other.

        ``logits``: (K, z, y, x) float32 on the network's grid.
        """
        probabilities = probable(
            resampled(logits, self.cropped, self.network, self.spacing, order=LINEAR), regions=regions
        )
        for number, plane in enumerate(probabilities):
            outside = 0.0 if regions or number else 1.0
            on_scan = np.full(self.scan, outside, np.float32)
            on_scan[self.inside] = plane
            yield on_scan


def probable(logits: np.ndarray, *, regions: bool) -> np.ndarray:
    """Probabilities of the classes, or of the regions, of logits (K, z, y, x)."""
    if regions:
        return np.asarray(scipy.special.expit(logits))
    softmax = np.exp(logits - logits.max(axis=0))
    softmax /= softmax.sum(axis=0)
    return np.asarray(softmax)


def logits_of(probability: np.ndarray, *, regions: bool) -> np.ndarray:
    """Logits of probabilities (K, z, y, x) float32, as far as these tell them.

    Those of classes differ from what the network said by what all classes have in common, which resampling keeps. Near
    1 single precision has no probabilities: a region's logits end as far above 0 as below.
    """
    if not regions:
        return np.asarray(np.log(np.maximum(probability, LEAST_PROBABILITY)))
    within = np.clip(probability, LEAST_DOUBT, 1 - LEAST_DOUBT)
    return np.asarray(np.log(within) - np.log1p(-within))


def placed(voxels: np.ndarray, spacing: Sequence[float] | None, wanted: Sequence[float | None] | None) -> Placement:
    """Where the network's grid lies in a scan (S, z, y, x).

    Args:
        voxels: the sequences; what is 0 in all of them is cropped, unless everything is.
        spacing: mm along z, y, x; None is taken for 1 x 1 x 1.
        wanted: mm of the network's grid; None, or None for an axis, keeps the scan's.
    """
    z, y, x = spacing or (1.0,) * AXES
    something = (voxels != 0).any(axis=0)
    box = []
    for axis, size in enumerate(something.shape):
        rows = np.flatnonzero(something.any(axis=tuple(other for other in range(AXES) if other != axis)))
        box.append((int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, size))
    first, second, third = box
    depth, height, width = something.shape
    return Placement((depth, height, width), (first, second, third), (z, y, x), network_spacing((z, y, x), wanted))


def network_spacing(spacing: Millimetres, wanted: Sequence[float | None] | None) -> Millimetres:
    """The voxels of the network's grid, in mm, for a scan of ``spacing``; ``wanted`` as of `placed`."""
    z, y, x = (have if asked is None else asked for have, asked in zip(spacing, wanted or (None,) * AXES, strict=True))
    return z, y, x


def network_volume(
    voxels: np.ndarray,
    placement: Placement,
    *,
    normalise: Normalise,
    nonzero: bool,
    fixed: tuple[float, float, float, float] | None,
) -> np.ndarray:
    """Sequences (S, z, y, x) of a case as stored, as the network gets them, (S, *placement.shape) float32.

    ``normalise``: ``volume``, ``fixed`` or ``none`` (`fedshift.runtime.grids.normalised`). ``nonzero``: with
    ``volume``, voxels that are 0 in all sequences, and are not holes, do not count and stay 0.

    Raises:
        ValueError: with ``none``, intensities beyond `MOST_PLAIN`.
    """
    cropped = voxels[(slice(None), *placement.inside)].astype(np.float32)
    counted = scipy.ndimage.binary_fill_holes((cropped != 0).any(axis=0)) if nonzero else None
    for sequence in cropped:  # changed in place
        if fixed is not None:
            low, high, mean, std = fixed
            np.clip(sequence, low, high, out=sequence)
            sequence -= mean
            sequence /= max(std, LEAST_DEVIATION)
        elif normalise == "volume":
            values = sequence if counted is None else sequence[counted]
            if values.size:
                values = (values - values.mean()) / max(float(values.std()), LEAST_DEVIATION)
                sequence[... if counted is None else counted] = np.clip(values, -MOST_PLAIN, MOST_PLAIN)
        elif (most := float(np.abs(sequence).max(initial=0))) > MOST_PLAIN:
            raise ValueError(
                f"has intensities up to {most:g}, and data.normalise=none takes at most {MOST_PLAIN:g}: set "
                "data.normalise to volume or fixed"
            )
    return resampled(cropped, placement.shape, placement.spacing, placement.network, order=CUBIC)


def network_labels(labels: np.ndarray, placement: Placement) -> np.ndarray:
    """Classes (z, y, x) uint8 of a scan on the network's grid: of each voxel the one that has most of it."""
    cropped = labels[placement.inside]
    if cropped.shape == placement.shape:
        return cropped
    classes = np.zeros(placement.shape, np.uint8)
    most = np.zeros(placement.shape, np.float32)
    for number in np.unique(cropped).tolist():
        mask = (cropped == number).astype(np.float32)[None]
        (part,) = resampled(mask, placement.shape, placement.spacing, placement.network, order=LINEAR)
        larger = part > most + 1e-6
        classes[larger], most[larger] = number, part[larger]
    return classes


def certain_labels(labels: np.ndarray, placement: Placement) -> np.ndarray:
    """Classes (z, y, x) int16 on the network's grid where every way to interpolate between voxels gives the same.

    That is where all voxels around have one class; elsewhere -1.
    """
    known = labels[placement.inside].astype(np.int16)
    for axis, (before, after) in enumerate(zip(known.shape, placement.shape, strict=True)):
        if before != after:
            centres = before / after * (np.arange(after) + 0.5) - 0.5
            ends = (np.clip(edge, 0, before - 1).astype(int) for edge in (np.floor(centres), np.ceil(centres)))
            low, high = (known.take(end, axis) for end in ends)
            known = np.where(low == high, low, np.int16(-1))
    return known


def resampled(
    volume: np.ndarray, shape: Sequence[int], before: Sequence[float], after: Sequence[float], *, order: int
) -> np.ndarray:
    """A volume (C, z, y, x) on a grid of ``shape`` with the same extent, float32; with splines of ``order``.

    ``before`` and ``after``: mm of its voxels and of the new ones.
    """
    if volume.shape[1:] == tuple(shape):
        return volume
    axis = _coarse_axis(before, after)
    channels_resampled = np.empty((len(volume), *shape), np.float32)
    for channel, result in zip(volume.astype(np.float64), channels_resampled, strict=True):
        if axis is None:
            result[...] = _interpolated(channel, shape, order)
            continue
        flat = [size for number, size in enumerate(shape) if number != axis]
        slices = [_interpolated(plane, flat, order) for plane in np.moveaxis(channel, axis, 0)]
        result[...] = np.stack([slices[row] for row in _nearest(len(slices), shape[axis])], axis)
    return channels_resampled


def _coarse_axis(before: Sequence[float], after: Sequence[float]) -> int | None:
    """The axis along which nothing is interpolated."""
    for spacing in (before, after):
        if max(spacing) / min(spacing) > ANISOTROPIC:
            coarse = [axis for axis, length in enumerate(spacing) if length == max(spacing)]
            return coarse[0] if len(coarse) == 1 else None
    return None


def _nearest(before: int, after: int) -> list[int]:
    """For each new voxel of an axis the one nearest to its centre."""
    centres = before / after * (np.arange(after) + 0.5) - 0.5
    rows = scipy.ndimage.map_coordinates(np.arange(before), centres[None], order=NEAREST, mode="nearest")
    return [int(row) for row in rows]


def _interpolated(values: np.ndarray, shape: Sequence[int], order: int) -> np.ndarray:
    """On another grid, within the range of the values; the edges are repeated."""
    if values.shape == tuple(shape):
        return values
    factors = [1 / (before / after) for before, after in zip(values.shape, shape, strict=True)]
    zoomed = scipy.ndimage.zoom(values, factors, order=order, mode="nearest", grid_mode=True)
    return np.asarray(np.clip(zoomed, values.min(), values.max()))


# --- windows ----------------------------------------------------------------------------------------------


def starts(length: int, window: int, step: float) -> list[int]:
    """The first voxels of windows along an axis: as far apart as each other, at most ``step`` of a window."""
    free = length - window
    number = ceil(free / (window * step)) + 1
    return [int(np.round(free / (number - 1) * index)) for index in range(number)] if number > 1 else [0]


def step_of(overlap: float) -> float:
    """From one window to the next, as a part of a window; rounded, as ``-step_size`` gives it: 1 - 0.8 is no 0.2."""
    return round(1 - overlap, 6)


def window_weights(window: Sequence[int]) -> np.ndarray:
    """The weights of a window's voxels, float32 of half precision: a bell of 1/8 of the window about its middle."""
    weights = np.ones(())
    for length in window:
        point = np.zeros(length)
        point[length // 2] = 1
        bell = scipy.ndimage.gaussian_filter1d(point, length / 8, mode="constant")
        weights = weights[..., None] * bell
    rounded: np.ndarray = (weights * (WEIGHT / weights.max())).astype(np.float16)
    rounded[rounded == 0] = rounded[rounded > 0].min()
    return np.asarray(rounded, np.float32)
