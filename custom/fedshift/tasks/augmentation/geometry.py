"""Rotation, scaling and mirroring of a batch in one resampling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional

from fedshift.tasks.augmentation.presets import ANISOTROPIC, ELONGATED, ELONGATED_ANGLE, MARGIN_SCALE, Preset


def planes(patch: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Pairs of axes in which a patch is turned: all, or of an anisotropic volume those of its planes."""
    if len(patch) == 3 and flat(patch):
        return ((1, 2),)
    return tuple(combinations(range(len(patch)), 2))


def flat(patch: Sequence[int]) -> bool:
    """Whether a volume is turned and scaled in its planes only."""
    return len(patch) == 3 and max(patch) / patch[0] > ANISOTROPIC


def largest_angle(patch: Sequence[int], preset: Preset) -> float:
    """The largest angle in degrees."""
    sides = patch[-2:]
    if len(patch) == 3 and not flat(patch):
        return preset.angle
    return min(preset.angle_in_plane, ELONGATED_ANGLE) if max(sides) / min(sides) > ELONGATED else preset.angle_in_plane


def margin(patch: Sequence[int], preset: Preset) -> tuple[int, ...]:
    """Voxels beyond the patch that turning by one angle at a time and scaling read (nnU-Net's rule), even numbers."""
    angle = torch.deg2rad(torch.tensor(min(largest_angle(patch, preset), 90.0), dtype=torch.float64))
    reach = torch.tensor(patch, dtype=torch.float64)
    if preset.rotate:
        for first, second in planes(patch):
            for a, b in ((first, second), (second, first)):
                turned = [patch[a] * t.cos() + patch[b] * t.sin() for t in torch.linspace(0, 1, 91) * angle]
                reach[a] = max(float(reach[a]), *map(float, turned))
    if preset.scale:
        scaled = [axis for axis in range(len(patch)) if not (flat(patch) and axis == 0)]
        reach[scaled] *= min(MARGIN_SCALE, max(preset.scales))
    return tuple(2 * int(((whole - side) / 2).ceil()) for whole, side in zip(reach, patch, strict=True))


def matrices(angles: Tensor, scales: Tensor, flips: Tensor, patch: Sequence[int]) -> Tensor:
    """Maps (n, D, D) from a patch's offsets from its centre to those in the volume, in voxels, axes as stored.

    Args:
        angles: (n, planes) in radians.
        scales: (n,): above 1 things become smaller.
        flips: (n, D) of 1 and -1.
        patch: sides.
    """
    dims = len(patch)
    result = torch.diag_embed(flips)
    for number, (a, b) in enumerate(planes(patch)):
        cos, sin = angles[:, number].cos(), angles[:, number].sin()
        turn = torch.eye(dims).repeat(len(angles), 1, 1)
        turn[:, a, a], turn[:, a, b], turn[:, b, a], turn[:, b, b] = cos, -sin, sin, cos
        result = turn @ result
    stretch = scales[:, None].repeat(1, dims)
    if flat(patch):
        stretch[:, 0] = 1
    return stretch[:, :, None] * result


def resample(images: Tensor, labels: Tensor, maps: Tensor, patch: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Patches (n, C, *patch) and (n, *patch) around the centres of larger volumes; edge voxels repeated beyond them.

    Images are sampled linearly, labels at the nearest voxel.
    """
    grid = _grid(maps, patch, images)
    moved = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    named = labels[:, None].to(images.dtype)
    found = functional.grid_sample(named, grid, mode="nearest", padding_mode="border", align_corners=False)
    return moved, found[:, 0].to(labels.dtype)


def _grid(maps: Tensor, patch: Sequence[int], images: Tensor) -> Tensor:
    """What `torch.nn.functional.grid_sample` reads, (n, *patch, D): sums of one term an axis, faster than products."""
    dims = len(patch)
    whole = images.new_tensor(images.shape[2:])
    per_voxel = (2 * maps.to(images) / whole[:, None]).flip(1)  # torch counts the last axis first
    grid = images.new_zeros((len(maps), *patch, dims))
    for axis, side in enumerate(patch):
        offsets = torch.arange(side, device=images.device, dtype=images.dtype) - (side - 1) / 2
        along = per_voxel[:, :, axis, None] * offsets  # (n, D, side)
        shape = [len(maps), *(side if other == axis else 1 for other in range(dims)), dims]
        grid += along.transpose(1, 2).reshape(shape)
    return grid


def centre(volume: Tensor, patch: Sequence[int]) -> Tensor:
    """The middle of the last axes."""
    for axis, side in enumerate(patch, start=volume.dim() - len(patch)):
        volume = volume.narrow(axis, (volume.shape[axis] - side) // 2, side)
    return volume
