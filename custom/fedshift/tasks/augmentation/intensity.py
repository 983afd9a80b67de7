"""Changes of intensity, for the rows (n, c, *spatial) of a batch that were chosen: one row a sequence of a sample.

Each takes a number for each row. The formulas are those of MONAI's transforms, named with each.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

REACH = 4
"""Voxels to each side that a blur reads: four times the largest standard deviation, 1."""
EPSILON = 1e-7


def column(values: Tensor, rows: Tensor) -> Tensor:
    """(n,) as (n, 1, …), on the device of the rows."""
    return values.to(rows).reshape(-1, *[1] * (rows.dim() - 1))


def blur(rows: Tensor, sigmas: Tensor) -> Tensor:
    """Gaussian blur with a deviation (n, D) for each axis; edge voxels repeated (``RandGaussianSmooth``: 0 beyond)."""
    offsets = torch.arange(-REACH, REACH + 1, dtype=torch.float32)
    width = sigmas[..., None] * math.sqrt(2)
    kernel = ((offsets + 0.5) / width).erf() - ((offsets - 0.5) / width).erf()
    kernel = kernel / kernel.sum(-1, keepdim=True)
    for axis in range(2, rows.dim()):
        side = rows.shape[axis]
        index = torch.arange(-REACH, side + REACH, device=rows.device).clamp_(0, side - 1)
        padded = rows.index_select(axis, index)
        rows = padded.narrow(axis, REACH, side) * column(kernel[:, axis - 2, REACH], rows)
        for step in range(1, REACH + 1):
            both = padded.narrow(axis, REACH - step, side) + padded.narrow(axis, REACH + step, side)
            rows.addcmul_(both, column(kernel[:, axis - 2, REACH + step], rows))
    return rows


def contrast(rows: Tensor, factors: Tensor) -> Tensor:
    """Differences from the mean times a factor, within the old range (``RandScaleIntensityFixedMean``)."""
    flat = rows.flatten(1)
    low, high, mean = (column(value, rows) for value in (*flat.aminmax(dim=1), flat.mean(1)))
    return mean.lerp(rows, column(factors, rows)).clamp_(low, high)


def gamma(rows: Tensor, gammas: Tensor, *, inverted: bool) -> Tensor:
    """A power of the intensities within their range; mean and deviation stay (``RandAdjustContrast``)."""
    rows = -rows if inverted else rows.clone()
    flat = rows.flatten(1)
    deviation, mean = torch.std_mean(flat, 1)
    low, high = flat.aminmax(dim=1)
    span = column(high - low, rows)
    rows.sub_(column(low, rows)).div_(span + EPSILON).clamp_(min=0).pow_(column(gammas, rows))
    new_deviation, middle = torch.std_mean(rows.flatten(1), 1)
    factor = deviation / (new_deviation + EPSILON)
    rows.mul_(column(factor, rows)).add_(column(mean - middle * factor, rows))
    return rows.neg_() if inverted else rows


def low_resolution(rows: Tensor, zooms: Tensor, *, flat: bool = False) -> Tensor:
    """Fewer voxels, by the one nearest to each centre, then as many as before, linearly.

    ``RandSimulateLowResolution`` with ``downsample_mode: nearest-exact``: with MONAI's default the image would move by
    up to a voxel, and its mask would not. ``flat``: within the slices only.
    """
    for axis in range(3 if flat else 2, rows.dim()):
        mixed = rows.movedim(axis, -1).flatten(1, -2) @ _fewer_and_back(rows.shape[axis], zooms).to(rows)
        rows = mixed.view(rows.movedim(axis, -1).shape).movedim(-1, axis)
    return rows


def _fewer_and_back(side: int, zooms: Tensor) -> Tensor:
    """Matrices (n, side, side) from an axis' old voxels to its new ones, which are mixed from one or two of them."""
    fewer = (side * zooms.double()).round().long().clamp_(min=1)[:, None]
    # Where each new voxel lies among the fewer ones, and which old voxels those are.
    places = ((torch.arange(side) + 0.5) * fewer / side - 0.5).clamp_(min=0)
    before = places.long()
    after = torch.minimum(before + 1, fewer - 1)
    first, second = ((2 * index + 1) * side // (2 * fewer) for index in (before, after))
    weight, old = (places - before).float()[:, None], torch.arange(side)[:, None]
    return (old == first[:, None]) * (1 - weight) + (old == second[:, None]) * weight
