"""A scan through a slice-by-slice network and back, on the scan's own grid.

There and back are the same few steps, undone in reverse: `fedshift.data.arrays` has ``radiological`` (its own inverse)
and, side by side, ``resize_images`` and ``restore``. What is thresholded is the probability on the scan's grid, so that
the edge of a mask does not show the network's pixels.

A bundle carries the source of this module's functions (`fedshift.inference.bundle`): they use torch, numpy and what is
imported here, no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedshift.data.arrays import CLIP_ABOVE_QUANTILE, radiological, resize_images, restore, to_uint8
from fedshift.tasks.precision import arrange, autocast

if TYPE_CHECKING:
    from fedshift.schema.job import Precision

BATCH = 32
"""Slices at a time, as in evaluation."""


def to_network(voxels: np.ndarray, *, matrix: int, clip_above_quantile: float = CLIP_ABOVE_QUANTILE) -> np.ndarray:
    """Turn RAS voxels ``[z, y, x]`` into the network's slices, uint8 ``[S, matrix, matrix]``."""
    return resize_images(to_uint8(radiological(voxels), clip_above_quantile), matrix)


def to_scan(probability: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Probabilities ``[S, matrix, matrix]`` on the grid ``shape`` that `to_network` came from, as RAS voxels."""
    return radiological(restore(probability, *shape[1:]))


def batches(slices: np.ndarray, *, context: int, scale: float) -> Iterator[Tensor]:
    """What the network gets: slices with their neighbours as channels, (B, context, M, M) float32 in [0, scale].

    The outermost slices repeat themselves.
    """
    reach = context // 2
    window = np.clip(np.arange(len(slices))[:, None] + np.arange(-reach, reach + 1), 0, len(slices) - 1)
    for start in range(0, len(slices), BATCH):
        yield torch.from_numpy(slices[window[start : start + BATCH]]).float().mul_(scale / 255)


def segment(
    voxels: np.ndarray,
    network: Callable[[Tensor], Tensor],
    *,
    matrix: int,
    context: int,
    scale: float,
    precision: Precision,
    device: torch.device,
    clip_above_quantile: float = CLIP_ABOVE_QUANTILE,
) -> np.ndarray:
    """The foreground of a scan.

    Args:
        voxels: RAS, ``[z, y, x]``, intensities as stored.
        network: (B, context, M, M) to logits (B, 2, M, M), in evaluation mode on ``device``.
        matrix: M.
        context: slices that the network sees at a time.
        scale: the largest intensity that it gets.
        precision: that of the job; ``auto`` is settled by the device here.
        device: where it is.
        clip_above_quantile: intensities are clipped above this quantile of the scan.

    Returns:
        bool, of the shape of ``voxels``.
    """
    found = []
    slices = to_network(voxels, matrix=matrix, clip_above_quantile=clip_above_quantile)
    with torch.inference_mode(), autocast(precision, device):
        for x in batches(slices, context=context, scale=scale):
            logits = network(arrange(x, precision, device))
            found.append(logits.float().softmax(1)[:, 1].cpu().numpy())
    mask: np.ndarray = to_scan(np.concatenate(found), voxels.shape) > 0.5
    return mask
