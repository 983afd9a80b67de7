"""From the voxels of one scan to its classes, with the same steps as in training and evaluation.

`fedshift.inference.patch_bundle` copies the source of these functions into bundles, so they may use only numpy, torch,
MONAI, SciPy and the functions imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift.data.voxels import Normalise, network_volume, resized, shape_at
from fedshift.tasks.evaluation.components import largest_components
from fedshift.tasks.segmentation.windows import sliding


def as_images(volume: np.ndarray, *, dims: int, context: int) -> Tensor:
    """A volume (sequences, z, y, x) as images: (1, C, z, y, x), or in 2D its slices (z, C, y, x); float32.

    In 2D the channels are ``context`` neighbouring slices of each sequence; at the ends the outermost is repeated.
    """
    x = torch.from_numpy(np.asarray(volume, np.float32))
    if dims == 3:
        return x[None]
    return x[:, neighbours(np.arange(x.shape[1]), context, x.shape[1])].movedim(1, 0).flatten(1, 2)


def neighbours(slices: np.ndarray, context: int, depth: int) -> np.ndarray:
    """Numbers of slices and of those around each, (n, context); at the ends the outermost is repeated."""
    reach = context // 2
    around: np.ndarray = np.clip(slices[:, None] + np.arange(-reach, reach + 1), 0, depth - 1)
    return around


def as_volume(batch: Tensor, dims: int) -> np.ndarray:
    """Probabilities of a case, (1, K, z, y, x) or slice after slice, as (K, z, y, x) float32."""
    return (batch[0] if dims == 3 else batch.movedim(1, 0)).contiguous().numpy()


def softmax_in_place(logits: Tensor) -> Tensor:
    """Probabilities of the classes (B, K, *spatial), in the memory of the logits: for many classes that is the most."""
    axis = 0 if len(logits) > 1 else 2
    for number in range(logits.shape[axis]):
        plane = logits.narrow(axis, number, 1)
        plane.copy_(plane.softmax(1))
    return logits


def classes_of(
    probability: np.ndarray, shape: Sequence[int], *, largest_component: bool, certainty: np.ndarray | None = None
) -> np.ndarray:
    """Classes (z, y, x) uint8 on a grid of ``shape``, from probabilities (K, z, y, x) on another of the same extent.

    ``certainty`` (float32, of that shape) is filled in with the probability of each voxel's class.
    """
    found = np.zeros(tuple(shape), np.uint8)
    most = np.empty(tuple(shape), np.float32) if certainty is None else certainty
    most.fill(-np.inf)
    for number, one in enumerate(probability):
        values = resized(one, shape)
        larger = values > most
        found[larger], most[larger] = number, values[larger]
    return largest_components(found) if largest_component else found


def segment(
    voxels: np.ndarray,
    spacing: Sequence[float] | None,
    network: Callable[[Tensor], Tensor],
    *,
    largest_component: bool,
    **options: Any,
) -> np.ndarray:
    """Classes (z, y, x) uint8 of a scan on its own grid.

    Args:
        voxels: as for `probabilities_of`, with all that is not named here.
        spacing: likewise.
        network: likewise.
        largest_component: whether only the largest part of each class is kept.
        options: likewise.
    """
    probability = probabilities_of(voxels, spacing, network, **options)
    return classes_of(probability, voxels.shape[1:], largest_component=largest_component)


def probabilities_of(
    voxels: np.ndarray,
    spacing: Sequence[float] | None,
    network: Callable[[Tensor], Tensor],
    *,
    dims: int,
    patch: Sequence[int],
    wanted: Sequence[float | None] | None,
    matrix: int | None,
    context: int,
    normalise: Normalise,
    nonzero: bool,
    fixed: tuple[float, float, float, float] | None,
    overlap: float,
    mirror: Sequence[int],
) -> np.ndarray:
    """Probabilities of the classes (K, z, y, x) float32 of a scan on the network's grid.

    Args:
        voxels: sequences (S, z, y, x) in RAS orientation, as stored.
        spacing: mm along z, y, x; None if it is not known.
        network: images of the patch's size to logits, on any device.
        dims: 2 or 3.
        patch: size of the images.
        wanted: spacing to which volumes are resampled.
        matrix: voxels along the longer side of a slice, see `fedshift.data.voxels.shape_at`.
        context: neighbouring slices as channels, in 2D.
        normalise: see `fedshift.data.voxels.normalised`, as the next two.
        nonzero: whether zeros are left out.
        fixed: numbers of ``normalise: fixed``.
        overlap: of windows.
        mirror: axes of a window whose mirror images are averaged.

    Raises:
        ValueError: intensities that the normalisation cannot take.
    """
    shape = shape_at(voxels.shape[1:], spacing, wanted, matrix)
    with torch.inference_mode():
        # Nothing of a volume's size is named but what is needed later: the rest is freed as soon as it has been used.
        logits = sliding(
            network,
            as_images(
                network_volume(voxels, shape, normalise=normalise, nonzero=nonzero, fixed=fixed),
                dims=dims,
                context=context,
            ),
            patch=patch,
            overlap=overlap,
            mirror=mirror,
        )
        return as_volume(softmax_in_place(logits.float()).nan_to_num_(0).cpu(), dims)
