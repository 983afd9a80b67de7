"""What coils, k-space and receivers of MR scanners leave in an image, for rows as in `intensity`."""

from __future__ import annotations

import torch
from torch import Tensor

from fedshift.tasks.augmentation.intensity import blur, column
from fedshift.tasks.augmentation.tissue import frequencies, in_frequencies, kept

DEGREE = 3
SECOND_BLUR = 0.5
"""Standard deviation of the second blur of `sharpened`, in voxels (``RandGaussianSharpen``)."""
FEWEST, MOST = 2, 6
"""Every so-many-th line is damped: as many ghosts."""


def lit(rows: Tensor, field: Tensor) -> Tensor:
    """Rows above their lowest intensity times a field (n, *spatial); mean and deviation stay.

    The lowest stands for no signal, which a field does not change.
    """
    low = column(rows.flatten(1).amin(1), rows)
    return kept((rows - low).mul_(field[:, None].to(rows)).add_(low), rows)


def biased(rows: Tensor, normals: Tensor, deviations: Tensor) -> Tensor:
    """The smooth field of a coil: the exponential of a polynomial in the place, as MONAI's ``RandBiasField``.

    Args:
        rows: (n, c, *spatial).
        normals: (n, (`DEGREE` + 1) ** D), of which those of a degree up to `DEGREE` in all count.
        deviations: (n,) of the coefficients; with 0 nothing changes.
    """
    dims = rows.dim() - 2
    coefficients = normals.reshape(-1, *[DEGREE + 1] * dims)
    degrees = torch.stack(torch.meshgrid(*[torch.arange(DEGREE + 1)] * dims, indexing="ij")).sum(0)
    field = (coefficients * (degrees <= DEGREE) * column(deviations, coefficients)).to(rows)
    for axis, side in enumerate(rows.shape[2:], start=1):
        powers = torch.linspace(-1, 1, side)[:, None] ** torch.arange(DEGREE + 1)
        field = torch.tensordot(field, powers.to(rows), dims=([axis], [1])).movedim(-1, axis)
    return lit(rows, field.exp())


def near_a_coil(rows: Tensor, gains: Tensor, places: Tensor, widths: Tensor) -> Tensor:
    """Brighter around a place, as near a surface or endorectal coil: 1 + gain / (1 + (distance / width)²).

    Args:
        rows: (n, c, *spatial).
        gains: (n,).
        places: (n, D) from 0 to 1 along each axis.
        widths: (n,) as a part of the longest side.
    """
    sides = rows.shape[2:]
    distance = torch.zeros((len(rows), *sides), device=rows.device)
    for axis, side in enumerate(sides):
        offset = (torch.arange(side) - places[:, axis, None] * (side - 1)) / (widths[:, None] * max(sides))
        shape = [len(rows), *(side if other == axis else 1 for other in range(len(sides)))]
        distance += offset.square().reshape(shape).to(rows)
    return lit(rows, 1 + column(gains, distance) / (1 + distance))


def sharpened(rows: Tensor, amounts: Tensor, sigmas: Tensor) -> Tensor:
    """A blurred image (deviation ``sigmas`` in voxels) and ``amounts`` times what a second blur takes away from it."""
    dims = rows.dim() - 2
    once = blur(rows, sigmas[:, None].expand(-1, dims))
    twice = blur(once, torch.full((len(rows), dims), SECOND_BLUR))
    return once.addcmul(once - twice, column(amounts, rows))


def ringing(rows: Tensor, parts: Tensor, *, flat: bool = False) -> Tensor:
    """High frequencies left out along each axis, as where fewer lines were read: ``parts`` (n,) of them stay."""
    axes = _axes(rows, flat)
    stays = torch.ones(len(rows), *[1] * len(axes))
    for place, axis in enumerate(axes):
        waves = frequencies(rows.shape[axis], half=axis == axes[-1]).abs()
        inside = waves <= parts[:, None] * (rows.shape[axis] / 2)
        stays = stays * inside.reshape(len(rows), *[-1 if other == place else 1 for other in range(len(axes))])
    return in_frequencies(rows, stays, axes)


def ghosted(rows: Tensor, damped: Tensor, lines: Tensor, along: Tensor, *, flat: bool = False) -> Tensor:
    """Copies along an axis, as of something that moves: every so-many-th line of k-space but the middle is damped.

    Args:
        rows: (n, c, *spatial).
        damped: (n,), by how much, from 0 to 1.
        lines: (n,) from 0 to 1, how many lines lie between two damped ones.
        along: (n,) from 0 to 1, which axis.
        flat: within the slices only.
    """
    axes = _axes(rows, flat)
    every = (FEWEST + (lines * (MOST - FEWEST + 1)).floor())[:, None]
    factors = torch.ones(len(rows), *[1] * len(axes))
    for place, axis in enumerate(axes):
        waves = frequencies(rows.shape[axis], half=axis == axes[-1])
        chosen = (along * len(axes)).floor()[:, None] == place
        line = 1 - damped[:, None] * (chosen & (waves.remainder(every) == 0) & (waves != 0))
        factors = factors * line.reshape(len(rows), *[-1 if other == place else 1 for other in range(len(axes))])
    return in_frequencies(rows, factors, axes)


def noisy(rows: Tensor, normals: Tensor, deviations: Tensor, *, rician: bool) -> Tensor:
    """Gaussian noise, or Rician: the magnitude of a complex signal with such noise in both parts.

    ``normals``: (n, voxels of a row), and twice as many if Rician.
    """
    noise = normals.view(len(rows), -1, *rows.shape[1:])
    noise = noise * column(deviations, noise)
    if not rician:
        return rows + noise[:, 0]
    low = column(rows.flatten(1).amin(1), rows)
    return (rows - low + noise[:, 0]).hypot_(noise[:, 1]).add_(low)


def _axes(rows: Tensor, flat: bool) -> tuple[int, ...]:
    return tuple(range(3 if flat else 2, rows.dim()))
