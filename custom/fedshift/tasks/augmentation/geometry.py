"""Rotation, scaling and mirroring of a batch in one resampling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from fedshift.data import draws
from fedshift.tasks.augmentation.presets import ANISOTROPIC, ELONGATED, ELONGATED_ANGLE, MARGIN_SCALE, Moves, Range

DRAWN = 9
"""Uniform numbers that a sample needs: two chances, three angles, a scale, three axes."""
BEND = 12.0
"""Standard deviation of the Gaussian that smooths shifts, in voxels (10 to 13 in BigAug)."""


def within(uniform: Tensor, limits: Range) -> Tensor:
    """Uniform numbers from 0 to 1 as numbers within limits."""
    return limits[0] + (limits[1] - limits[0]) * uniform


def move(
    images: Tensor,
    labels: Tensor,
    drawn: Tensor,
    *,
    seeds: Tensor,
    preset: Moves,
    patch: Sequence[int],
    mirror: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Patches (B, C, *patch) and (B, *patch) of larger volumes, turned, scaled, shifted and mirrored.

    ``drawn`` is (B, `DRAWN`), and ``seeds`` are the samples'. ``mirror``: the axes that may be mirrored.
    """
    dims = len(patch)
    turned, scaled = drawn[:, 0] < preset.rotate, drawn[:, 1] < preset.scale
    mirrored = drawn[:, 6 : 6 + dims] < preset.mirror
    mirrored[:, [axis for axis in range(dims) if axis not in mirror]] = False
    largest = torch.deg2rad(torch.tensor(largest_angle(patch, preset)))
    angles = within(drawn[:, 2:5], (-1, 1)) * largest * turned[:, None]
    scales = torch.where(scaled, within(drawn[:, 5], preset.scales), torch.ones(()))
    x, y = (centre(whole, patch).clone() for whole in (images, labels))
    ways = _ways(seeds, preset, patch)
    moves = turned | scaled | ways.any(1)
    for axis in range(dims):
        rows = torch.nonzero(mirrored[:, axis] & ~moves)[:, 0].to(images.device)
        x[rows], y[rows] = (flipped[rows].flip(axis - dims) for flipped in (x, y))
    chosen = torch.nonzero(moves)[:, 0]
    if len(chosen):
        maps = matrices(angles[chosen], scales[chosen], 1 - 2 * mirrored[chosen].float(), patch)
        rows = chosen.to(images.device)
        x[rows], y[rows] = resample(images[rows], labels[rows], maps, patch, ways=ways[chosen])
    return x, y


def _ways(seeds: Tensor, preset: Moves, patch: Sequence[int]) -> Tensor:
    """How far each sample is shifted along each axis, in voxels: (B, D); flat volumes within their planes."""
    drawn = draws.uniform(seeds, 1 + len(patch), stream=draws.WAYS)
    ways = within(drawn[:, 1:], preset.ways) * torch.tensor(patch) * (drawn[:, :1] < preset.shift)
    if flat(patch):
        ways[:, 0] = 0
    return ways


def planes(patch: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Pairs of axes in which a patch is turned: all, or of an anisotropic volume those of its planes."""
    if len(patch) == 3 and flat(patch):
        return ((1, 2),)
    return tuple(combinations(range(len(patch)), 2))


def flat(patch: Sequence[int]) -> bool:
    """Whether a volume is turned and scaled in its planes only."""
    return len(patch) == 3 and max(patch) / patch[0] > ANISOTROPIC


def largest_angle(patch: Sequence[int], preset: Moves) -> float:
    """The largest angle in degrees."""
    sides = patch[-2:]
    if len(patch) == 3 and not flat(patch):
        return preset.angle
    return min(preset.angle_in_plane, ELONGATED_ANGLE) if max(sides) / min(sides) > ELONGATED else preset.angle_in_plane


def margin(patch: Sequence[int], preset: Moves) -> tuple[int, ...]:
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


def resample(
    images: Tensor, labels: Tensor, maps: Tensor, patch: Sequence[int], *, ways: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Patches (n, C, *patch) and (n, *patch) around the centres of larger volumes; edge voxels repeated beyond them.

    Images are sampled linearly, labels at the nearest voxel. ``ways``: from the centres, in voxels (n, D).
    """
    grid = _grid(maps, patch, images)
    if ways is not None:
        places = (2 * ways.to(images) / images.new_tensor(images.shape[2:])).flip(1)
        grid += places.reshape(len(ways), *[1] * len(patch), len(patch))
    return _sampled(images, labels, grid)


def bend(images: Tensor, labels: Tensor, normals: Tensor, deviations: Tensor) -> tuple[Tensor, Tensor]:
    """Patches (n, C, *patch) and (n, *patch) bent smoothly: each voxel's shift is normal noise, smoothed by a Gaussian.

    Args:
        images: to bend.
        labels: with them.
        normals: (n, `numbers_of_a_bend`).
        deviations: (n,) of the shifts along each axis, in voxels.
    """
    patch = labels.shape[1:]
    mixing = [_bumps(side, still=flat(patch) and axis == 0) for axis, side in enumerate(patch)]
    shifts = normals.reshape(len(normals), len(patch), *[each.shape[1] for each in mixing])
    for axis, each in enumerate(mixing, start=2):
        shifts = torch.tensordot(shifts, each, dims=([axis], [1])).movedim(-1, axis)
    per_voxel = deviations[:, None] * 2 / torch.tensor(patch)
    if flat(patch):
        per_voxel[:, 0] = 0
    shifts = shifts * per_voxel.reshape(*per_voxel.shape, *[1] * len(patch))
    still = torch.eye(len(patch)).expand(len(images), -1, -1)
    grid = _grid(still, patch, images) + shifts.movedim(1, -1).flip(-1).to(images)
    return _sampled(images, labels, grid)


def numbers_of_a_bend(patch: Sequence[int]) -> int:
    """How many normal numbers `bend` needs for a patch."""
    return len(patch) * prod(_bumps(side, still=flat(patch) and axis == 0).shape[1] for axis, side in enumerate(patch))


def _bumps(side: int, *, still: bool) -> Tensor:
    """From normal numbers along an axis to a smooth curve of deviation 1: (side, numbers); a constant if ``still``."""
    if still:
        return torch.ones(side, 1)
    centres = torch.arange(-2 * BEND, side + 2 * BEND, BEND / 2)
    bumps = (-0.5 * ((torch.arange(side)[:, None] - centres) / BEND).square()).exp()
    return bumps / bumps.square().sum(1, keepdim=True).sqrt()


def _sampled(images: Tensor, labels: Tensor, grid: Tensor) -> tuple[Tensor, Tensor]:
    moved = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    named = labels[:, None].to(images.dtype)
    moved_labels = functional.grid_sample(named, grid, mode="nearest", padding_mode="border", align_corners=False)
    return moved, moved_labels[:, 0].to(labels.dtype)


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
