"""Augmentation: flips, crops, rotations, colour changes and blur of training images, in the paper's levels.

Back de Luca et al., "Mitigating Data Heterogeneity in Federated Learning with Data Augmentation", 2022. The levels of
its tables::

    weak      horizontal flip with probability 0.5; a crop of 0.7 to 1 of the area, its aspect 3/4 to 4/3, resized
    moderate  weak, then brightness, contrast and saturation times U(0.7, 1.3), hue plus U(−0.3, 0.3) of a turn; grey
              with probability 0.1
    rotation  by U(−α, α) degrees (Rotated MNIST), filled with 0
    blur      Gaussian of 5 pixels, standard deviation U(0.1, 2) (the paper's example of an augmentation that does not
              help)
    flip      horizontal flip with the given probability: with level none (FedFA and FedRDN rotate and flip), or
              instead of a level's own 0.5

A mask is transformed with its image. Flip, crop and rotation are composed into one affine map, so an image is resampled
once.

Choices:

- Images of neighbouring slices and grey images have no colours; only brightness and contrast apply to them.
- In 3D all slices of a volume get the same transform within their plane.
- Colour changes are applied in the listed order (torchvision: random order) and clamped to the batch's minimum and
  maximum, because intensities may go up to 1 or to 255. Contrast scales around the image's mean grey value.
- Images are sampled bilinearly, with edge values where a sample within the image's outline needs pixels beyond it.
  ``interpolation: nearest`` is what the authors' code does for rotations. Masks are always sampled with nearest.

Why no library: MONAI works image by image and has no colour changes, kornia draws from torch's global generator, whose
numbers differ on a GPU, torchvision has no compatible build.

When: digits: ``level=none rotation=30``; photographs: ``moderate``; slices: ``weak`` with a small rotation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedshift.methods import base
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict

FLIP = 0.5
AREA, ASPECT, TRIES = (0.7, 1.0), (3 / 4, 4 / 3), 10
JITTER, HUE, GREY = 0.3, 0.3, 0.1
KERNEL, SIGMA = 5, (0.1, 2.0)
LUMA = (0.299, 0.587, 0.114)
SHIFTING = ("volume", "fixed")
"""Values of ``data.normalise`` after which black is not 0."""


class Config(Strict):
    """Options of the augmentation.

    ``level``: of the paper. ``rotation``: largest angle in degrees. ``flip``: probability of a horizontal flip in place
    of the level's own (0.5 for ``weak`` and ``moderate``); take 0 for digits. ``blur``: probability of a Gaussian blur
    of 5 pixels. ``interpolation``: ``nearest`` is what the authors' code uses for rotations.
    """

    level: Literal["none", "weak", "moderate"] = "weak"
    rotation: float = Field(default=0.0, ge=0, le=180)
    flip: float | None = Field(default=None, ge=0, le=1)
    blur: float = Field(default=0.0, ge=0, le=1)
    interpolation: Literal["bilinear", "nearest"] = "bilinear"


def uniform(low: float, high: float, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Draws from U(low, high) on the CPU."""
    return low + (high - low) * torch.rand(shape, generator=rng)


# --- geometry -----------------------------------------------------------------------------------------


def crops(count: int, rng: torch.Generator) -> Tensor:
    """Random crop boxes (count, 4) in coordinates from -1 to 1: half width, half height, centre x, centre y.

    Uses the first of ten draws of area and aspect that fits inside the image, otherwise the full image.
    """
    area = uniform(*AREA, (count, TRIES), rng)
    low, high = torch.tensor(ASPECT).log().tolist()
    aspect = uniform(low, high, (count, TRIES), rng).exp()
    sides = torch.stack([(area * aspect).sqrt(), (area / aspect).sqrt()], -1)
    fits = (sides <= 1).all(-1)
    first = fits.int().argmax(1)
    chosen = torch.where(fits.any(1)[:, None], sides[torch.arange(count), first], torch.ones(()))
    centre = (1 - chosen) * uniform(-1, 1, (count, 2), rng)
    return torch.cat([chosen, centre], 1)


def turned(degrees: Tensor) -> Tensor:
    """Matrices (B, 2, 2) from output (x, y) to input coordinates that rotate images counter-clockwise."""
    angle = torch.deg2rad(degrees)
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], 1)


def sample(x: Tensor, matrices: Tensor, mode: str) -> Tensor:
    """Images (B, C, H, W) resampled with affine maps (B, 2, 3) from output to input coordinates; 0 outside."""
    grid = functional.affine_grid(matrices.to(x), list(x.shape), align_corners=False)
    inside = (grid.abs() <= 1).all(-1)[:, None]
    return functional.grid_sample(x, grid, mode=mode, padding_mode="border", align_corners=False) * inside


# --- colours and blur ---------------------------------------------------------------------------------


def grey(x: Tensor) -> Tensor:
    """Luma of RGB images: (B, 3, H, W) -> (B, 1, H, W)."""
    return torch.einsum("bchw,c->bhw", x, x.new_tensor(LUMA))[:, None]


def turn_hue(x: Tensor, turns: Tensor) -> Tensor:
    """Non-negative RGB images (B, 3, H, W) with their hue shifted by ``turns`` (B, 1, 1), in units of a full turn."""
    value, largest = x.max(1)
    chroma = value - x.amin(1)
    red, green, blue = x.unbind(1)
    pairs = torch.stack([green - blue, blue - red, red - green], 1)
    sector = pairs.gather(1, largest[:, None])[:, 0] / chroma.clamp_min(torch.finfo(x.dtype).tiny) + 2 * largest
    hue = sector + 6 * turns
    channels = [(start + hue).remainder(6) for start in (5, 3, 1)]
    return torch.stack([value - chroma * torch.minimum(k, 4 - k).clamp(0, 1) for k in channels], 1)


def jitter(x: Tensor, factors: Tensor, turns: Tensor | None) -> Tensor:
    """Change brightness and contrast, and of RGB images saturation and hue.

    ``factors`` (3, B, 1, 1, 1) are brightness, contrast and saturation; ``turns`` (B, 1, 1) is None for other images.
    """
    low, high = x.min(), x.max()
    brightness, contrast, saturation = factors
    x = (brightness * x).clamp(low, high)
    middle = (x if turns is None else grey(x)).mean((1, 2, 3), keepdim=True)
    x = (middle + contrast * (x - middle)).clamp(low, high)
    if turns is None:
        return x
    shade = grey(x)
    x = (shade + saturation * (x - shade)).clamp(low, high)
    return turn_hue(x, turns)


def gaussian_blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Images (B, C, H, W) blurred along rows and columns with standard deviations ``sigma`` (B,); mirrored edges."""
    b, c, h, w = x.shape
    reach = KERNEL // 2
    offsets = torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype)
    kernel = (-0.5 * (offsets / sigma[:, None]) ** 2).exp()
    kernel = (kernel / kernel.sum(1, keepdim=True)).repeat_interleave(c, 0)[:, None]
    padded = functional.pad(x.reshape(1, b * c, h, w), (reach,) * 4, mode="reflect")
    blurred = functional.conv2d(padded, kernel[:, :, None, :], groups=b * c)
    return functional.conv2d(blurred, kernel[:, :, :, None], groups=b * c).reshape(b, c, h, w)


class Client(base.Client[Config]):
    """Augments every training batch before normalisation."""

    in_ranks = frozenset({"augment"})
    idle = (
        base.Rule(
            "interpolation",
            "without crops and rotations (level none) no image is resampled",
            {"level": "none", "rotation": 0},
        ),
    )

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """Colour factors and the fill of rotations assume that black is 0; some tasks tell left from right."""
        data = job.task.data
        if self.config.level == "moderate" or self.config.rotation:
            which = "level moderate" if self.config.level == "moderate" else "rotation"
            need = f"method augmentation: {which} needs images whose black is 0, and"
            if any(data.get("mean", (0.0,))):
                raise ConfigError(
                    "method-needs",
                    f"{need} data.mean shifts it: leave out data.mean and data.std, and normalise after the "
                    "augmentation with fedrdn.mode=fixed",
                )
            normalise = data.get("normalise", "volume")
            if "patch" in data and normalise in SHIFTING:
                raise ConfigError(
                    "method-needs",
                    f"{need} data.normalise {normalise} shifts it: use the task's own augmentation "
                    "(data.augmentation=light or strong), or data.normalise=percentile",
                )
        mirror = data.get("mirror")
        if self._flip and mirror is not None and len(data["patch"]) - 1 not in mirror:
            raise ConfigError(
                "method-needs",
                "method augmentation: it swaps left and right, which data.mirror leaves out because classes differ in "
                "the side: set augmentation.flip=0",
            )

    def perturbations(self) -> Mapping[str, base.Client[Any]]:
        return {"augmented images": self}

    def augment(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        """Augmented images, and masks transformed with them."""
        if batch.x.dim() == 5:  # the slices of a volume as channels
            shape = batch.x.shape
            flat = self.augment(base.Batch(batch.x.flatten(1, 2), batch.y), ctx)
            return base.Batch(flat.x.reshape(shape), flat.y)
        x, y = self._move(batch, ctx)
        if self.config.level == "moderate":
            x = self._colour(x, ctx)
        if self.config.blur:
            x = self._blur(x, ctx)
        return base.Batch(x, y)

    @property
    def _flip(self) -> float:
        default = 0.0 if self.config.level == "none" else FLIP
        return default if self.config.flip is None else self.config.flip

    def _move(self, batch: base.Batch, ctx: base.Context) -> tuple[Tensor, Tensor]:
        config, count = self.config, len(batch.x)
        flip = self._flip
        if config.level == "none" and not config.rotation and not flip:
            return batch.x, batch.y
        rng = ctx.rng("place")
        matrices = torch.eye(2, 3).repeat(count, 1, 1)
        if config.level != "none":
            box = crops(count, rng)
            matrices[:, 0, 0], matrices[:, 1, 1], matrices[:, :, 2] = box[:, 0], box[:, 1], box[:, 2:]
        if flip:
            matrices[:, 0, 0] *= 1 - 2 * (torch.rand(count, generator=rng) < flip).float()
        if config.rotation:
            turns = turned(uniform(-config.rotation, config.rotation, (count,), rng))
            rows, columns = batch.x.shape[-2:]
            if rows != columns:  # coordinates go from -1 to 1 along both sides
                turns = turns * torch.tensor([[1, rows / columns], [columns / rows, 1]])
            matrices = turns @ matrices
        x = sample(batch.x, matrices, config.interpolation)
        if not ctx.run.dense:
            return x, batch.y
        masks = batch.y if batch.y.dim() == 4 else batch.y[:, None]
        return x, sample(masks.to(x), matrices, "nearest").to(batch.y.dtype).reshape(batch.y.shape)

    def _colour(self, x: Tensor, ctx: base.Context) -> Tensor:
        rng, count = ctx.rng("colour"), len(x)
        factors = uniform(1 - JITTER, 1 + JITTER, (3, count, 1, 1, 1), rng).to(x)
        turns = uniform(-HUE, HUE, (count, 1, 1), rng).to(x)
        fade = (torch.rand((count, 1, 1, 1), generator=rng) < GREY).to(x.device)
        if ctx.run.dense or x.shape[1] != len(LUMA):
            return jitter(x, factors, None)
        x = jitter(x, factors, turns)
        return torch.where(fade, grey(x), x)

    def _blur(self, x: Tensor, ctx: base.Context) -> Tensor:
        rng, count = ctx.rng("blur"), len(x)
        chosen = (torch.rand((count, 1, 1, 1), generator=rng) < self.config.blur).to(x.device)
        sigma = uniform(*SIGMA, (count,), rng).to(x)
        return torch.where(chosen, gaussian_blur(x, sigma), x)
