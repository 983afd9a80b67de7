"""The presets for whole batches, on the device that the batch is on.

Why own code beside MONAI's: measured on one thread, MONAI's list takes 5.4 times as long in 2D and 1.8 times in 3D
(docs/performance.md, ``benchmarks/performance/augmentation.py``), and draws alike for all sequences. A test compares
the distribution of each change with that of MONAI's transform.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedshift.data import draws
from fedshift.tasks.augmentation import geometry, intensity
from fedshift.tasks.augmentation.presets import Preset, Range

MOVES = 9
"""Uniform numbers that a sample needs for its geometry: two chances, three angles, a scale, three axes."""
CHANGES = 7
"""Changes of intensity, each with a chance for the sample, and a chance and values for each sequence."""
VALUES = 3
"""A blur has one for each axis."""

Change = Callable[[Tensor, Tensor], Tensor]


def within(uniform: Tensor, limits: Range) -> Tensor:
    """Uniform numbers from 0 to 1 as numbers within limits."""
    return limits[0] + (limits[1] - limits[0]) * uniform


class WholeBatches:
    """A preset; see `fedshift.tasks.augmentation.Augmentation`."""

    in_threads = True

    def __init__(
        self, preset: Preset, *, patch: tuple[int, ...], sequences: int, mirror: tuple[int, ...], nonzero: bool
    ) -> None:
        """``mirror``: the axes that may be mirrored. ``nonzero``: voxels that are 0 stay 0."""
        self._preset, self._patch, self._sequences, self._mirror = preset, patch, sequences, mirror
        self._nonzero, self._flat = nonzero, geometry.flat(patch)
        self.margin = geometry.margin(patch, preset)

    def __call__(self, images: Tensor, labels: Tensor, *, seeds: Tensor) -> tuple[Tensor, Tensor]:
        count = MOVES + CHANGES * (1 + (1 + VALUES) * self._sequences)
        drawn = draws.uniform(seeds, count, stream=draws.CHANCES)
        images, labels = self._move(images, labels, drawn[:, :MOVES])
        chances = torch.unflatten(drawn[:, MOVES:], 1, (CHANGES, -1))
        rows = torch.unflatten(images, 1, (self._sequences, -1)).flatten(0, 1)  # a view: a sequence of a sample
        outside = rows == 0 if self._nonzero else None
        self._change(rows, chances, seeds)
        if outside is not None:
            rows.masked_fill_(outside, 0)
        return images, labels

    def _move(self, images: Tensor, labels: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        preset, patch, dims = self._preset, self._patch, len(self._patch)
        turned, scaled = drawn[:, 0] < preset.rotate, drawn[:, 1] < preset.scale
        mirrored = drawn[:, 6 : 6 + dims] < preset.mirror
        mirrored[:, [axis for axis in range(dims) if axis not in self._mirror]] = False
        largest = torch.deg2rad(torch.tensor(geometry.largest_angle(patch, preset)))
        angles = within(drawn[:, 2:5], (-1, 1)) * largest * turned[:, None]
        scales = torch.where(scaled, within(drawn[:, 5], preset.scales), torch.ones(()))
        x, y = (geometry.centre(whole, patch).clone() for whole in (images, labels))
        moves = turned | scaled
        for axis in range(dims):
            rows = torch.nonzero(mirrored[:, axis] & ~moves)[:, 0].to(images.device)
            x[rows], y[rows] = (flipped[rows].flip(axis - dims) for flipped in (x, y))
        chosen = torch.nonzero(moves)[:, 0]
        if len(chosen):
            maps = geometry.matrices(angles[chosen], scales[chosen], 1 - 2 * mirrored[chosen].float(), patch)
            rows = chosen.to(images.device)
            x[rows], y[rows] = geometry.resample(images[rows], labels[rows], maps, patch)
        return x, y

    def _change(self, rows: Tensor, chances: Tensor, seeds: Tensor) -> None:
        """Change rows in place, in nnU-Net's order."""
        preset = self._preset
        index, deviations = self._chosen(chances[:, 0], preset.noise, (0, preset.noise_std))
        if len(index):
            noisy = index.to(rows.device)
            keys, streams = seeds[index // self._sequences], draws.NOISE + index % self._sequences
            noise = draws.normal(keys.to(rows.device), rows[0].numel(), stream=streams.to(rows.device))
            rows[noisy] += torch.unflatten(noise, 1, rows.shape[1:]) * intensity.column(deviations[:, 0], rows)
        steps: tuple[tuple[Change, float, Range, float], ...] = (
            (lambda some, v: intensity.blur(some, v[:, : some.dim() - 2]), preset.blur, preset.sigmas, preset.part),
            (lambda some, v: some * intensity.column(v[:, 0], some), preset.brightness, preset.factors, 1),
            (lambda some, v: intensity.contrast(some, v[:, 0]), preset.contrast, preset.contrasts, 1),
            (self._low_resolution, preset.low, preset.zooms, preset.part),
            (lambda some, v: intensity.gamma(some, v[:, 0], inverted=True), preset.inverted, preset.gammas, 1),
            (lambda some, v: intensity.gamma(some, v[:, 0], inverted=False), preset.gamma, preset.gammas, 1),
        )
        for place, (change, probability, limits, part) in enumerate(steps, start=1):
            index, values = self._chosen(chances[:, place], probability, limits, part=part)
            if len(index):
                there = index.to(rows.device)
                rows[there] = change(rows[there], values)

    def _low_resolution(self, rows: Tensor, values: Tensor) -> Tensor:
        return intensity.low_resolution(rows, values[:, 0], flat=self._flat)

    def _chosen(self, drawn: Tensor, probability: float, limits: Range, *, part: float = 1.0) -> tuple[Tensor, Tensor]:
        """Numbers of the rows that a change meets, (n,), and `VALUES` for each, (n, 3)."""
        each = torch.unflatten(drawn[:, 1:], 1, (self._sequences, 1 + VALUES))
        chosen = (drawn[:, :1] < probability) & (each[..., 0] < part)
        return torch.nonzero(chosen.flatten())[:, 0], within(each[chosen][:, 1:], limits)
