"""Prediction of volumes that are larger than the network's patch, by a sliding window with Gaussian weights.

The numbers are those of MONAI's ``sliding_window_inference``, bit for bit, without MONAI, whose import takes seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, product
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

AT_ONCE = {2: 16, 3: 2}
"""Windows in a pass of the network, by dimensions."""
TOGETHER = 2**21
"""Pixels or voxels in a pass that windows of several volumes share: a few small windows leave a GPU idle."""
DEVIATION, LEAST = 0.125, 1e-3
"""Of the Gaussian weights: its standard deviation, as a part of the window, and the smallest weight, at its corners."""
Forward = Callable[[Tensor], Tensor]
Window = tuple[slice, ...]
ALL = slice(None)


def sliding(
    forward: Forward,
    x: Tensor,
    *,
    patch: Sequence[int],
    overlap: float,
    mirror: Sequence[int] = (),
    nnunet: bool = False,
) -> Tensor:
    """Logits (B, K, *spatial) float32 of images (B, C, *spatial) of any size, which are padded with 0 if too small.

    Args:
        forward: images of the patch's size to logits, on any device.
        x: images; what is assembled lies on their device.
        patch: size of a window.
        overlap: of neighbouring windows, as a part of a window.
        mirror: axes of a window, from 0; the mean is taken over all its mirror images along some of them.
        nnunet: whether windows lie, and their voxels weigh, as in nnU-Net: evenly apart, their middle half a voxel on.
    """
    options: dict[str, Any] = {"patch": patch, "overlap": overlap, "mirror": mirror, "nnunet": nnunet}
    return next(sliding_in_turn(forward, [x], together=False, **options))


def sliding_in_turn(
    forward: Forward,
    volumes: Iterable[Tensor],
    *,
    patch: Sequence[int],
    overlap: float,
    mirror: Sequence[int] = (),
    nnunet: bool = False,
    together: bool | None = None,
) -> Iterator[Tensor]:
    """The same of several volumes, one after the other.

    ``together``: whether windows of several volumes share passes of the network. None: not on a processor, where the
    last bits of a convolution depend on how many images it is of.
    """
    waiting: deque[_Assembly] = deque()
    batch: list[tuple[_Assembly, Window]] = []

    def predict() -> None:
        logits = mirrored(forward, torch.cat([volume.images[window] for volume, window in batch]).float(), mirror)
        for (volume, window), part in zip(batch, logits.split_with_sizes([1] * len(batch)), strict=True):
            volume.add(window, part)
        batch.clear()

    for x in volumes:
        shares = x.device.type != "cpu" if together is None else together
        if batch and batch[0][0].images.device != x.device:
            predict()
        volume = _Assembly(x, patch, overlap, nnunet=nnunet)
        waiting.append(volume)
        for window in volume.windows:
            batch.append((volume, window))
            if len(batch) >= max(AT_ONCE[len(patch)], TOGETHER // prod(patch) if shares else 0):
                predict()
        if batch and not shares:
            predict()
        while waiting and waiting[0].missing == 0:
            yield waiting.popleft().mean()
    if batch:
        predict()
    yield from (volume.mean() for volume in waiting)


class _Assembly:
    """Images (B, C, *spatial) of one volume, and the sums of the weighted logits of their windows."""

    def __init__(self, x: Tensor, patch: Sequence[int], overlap: float, *, nnunet: bool) -> None:
        self.images, self._inside = _padded(x, patch)
        self._places = _places(self.images.shape[2:], patch, overlap, nnunet=nnunet)
        self.windows: list[Window] = [
            (slice(image, image + 1), ALL, *place) for image in range(len(x)) for place in self._places
        ]
        self.missing = len(self.windows)
        self._weight = _nnunet_weights(patch, x.device) if nnunet else _gaussian(patch, x.device)
        self._total = torch.zeros(0)

    def add(self, window: Window, logits: Tensor) -> None:
        """Add logits (1, K, *patch) of one of the windows, in the order of `windows`."""
        if not len(self._total):
            size = len(self.images), logits.shape[1], *self.images.shape[2:]
            self._total = torch.zeros(size, device=self.images.device)
        self._total[window] += logits * self._weight
        self.missing -= 1

    def mean(self) -> Tensor:
        """Logits (B, K, *spatial), once none of the windows is missing."""
        count = torch.zeros(self.images.shape[2:], device=self.images.device)
        for place in self._places:
            count[place] += self._weight
        self._total /= count
        return self._total[(ALL, ALL, *self._inside)]


def sliding_by_slices(
    forward: Forward, x: Tensor, *, patch: Sequence[int], overlap: float, mirror: Sequence[int] = ()
) -> Iterator[Tensor]:
    """The numbers of `sliding` for one volume (1, C, z, y, x) of any type, some slices (K, n, y, x) after the others.

    Slices are given as soon as no other window covers them, so that what is held grows with the patch and with the size
    of a slice, and not with their number. `sliding` holds the whole volume.
    """
    x, (slices, *plane) = _padded(x, patch)
    depth, rows, columns = x.shape[2:]
    windows, weight = _places((depth, rows, columns), patch, overlap), _gaussian(patch, x.device)
    held = min(patch[0] + (AT_ONCE[3] - 1) * _step(patch[0], overlap), depth)
    total, count = torch.zeros(0), torch.zeros(1, held, rows, columns, device=x.device)
    low = 0  # the slice with which `total` and `count` begin
    for index in range(0, len(windows), AT_ONCE[3]):
        batch = windows[index : index + AT_ONCE[3]]
        logits = mirrored(forward, torch.cat([x[(ALL, ALL, *window)] for window in batch]).float(), mirror)
        if not len(total):
            total = torch.zeros(logits.shape[1], held, rows, columns, device=x.device)
        for (z, *place), window_logits in zip(batch, logits, strict=True):
            window = (ALL, slice(z.start - low, z.stop - low), *place)
            total[window] += window_logits * weight
            count[window] += weight
        following = windows[index + len(batch)][0].start if index + len(batch) < len(windows) else depth
        finished = following - low
        if finished == 0:
            continue
        inside = (ALL, slice(max(slices.start - low, 0), min(slices.stop - low, finished)), *plane)
        yield total[inside] / count[inside]
        for plane_of_one in (*total, *count):  # one class after the other: a copy of all is as large as `total`
            plane_of_one[: held - finished] = plane_of_one[finished:].clone()
            plane_of_one[held - finished :] = 0
        low = following


def _padded(x: Tensor, patch: Sequence[int]) -> tuple[Tensor, Window]:
    """Images (B, C, *spatial) with as much 0 around them as a window needs, and where in that they are."""
    size = x.shape[2:]
    missing = [max(wanted - have, 0) for wanted, have in zip(patch, size, strict=True)]
    if any(missing):  # the last axis comes first
        x = pad(x, [edge for count in reversed(missing) for edge in (count // 2, count - count // 2)])
    return x, tuple(slice(count // 2, count // 2 + have) for count, have in zip(missing, size, strict=True))


def _places(size: Sequence[int], patch: Sequence[int], overlap: float, *, nnunet: bool = False) -> list[Window]:
    """The windows that cover images of a size that is at least the patch's; the last of an axis ends with it."""
    starts = []
    for length, have in zip(patch, size, strict=True):
        if nnunet:
            from .nnunet import starts as evenly  # needs SciPy
            from .nnunet import step_of

            starts.append(evenly(have, length, step_of(overlap)))
            continue
        last = have - length
        starts.append([*range(0, last, _step(length, overlap)), last])
    return [
        tuple(slice(start, start + length) for start, length in zip(at, patch, strict=True)) for at in product(*starts)
    ]


def _step(length: int, overlap: float) -> int:
    """From one window to the next."""
    return max(int(length * (1 - overlap)), 1)


def _gaussian(patch: Sequence[int], device: torch.device) -> Tensor:
    """The weights of a window's voxels, float32."""
    weight = torch.ones(())
    for length in patch:
        place = torch.arange(-(length - 1) / 2, (length - 1) / 2 + 1)
        weight = weight[..., None] * torch.exp(place**2 / (-2 * (DEVIATION * length) ** 2))
    return weight.clamp_(min=max(float(weight.min()), LEAST)).to(device)


def _nnunet_weights(patch: Sequence[int], device: torch.device) -> Tensor:
    from .nnunet import window_weights  # needs SciPy

    return torch.from_numpy(window_weights(patch)).to(device)


def mirrored(forward: Forward, window: Tensor, mirror: Sequence[int]) -> Tensor:
    """The mean of the logits of windows and of their mirror images, float32 on the windows' device."""
    flips = mirrors(mirror)
    total: Tensor | None = None
    for dims in flips:
        logits = forward(window.flip(dims) if dims else window)
        logits = logits.flip(dims).float() if dims else logits.float()
        total = logits if total is None else total + logits
    assert total is not None
    return (total / len(flips)).to(window.device)


def mirrors(axes: Sequence[int]) -> list[tuple[int, ...]]:
    """Every set of dimensions of (B, C, *spatial) to flip, of spatial axes from 0; the empty one first."""
    dims = [2 + axis for axis in axes]
    return [chosen for number in range(len(dims) + 1) for chosen in combinations(dims, number)]
