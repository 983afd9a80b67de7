"""The presets of pictures for whole batches: colours, blur, noise and what JPEG leaves, after the geometry."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedshift.data import draws
from fedshift.schema.errors import ConfigError
from fedshift.tasks.augmentation import geometry, intensity
from fedshift.tasks.augmentation.jpeg import LUMA, jpeg
from fedshift.tasks.augmentation.presets import PicturePreset

CHANGES = 11
"""Uniform numbers that a sample needs beside its geometry: chance and four values of colours, and chance and value each
of blur, noise and JPEG."""
CHROMA = ((0.595716, -0.274453, -0.321263), (0.211456, -0.522591, 0.311135))
"""The two axes of colour beside grey: I and Q of NTSC."""


class PictureBatches:
    """A preset of pictures; see `fedshift.tasks.augmentation.Augmentation`.

    All that a sample's colours are changed by is one matrix: first brightness, then contrast around the mean grey,
    saturation around a pixel's own grey, and hue as a turn around the axis of grey. A grey picture has neither
    saturation nor hue to change. What is darker than black or brighter than white is cut off.
    """

    in_threads = True

    def __init__(
        self,
        preset: PicturePreset,
        *,
        patch: tuple[int, ...],
        coloured: bool,
        levels: tuple[float, float],
        mirror: tuple[int, ...],
        nonzero: bool,
    ) -> None:
        """Make the preset.

        Args:
            preset: probabilities and ranges.
            patch: sides of a patch.
            coloured: whether the channels are red, green and blue.
            levels: intensities of black and of white as the network sees them.
            mirror: the axes that may be mirrored.
            nonzero: pixels that are 0 stay 0.
        """
        if len(patch) != 2:
            raise ConfigError(
                "transform-unfit",
                "data.augmentation: the presets of pictures are for data.dims=2: take 'light' or 'strong' in 3D",
            )
        self._preset, self._patch, self._mirror, self._nonzero = preset, patch, mirror, nonzero
        self._coloured, self._black, self._span = coloured, levels[0], levels[1] - levels[0]
        self.margin = geometry.margin(patch, preset)

    def __call__(self, images: Tensor, labels: Tensor, *, seeds: Tensor) -> tuple[Tensor, Tensor]:
        drawn = draws.uniform(seeds, geometry.DRAWN + CHANGES, stream=draws.CHANCES)
        moves, changes = drawn[:, : geometry.DRAWN], drawn[:, geometry.DRAWN :]
        images, labels = geometry.move(
            images, labels, moves, seeds=seeds, preset=self._preset, patch=self._patch, mirror=self._mirror
        )
        outside = images == 0 if self._nonzero else None
        self._change(images.sub_(self._black).div_(self._span), changes, seeds)
        images.mul_(self._span).add_(self._black)
        if outside is not None:
            images.masked_fill_(outside, 0)
        return images, labels

    def _change(self, images: Tensor, drawn: Tensor, seeds: Tensor) -> None:
        """Change images in place, which are from 0, black, to 1, white."""
        preset = self._preset
        some = torch.nonzero(drawn[:, 0] < preset.colours)[:, 0]
        if len(some):
            chosen = some.to(images.device)
            images[chosen] = self._recoloured(images[chosen], drawn[some, 1:5])
        some = torch.nonzero(drawn[:, 5] < preset.blur)[:, 0]
        if len(some):
            chosen, sigmas = some.to(images.device), geometry.within(drawn[some, 6], preset.sigmas)
            images[chosen] = intensity.blur(images[chosen], sigmas[:, None].expand(-1, 2))
        some = torch.nonzero(drawn[:, 7] < preset.noise)[:, 0]
        if len(some):
            chosen, deviations = some.to(images.device), drawn[some, 8] * preset.noise_std
            noise = draws.normal(seeds[some].to(images.device), images[0].numel(), stream=draws.NOISE)
            noisy = images[chosen] + noise.view(-1, *images.shape[1:]) * intensity.column(deviations, images)
            images[chosen] = noisy.clamp_(0, 1)
        some = torch.nonzero(drawn[:, 9] < preset.jpeg)[:, 0]
        if len(some):
            chosen, qualities = some.to(images.device), geometry.within(drawn[some, 10], preset.qualities)
            images[chosen] = jpeg(images[chosen], qualities, coloured=self._coloured)

    def _recoloured(self, pictures: Tensor, drawn: Tensor) -> Tensor:
        """Pictures (n, C, rows, columns) with other colours; ``drawn`` (n, 4) is uniform."""
        preset, channels = self._preset, pictures.shape[1]
        limits = (preset.factors, preset.contrasts, preset.saturations, preset.hues)
        bright, contrast, saturation, hue = (
            geometry.within(drawn[:, k], each)[:, None, None] for k, each in enumerate(limits)
        )
        grey = torch.tensor(LUMA) if self._coloured else torch.full((channels,), 1 / channels)
        if self._coloured:
            to_yiq = torch.tensor((LUMA, *CHROMA))
            turn = torch.zeros(len(drawn), 3, 3)
            angle = 2 * math.pi * hue[:, 0, 0]
            turn[:, 0, 0] = 1
            turn[:, 1, 1] = turn[:, 2, 2] = angle.cos()
            turn[:, 1, 2], turn[:, 2, 1] = angle.sin(), -angle.sin()  # red to green to blue
            turn[:, 1:] *= saturation
            mix = torch.linalg.inv(to_yiq) @ turn @ to_yiq
        else:
            mix = torch.eye(channels).expand(len(drawn), -1, -1)
        mix = (mix * bright * contrast).to(pictures)
        mean = pictures.mean((2, 3)) @ grey.to(pictures)
        lift = mean * (bright * (1 - contrast))[:, 0, 0].to(pictures)
        changed = torch.einsum("nij,njyx->niyx", mix, pictures).add_(intensity.column(lift, pictures))
        return changed.clamp_(0, 1)
