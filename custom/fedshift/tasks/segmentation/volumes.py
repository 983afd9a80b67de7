"""From the voxels of one scan to its classes, with the same steps as in training and evaluation.

`fedshift.inference.bundle_patches` copies the source of these functions into bundles, so they may use only numpy,
torch, MONAI, SciPy and the functions imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedshift.data.arrays import summed, taps
from fedshift.data.voxels import Normalise, network_volume, resized, shape_at
from fedshift.tasks.evaluation.components import largest_components
from fedshift.tasks.segmentation.windows import AT_ONCE, sliding, sliding_by_slices


def as_images(volume: np.ndarray, *, dims: int, context: int, part: slice = slice(None)) -> Tensor:
    """A volume (sequences, z, y, x) as images: (1, C, z, y, x), or in 2D its slices (z, C, y, x); float32.

    In 2D the channels are ``context`` neighbouring slices of each sequence; at the ends the outermost is repeated.
    ``part``: which slices of a volume are wanted.
    """
    if dims == 3:
        return torch.from_numpy(np.asarray(volume[:, part], np.float32))[None]
    depth = volume.shape[1]
    chosen = neighbours(np.arange(depth)[part], context, depth)
    return torch.from_numpy(np.asarray(volume[:, chosen], np.float32)).movedim(1, 0).flatten(1, 2)


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
    axis = 0 if logits.dim() == 4 else 2
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
    choose((resized(one, shape) for one in probability), found, most)
    return largest_components(found) if largest_component else found


def choose(values: Iterable[np.ndarray], found: np.ndarray, most: np.ndarray) -> None:
    """Fill in, for each voxel, the number of the largest of several volumes, and its value; of equal ones the first."""
    most.fill(-np.inf)
    for number, one in enumerate(values):
        larger = one > most
        found[larger], most[larger] = number, one[larger]


def segment(
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
    largest_component: bool,
    certainty: np.ndarray | None = None,
    see: Callable[[np.ndarray], None] = lambda probability: None,
) -> np.ndarray:
    """Classes (z, y, x) uint8 of a scan on its own grid.

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
        largest_component: whether only the largest part of each class is kept.
        certainty: float32 of the scan's shape, filled in with the probability of each voxel's class.
        see: called with the probabilities (K, slices, y, x) on the network's grid, with each slice once.

    Raises:
        ValueError: intensities that the normalisation cannot take.
    """
    scan = voxels.shape[1:]
    shape = shape_at(scan, spacing, wanted, matrix)
    volume = network_volume(voxels, shape, normalise=normalise, nonzero=nonzero, fixed=fixed)
    first, weights = taps(shape[0], scan[0])
    found = np.zeros(scan, np.uint8)
    start = done = 0  # the slice of the network's grid with which `held` begins, and how many of the scan's are ready
    held: np.ndarray | None = None
    with torch.inference_mode():
        for probability in probabilities_of(
            volume, network, dims=dims, patch=patch, context=context, overlap=overlap, mirror=mirror
        ):
            see(probability)
            held = probability if held is None else np.concatenate([held, probability], axis=1)
            end = start + held.shape[1]
            ready = int(np.searchsorted(first, end - weights.shape[1], side="right"))
            part = slice(done, ready)
            here = found[part]
            choose(
                resliced(held, first[part] - start, weights[part], here.shape),
                here,
                np.empty(here.shape, np.float32) if certainty is None else certainty[part],
            )
            following = int(first[ready]) if ready < len(first) else end
            held = held[:, following - start :].copy() if following < end else None
            start, done = following, ready
    return largest_components(found) if largest_component else found


def resliced(volumes: np.ndarray, first: np.ndarray, weights: np.ndarray, shape: Sequence[int]) -> Iterator[np.ndarray]:
    """Some slices of volumes on another grid, made of ``first`` and ``weights`` as of `fedshift.data.arrays.taps`."""
    for one in volumes:
        yield resized(summed(one, 0, first, weights), shape)


def probabilities_of(
    volume: np.ndarray,
    network: Callable[[Tensor], Tensor],
    *,
    dims: int,
    patch: Sequence[int],
    context: int,
    overlap: float,
    mirror: Sequence[int],
) -> Iterator[np.ndarray]:
    """Probabilities of the classes (K, slices, y, x) float32, some slices of a volume after the others.

    Args:
        volume: normalised sequences (S, z, y, x) on the network's grid.
        network: as for `segment`, and all that follows.
        dims: likewise.
        patch: likewise.
        context: likewise.
        overlap: likewise.
        mirror: likewise.
    """
    if dims == 3:
        for logits in sliding_by_slices(
            network, torch.from_numpy(volume)[None], patch=patch, overlap=overlap, mirror=mirror
        ):
            yield as_volume(softmax_in_place(logits[None]).nan_to_num_(0), dims)
        return
    for start in range(0, volume.shape[1], AT_ONCE[2]):
        images = as_images(volume, dims=dims, context=context, part=slice(start, start + AT_ONCE[2]))
        logits = sliding(network, images, patch=patch, overlap=overlap, mirror=mirror)
        yield as_volume(softmax_in_place(logits).nan_to_num_(0), dims)
