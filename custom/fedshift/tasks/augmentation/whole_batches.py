"""The presets of scans for whole batches, on the device that the batch is on.

Why own code beside MONAI's: measured on one thread, MONAI's list takes 5.4 times as long in 2D and 1.8 times in 3D
(docs/performance.md, ``benchmarks/performance/augmentation.py``), and draws alike for all sequences. A test compares
the distribution of each change with that of MONAI's transform.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from fedshift.data import draws
from fedshift.tasks.augmentation import geometry, intensity
from fedshift.tasks.augmentation.presets import Moves, Preset, Range

VALUES = 3
"""A blur has one for each axis."""

Change = Callable[[Tensor, Tensor], Tensor]
AnyPreset = TypeVar("AnyPreset", bound=Moves)


class Batches(ABC, Generic[AnyPreset]):
    """What presets of scans have in common; see `fedshift.tasks.augmentation.Augmentation`."""

    in_threads = True
    CHANGES: ClassVar[int]
    """Changes of intensity, each with a chance for the sample, and a chance and values for each sequence."""

    def __init__(
        self, preset: AnyPreset, *, patch: tuple[int, ...], sequences: int, mirror: tuple[int, ...], nonzero: bool
    ) -> None:
        """``mirror``: the axes that may be mirrored. ``nonzero``: voxels that are 0 stay 0."""
        self._preset, self._patch, self._sequences, self._mirror = preset, patch, sequences, mirror
        self._nonzero, self._flat = nonzero, geometry.flat(patch)
        self.margin = geometry.margin(patch, preset)

    def __call__(self, images: Tensor, labels: Tensor, *, seeds: Tensor) -> tuple[Tensor, Tensor]:
        count = geometry.DRAWN + self.CHANGES * (1 + (1 + VALUES) * self._sequences)
        drawn = draws.uniform(seeds, count, stream=draws.CHANCES)
        moves, changes = drawn[:, : geometry.DRAWN], drawn[:, geometry.DRAWN :]
        images, labels = self._move(images, labels, moves, seeds)
        chances = torch.unflatten(changes, 1, (self.CHANGES, -1))
        rows = torch.unflatten(images, 1, (self._sequences, -1)).flatten(0, 1)  # a view: a sequence of a sample
        outside = rows == 0 if self._nonzero else None
        self._change(rows, chances, seeds)
        if outside is not None:
            rows.masked_fill_(outside, 0)
        return images, labels

    def _move(self, images: Tensor, labels: Tensor, drawn: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
        """Patches of larger samples, moved."""
        return geometry.move(
            images, labels, drawn, seeds=seeds, preset=self._preset, patch=self._patch, mirror=self._mirror
        )

    @abstractmethod
    def _change(self, rows: Tensor, chances: Tensor, seeds: Tensor) -> None:
        """Change rows in place."""

    def _chosen(self, drawn: Tensor, probability: float, limits: Range, *, part: float = 1.0) -> tuple[Tensor, Tensor]:
        """Numbers of the rows that a change meets, (n,), and `VALUES` for each, (n, 3)."""
        each = torch.unflatten(drawn[:, 1:], 1, (self._sequences, 1 + VALUES))
        chosen = (drawn[:, :1] < probability) & (each[..., 0] < part)
        return torch.nonzero(chosen.flatten())[:, 0], geometry.within(each[chosen][:, 1:], limits)


class WholeBatches(Batches[Preset]):
    """``light`` and ``strong``."""

    CHANGES = 7

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
                chosen = index.to(rows.device)
                rows[chosen] = change(rows[chosen], values)

    def _low_resolution(self, rows: Tensor, values: Tensor) -> Tensor:
        return intensity.low_resolution(rows, values[:, 0], flat=self._flat)
