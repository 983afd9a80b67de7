"""Prediction of volumes that are larger than the network's patch: MONAI's sliding window with Gaussian weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import torch
from torch import Tensor
from torch.nn.functional import pad

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

    logits = sliding_window_inference(
        x,
        tuple(patch),
        AT_ONCE[len(patch)],
        lambda window: mirrored(forward, window, mirror),
        overlap=overlap,
        mode="gaussian",
        padding_mode="constant",
    )
    assert isinstance(logits, torch.Tensor)
    return logits


def sliding_by_slices(
    forward: Callable[[Tensor], Tensor], x: Tensor, *, patch: Sequence[int], overlap: float, mirror: Sequence[int] = ()
) -> Iterator[Tensor]:
    """The numbers of `sliding` for one volume (1, C, z, y, x) of any type, some slices (K, n, y, x) after the others.

    Slices are given as soon as no other window covers them, so that what is held grows with the patch and with the size
    of a slice, and not with their number. MONAI's function holds the whole volume.
    """
    from monai.data.utils import compute_importance_map, dense_patch_slices  # takes seconds to import

    size = x.shape[2:]
    missing = [max(wanted - have, 0) for wanted, have in zip(patch, size, strict=True)]
    before = [count // 2 for count in missing]
    if any(missing):
        x = pad(x, [edge for axis in (2, 1, 0) for edge in (before[axis], missing[axis] - before[axis])])
    depth, rows, columns = x.shape[2:]
    steps = [
        wanted if wanted == have else max(int(wanted * (1 - overlap)), 1)
        for wanted, have in zip(patch, (depth, rows, columns), strict=True)
    ]
    windows = dense_patch_slices((depth, rows, columns), tuple(patch), steps)
    weight = compute_importance_map(tuple(patch), mode="gaussian", device=x.device)
    held = min(patch[0] + (AT_ONCE[3] - 1) * steps[0], depth)
    total, count = torch.zeros(0), torch.zeros(1, held, rows, columns, device=x.device)
    low = 0  # the slice with which `total` and `count` begin
    for index in range(0, len(windows), AT_ONCE[3]):
        batch = windows[index : index + AT_ONCE[3]]
        logits = mirrored(forward, torch.cat([x[(..., *window)] for window in batch]).float(), mirror)
        if not len(total):
            total = torch.zeros(logits.shape[1], held, rows, columns, device=x.device)
        for (z, *place), window_logits in zip(batch, logits, strict=True):
            window = (..., slice(z.start - low, z.stop - low), *place)
            total[window] += window_logits * weight
            count[window] += weight
        following = windows[index + len(batch)][0].start if index + len(batch) < len(windows) else depth
        done = following - low
        if done == 0:
            continue
        inside = (
            slice(None),
            slice(max(before[0] - low, 0), min(before[0] + size[0] - low, done)),
            slice(before[1], before[1] + size[1]),
            slice(before[2], before[2] + size[2]),
        )
        yield total[inside] / count[inside]
        for plane in (*total, *count):  # one class after the other: a copy of all is as large as `total`
            plane[: held - done] = plane[done:].clone()
            plane[held - done :] = 0
        low = following


def mirrored(forward: Callable[[Tensor], Tensor], window: Tensor, mirror: Sequence[int]) -> Tensor:
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
