"""The presets ``scanner``, ``moves`` and ``bigaug`` for whole batches, on the device that the batch is on.

The channels of a sequence, neighbouring slices of one scan, change alike; sequences change each by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift.data import draws
from fedshift.tasks.augmentation import acquisition, geometry, intensity, tissue
from fedshift.tasks.augmentation.geometry import within
from fedshift.tasks.augmentation.presets import Range, ScannerPreset
from fedshift.tasks.augmentation.whole_batches import Batches

WIDTHS = (0.1, 0.4)
"""Of a coil's field, as a part of the longest side."""
SHARP_SIGMAS = (0.5, 1.0)
"""Of the first blur of `acquisition.sharpened` (``RandGaussianSharpen``)."""


@dataclass(frozen=True)
class Drawn:
    """Random numbers for the rows that one change meets."""

    values: Tensor
    """(n, 3), uniform."""
    seeds: Tensor
    streams: Tensor

    def within(self, limits: Range, number: int = 0) -> Tensor:
        """One of the values, within limits: (n,)."""
        return within(self.values[:, number], limits)

    def uniform(self, count: int) -> Tensor:
        """As many more for each row: (n, count)."""
        return draws.uniform(self.seeds, count, stream=self.streams)

    def normal(self, count: int, *, device: torch.device | None = None) -> Tensor:
        """Normal numbers, (n, count), drawn on a device."""
        place = device or self.seeds.device
        return draws.normal(self.seeds.to(place), count, stream=self.streams.to(place))


Change = Callable[[Tensor, Drawn], Tensor]


class ScannerBatches(Batches[ScannerPreset]):
    """A preset; see `fedshift.tasks.augmentation.Augmentation`."""

    CHANGES = 15

    def _move(self, images: Tensor, labels: Tensor, drawn: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
        images, labels = super()._move(images, labels, drawn, seeds)
        chances = draws.uniform(seeds, 2, stream=draws.BENDS)
        some = torch.nonzero(chances[:, 0] < self._preset.deform)[:, 0]
        if len(some):
            chosen, deviations = some.to(images.device), within(chances[some, 1], self._preset.bends)
            normals = draws.normal(seeds[some], geometry.numbers_of_a_bend(self._patch), stream=draws.BENDS + 1)
            images[chosen], labels[chosen] = geometry.bend(images[chosen], labels[chosen], normals, deviations)
        return images, labels

    def _change(self, rows: Tensor, chances: Tensor, seeds: Tensor) -> None:
        """Change rows in place: tissue, then coils, then what is read and stored."""
        preset, flat = self._preset, self._flat
        dims, axes = len(self._patch), len(self._patch) - flat
        terms = (acquisition.DEGREE + 1) ** dims
        steps: tuple[tuple[float, Change], ...] = (
            (preset.convolve, self._convolved),
            (preset.tone, lambda some, d: tissue.toned(some, within(d.uniform(tissue.PIECES), preset.slopes))),
            (preset.negative, lambda some, _: tissue.negative(some)),
            (preset.gamma, lambda some, d: intensity.gamma(some, d.within(preset.gammas), inverted=False)),
            (
                preset.spectrum,
                lambda some, d: tissue.recoloured(
                    some, d.normal(tissue.LOWEST**axes), d.within(preset.jitters), flat=flat
                ),
            ),
            (preset.bias, lambda some, d: acquisition.biased(some, d.normal(terms), d.within(preset.fields))),
            (
                preset.coil,
                lambda some, d: acquisition.near_a_coil(
                    some, d.within(preset.gains), d.uniform(dims), d.within(WIDTHS, 1)
                ),
            ),
            (preset.brightness, lambda some, d: some + intensity.column(d.within(preset.shifts), some)),
            (preset.perturb, self._perturbed),
            (preset.low, lambda some, d: intensity.low_resolution(some, d.within(preset.zooms), flat=flat)),
            (preset.blur, lambda some, d: intensity.blur(some, within(d.values[:, :dims], preset.sigmas))),
            (
                preset.sharpen,
                lambda some, d: acquisition.sharpened(some, d.within(preset.amounts), d.within(SHARP_SIGMAS, 1)),
            ),
            (preset.gibbs, lambda some, d: acquisition.ringing(some, d.within(preset.kept), flat=flat)),
            (
                preset.ghost,
                lambda some, d: acquisition.ghosted(
                    some, d.within(preset.damped), d.values[:, 1], d.values[:, 2], flat=flat
                ),
            ),
            (preset.noise, self._noisy),
        )
        for place, (probability, change) in enumerate(steps):
            index, values = self._chosen(chances[:, place], probability, (0, 1))
            if len(index):
                chosen = index.to(rows.device)
                streams = draws.SHAPES + place * self._sequences + index % self._sequences
                rows[chosen] = change(rows[chosen], Drawn(values, seeds[index // self._sequences], streams))

    def _convolved(self, rows: Tensor, drawn: Drawn) -> Tensor:
        count = tissue.numbers_of_a_network(len(self._patch), flat=self._flat)
        numbers = drawn.normal(count + len(tissue.LAYERS))
        points = numbers[:, count:] < 0
        return tissue.convolved(rows, numbers[:, :count], points, drawn.within(self._preset.mixes), flat=self._flat)

    def _perturbed(self, rows: Tensor, drawn: Drawn) -> Tensor:
        more, added = (drawn.within(self._preset.perturbs, k) for k in range(2))
        return rows * intensity.column(1 + more, rows) + intensity.column(added, rows)

    def _noisy(self, rows: Tensor, drawn: Drawn) -> Tensor:
        preset, count = self._preset, rows[0].numel()
        normals = drawn.normal(2 * count if preset.rician else count, device=rows.device)
        return acquisition.noisy(rows, normals, drawn.within(preset.deviations), rician=preset.rician)
