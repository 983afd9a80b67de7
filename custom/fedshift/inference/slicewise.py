"""Predict a scan slice by slice and return the mask on the scan's own grid.

The way back reverses the preprocessing with functions of `fedshift.data.arrays`: ``radiological`` is its own inverse,
and ``restore`` is the inverse of ``resize_images``. Probabilities are thresholded on the scan's grid, so the mask's
edge does not show the network's coarser pixels.

`fedshift.inference.bundle` copies the source of these functions into bundles, so they may use only torch, numpy and
the functions imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedshift.data.arrays import CLIP_ABOVE_QUANTILE, radiological, resize_images, restore, to_uint8
from fedshift.tasks.precision import autocast

if TYPE_CHECKING:
    from fedshift.schema.job import Precision

BATCH_SIZE = 32
"""Slices per batch, as in evaluation."""


def to_network(voxels: np.ndarray, *, matrix: int, clip_above_quantile: float = CLIP_ABOVE_QUANTILE) -> np.ndarray:
    """Convert RAS voxels ``[z, y, x]`` to the network's slices, uint8 ``[S, matrix, matrix]``."""
    return resize_images(to_uint8(radiological(voxels), clip_above_quantile), matrix)


def to_scan(probability: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Resample probabilities ``[S, matrix, matrix]`` to RAS voxels of ``shape``: the inverse of `to_network`."""
    return radiological(restore(probability, *shape[1:]))


def batches(slices: np.ndarray, *, context: int, scale: float) -> Iterator[Tensor]:
    """Yield network inputs: slices with their neighbours as channels, (B, context, M, M) float32 in [0, scale].

    At the ends of the volume the outermost slice is repeated.
    """
    reach = context // 2
    window = np.clip(np.arange(len(slices))[:, None] + np.arange(-reach, reach + 1), 0, len(slices) - 1)
    for start in range(0, len(slices), BATCH_SIZE):
        yield torch.from_numpy(slices[window[start : start + BATCH_SIZE]]).float().mul_(scale / 255)


def probabilities(
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
    """Predict the probability of the foreground on the network's grid.

    Args:
        voxels: RAS, ``[z, y, x]``, intensities as stored.
        network: (B, context, M, M) to logits (B, 2, M, M), in evaluation mode on ``device``.
        matrix: side M of the network's slices, in pixels.
        context: number of neighbouring slices per input.
        scale: the largest input intensity.
        precision: the job's precision; ``auto`` is resolved for ``device``.
        device: the network's device.
        clip_above_quantile: intensities are clipped above this quantile of the scan.

    Returns:
        float32, ``[S, matrix, matrix]``.
    """
    found = []
    slices = to_network(voxels, matrix=matrix, clip_above_quantile=clip_above_quantile)
    with torch.inference_mode(), autocast(precision, device):
        for x in batches(slices, context=context, scale=scale):
            logits = network(x.to(device))
            found.append(logits.float().softmax(1)[:, 1].cpu().numpy())
    return np.concatenate(found)


def segment(voxels: np.ndarray, network: Callable[[Tensor], Tensor], **options: Any) -> np.ndarray:
    """Predict the foreground mask of a scan: bool, same shape as ``voxels``. Arguments are those of `probabilities`."""
    mask: np.ndarray = to_scan(probabilities(voxels, network, **options), voxels.shape) > 0.5
    return mask
