"""Prediction of volumes that are larger than the network's patch: MONAI's sliding window with Gaussian weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor

AT_ONCE = {2: 16, 3: 2}
"""Windows in a pass of the network, by dimensions."""


def sliding(
    forward: Callable[[Tensor], Tensor], x: Tensor, *, patch: Sequence[int], overlap: float, mirror: Sequence[int] = ()
) -> Tensor:
    """Logits (B, K, *spatial) float32 of images (B, C, *spatial) of any size, which are padded with 0 if too small.

    Args:
        forward: images of the patch's size to logits, on any device.
        x: images; what is assembled lies on their device.
        patch: size of a window.
        overlap: of neighbouring windows, as a part of a window.
        mirror: axes of a window, from 0; the mean is taken over all its mirror images along some of them.
    """
    from monai.inferers.utils import sliding_window_inference  # takes seconds to import

    flips = mirrors(mirror)

    def one(window: Tensor) -> Tensor:
        total: Tensor | None = None
        for dims in flips:
            found = forward(window.flip(dims) if dims else window)
            found = found.flip(dims).float() if dims else found.float()
            total = found if total is None else total + found
        assert total is not None
        return (total / len(flips)).to(window.device)

    logits = sliding_window_inference(
        x, tuple(patch), AT_ONCE[len(patch)], one, overlap=overlap, mode="gaussian", padding_mode="constant"
    )
    assert isinstance(logits, torch.Tensor)
    return logits


def mirrors(axes: Sequence[int]) -> list[tuple[int, ...]]:
    """Every set of dimensions of (B, C, *spatial) to flip, of spatial axes from 0; the empty one first."""
    dims = [2 + axis for axis in axes]
    return [chosen for number in range(len(dims) + 1) for chosen in combinations(dims, number)]
