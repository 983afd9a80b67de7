"""Formulas over all spatial dimensions of (B, C, *spatial), whether these are two or three."""

from __future__ import annotations

from torch import Tensor


def spatial_dims(x: Tensor) -> tuple[int, ...]:
    """Numbers of the spatial dimensions: (2, 3) for images, (2, 3, 4) for volumes."""
    return tuple(range(2, x.dim()))


def over_space(values: Tensor, x: Tensor) -> Tensor:
    """Values per sample and channel, (B, C), or for one of them, in a shape that broadcasts over the space of ``x``."""
    return values.reshape(*values.shape, *[1] * (x.dim() - 2))
