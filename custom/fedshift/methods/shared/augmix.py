"""AugMix of whole batches: a random mixture of chains of simple changes.

Hendrycks et al., "AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty", ICLR 2020::

    AugMix(x) = m x + (1−m) Σ_i w_i chain_i(x),   i = 1…3,   w ~ Dirichlet(1, 1, 1),   m ~ Beta(1, 1)

A chain has one to three changes, each drawn from the same list. They are those of the paper: autocontrast, histogram
equalisation, posterising and solarising, and rotation, shearing and shifting, which are left out where masks have to
stay with the image. Their strength is uniform up to ``severity`` tenths of the largest: 30°, a shear of 0.3, a third of
a side, three bits, the whole range.

Intensities are changed within the range that an image has; 256 levels lie in it. In 3D the image is turned, sheared and
shifted within its slices.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fedshift.methods.shared.features import over_space

CHAINS, LONGEST = 3, 3
LEVELS = 256
BITS = 4
"""Of a posterised image, at the least strength."""
LARGEST_ANGLE, LARGEST_SHEAR, LARGEST_SHIFT = math.radians(30), 0.3, 2 / 3  # torch counts a side as 2

Change = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Images (n, C, *spatial) from 0 to 1, strengths (n,) from 0 to 1, and signs (n,) to changed images."""


def augmix(x: Tensor, rng: torch.Generator, *, severity: float, moves: bool) -> Tensor:
    """Images (B, C, *spatial), augmented; ``moves``: whether they may be turned, sheared and shifted."""
    changes = (*TONES, *MOVES) if moves else TONES
    low, high = (over_space(value[:, None], x) for value in x.flatten(1).aminmax(dim=1))
    span = (high - low).clamp(min=torch.finfo(x.dtype).tiny)
    scaled = (x - low) / span
    size = len(x)
    shares = -torch.rand(size, CHAINS, generator=rng).clamp(min=1e-7).log()  # normalised, Dirichlet(1, 1, 1)
    shares = shares / shares.sum(1, keepdim=True)
    mixed = torch.zeros_like(x)
    for chain in range(CHAINS):
        length = torch.randint(1, LONGEST + 1, (size,), generator=rng)
        changed = scaled
        for place in range(LONGEST):
            kind = torch.randint(len(changes), (size,), generator=rng)
            drawn = torch.rand(2, size, generator=rng)
            strength, sign = drawn[0] * severity / 10, 1 - 2 * (drawn[1] < 0.5).float()
            changed = _changed(changed, changes, torch.where(place < length, kind, -1), strength, sign)
        mixed += over_space(shares[:, chain, None].to(x), x) * changed
    kept = over_space(torch.rand(size, 1, generator=rng).to(x), x)
    return low + span * mixed.lerp(scaled, kept)


def _changed(x: Tensor, changes: tuple[Change, ...], kind: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Each image changed by the change of its number; one with -1 stays."""
    x = x.clone()
    for number, change in enumerate(changes):
        rows = torch.nonzero(kind == number)[:, 0]
        if len(rows):
            index = rows.to(x.device)
            x[index] = change(x[index], strength[rows].to(x), sign[rows].to(x))
    return x


# --- tones --------------------------------------------------------------------------------------------


def autocontrast(x: Tensor, _strength: Tensor, _sign: Tensor) -> Tensor:
    """Every channel stretched to the whole range."""
    low, high = (over_space(value, x) for value in x.flatten(2).aminmax(dim=2))
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1 / LEVELS), x)


def equalised(x: Tensor, _strength: Tensor, _sign: Tensor) -> Tensor:
    """Every channel with as many pixels at each level as its histogram allows."""
    rows = (x * (LEVELS - 1)).round().long().flatten(2).flatten(0, 1)
    offsets = LEVELS * torch.arange(len(rows), device=x.device)[:, None]
    counts = torch.bincount((rows + offsets).flatten(), minlength=LEVELS * len(rows)).view(-1, LEVELS)
    below = counts.cumsum(1)
    first = below.gather(1, rows.amin(1, keepdim=True))
    table = (below - first).clamp(min=0).to(x) / (rows.shape[1] - first).clamp(min=1)
    equal = table.gather(1, rows).view_as(x)
    return torch.where(over_space((first == rows.shape[1]).view(x.shape[:2]), x), x, equal)


def posterised(x: Tensor, strength: Tensor, _sign: Tensor) -> Tensor:
    """Of 8 bits the first four, or fewer."""
    steps = 2 ** over_space((BITS - (strength * BITS).floor())[:, None], x)
    return (x * steps).floor().clamp(max=steps - 1) / (steps - 1)


def solarised(x: Tensor, strength: Tensor, _sign: Tensor) -> Tensor:
    """The brightest inverted."""
    return torch.where(x >= over_space((1 - strength)[:, None], x), 1 - x, x)


TONES: tuple[Change, ...] = (autocontrast, equalised, posterised, solarised)


# --- moves --------------------------------------------------------------------------------------------


def turned(x: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Rotated around the centre."""
    angle = LARGEST_ANGLE * strength * sign
    rows, columns = x.shape[-2:]
    cos, sin = angle.cos(), angle.sin()
    return _moved(x, [[cos, -sin * rows / columns], [sin * columns / rows, cos]])


def sheared(axis: int) -> Change:
    """Rows shifted by their number (0), or columns (1)."""

    def change(x: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
        amount, ones, zeros = LARGEST_SHEAR * strength * sign, torch.ones_like(sign), torch.zeros_like(sign)
        rows, columns = x.shape[-2:]
        if axis == 0:
            return _moved(x, [[ones, amount * rows / columns], [zeros, ones]])
        return _moved(x, [[ones, zeros], [amount * columns / rows, ones]])

    return change


def shifted(axis: int) -> Change:
    """Moved along the columns (0) or the rows (1)."""

    def change(x: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
        amount, ones, zeros = LARGEST_SHIFT * strength * sign, torch.ones_like(sign), torch.zeros_like(sign)
        return _moved(x, [[ones, zeros], [zeros, ones]], shift=[amount, zeros] if axis == 0 else [zeros, amount])

    return change


MOVES: tuple[Change, ...] = (turned, sheared(0), sheared(1), shifted(0), shifted(1))


def _moved(x: Tensor, matrix: list[list[Tensor]], *, shift: list[Tensor] | None = None) -> Tensor:
    """Images sampled linearly where ``matrix`` (of rows of numbers (n,)) says, with 0 beyond; planes of volumes alike.

    Places are in halves of a side, columns first, as `torch.nn.functional.affine_grid` has them.
    """
    way = shift or [torch.zeros_like(matrix[0][0])] * 2
    theta = torch.stack([torch.stack([*row, by], 1) for row, by in zip(matrix, way, strict=True)], 1)
    planes = x.flatten(1, -3) if x.dim() > 4 else x
    grid = functional.affine_grid(theta, [len(x), 1, *x.shape[-2:]], align_corners=False)
    return functional.grid_sample(planes, grid, align_corners=False).view_as(x)
