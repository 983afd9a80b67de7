"""Augmentation: flips, crops, rotations, colour changes and blur of training images, in the paper's levels.

"Mitigating Data Heterogeneity in Federated Learning with Data Augmentation", the levels of its tables::

    weak      horizontal flip with probability 0.5; a crop of 0.7 to 1 of the area, its aspect 3/4 to 4/3, resized
    moderate  weak, then brightness, contrast and saturation times U(0.7, 1.3), hue plus U(−0.3, 0.3) of a turn; grey
              with probability 0.1
    rotation  by U(−α, α) degrees (Rotated MNIST), filled with 0
    blur      Gaussian of 5 pixels, deviation U(0.1, 2) (the paper's example of an augmentation that does not help)
    flip      horizontal flip, beside level none (FedFA and FedRDN turn and flip), or in place of a level's own 0.5

A mask moves with its image. Flip, crop and rotation are one map of coordinates, so an image is sampled once.

Choices: images of neighbouring slices and grey images have no colours and get brightness and contrast only. Colour
changes come in the order of the list (torchvision: a random one) and stay between the batch's smallest and largest
value, as intensities may go to 1 or to 255; contrast turns about the image's mean grey. Images are sampled bilinearly,
beyond their edge by the edge itself if within the image's outline; ``interpolation: nearest`` is what the authors'
code does when it rotates. Masks are always sampled at the nearest pixel.

Why not a library: MONAI has all of this but for the colours, image by image; kornia works on batches, with numbers from
torch's global generator, which are others on a GPU; torchvision has no build that fits. Here whole batches are changed
at once, on any device, with numbers that are drawn on the CPU from (seed, site, round).
"""

from __future__ import annotations

from typing import Literal

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


class Config(Strict):
    """Options of the augmentation."""

    level: Literal["none", "weak", "moderate"] = "weak"
    rotation: float = Field(default=0.0, ge=0, le=180)
    flip: float | None = Field(default=None, ge=0, le=1)
    """Probability; null is the level's own. Rotation and blur come on top of a level, none has its own."""
    blur: float = Field(default=0.0, ge=0, le=1)
    """Probability."""
    interpolation: Literal["bilinear", "nearest"] = "bilinear"


def uniform(low: float, high: float, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Draws from U(low, high) on the CPU."""
    return low + (high - low) * torch.rand(shape, generator=rng)


# --- where pixels come from ---------------------------------------------------------------------------


def crops(count: int, rng: torch.Generator) -> Tensor:
    """Boxes in a square image whose sides go from -1 to 1: half width, half height, centre (x, y), (count, 4).

    The first of ten draws of area and aspect that fits inside, else the whole image.
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
    """Matrices (B, 2, 2) that take output (x, y) to where they come from, to turn images counter-clockwise."""
    angle = torch.deg2rad(degrees)
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], 1)


def sample(x: Tensor, matrices: Tensor, mode: str) -> Tensor:
    """Images (B, C, S, S) seen through affine maps (B, 2, 3) of output to input coordinates; 0 outside."""
    grid = functional.affine_grid(matrices.to(x), list(x.shape), align_corners=False)
    inside = (grid.abs() <= 1).all(-1)[:, None]
    return functional.grid_sample(x, grid, mode=mode, padding_mode="border", align_corners=False) * inside


# --- colours and blur ---------------------------------------------------------------------------------


def grey(x: Tensor) -> Tensor:
    """Luma of colours: (B, 3, H, W) -> (B, 1, H, W)."""
    return torch.einsum("bchw,c->bhw", x, x.new_tensor(LUMA))[:, None]


def turn_hue(x: Tensor, turns: Tensor) -> Tensor:
    """Colours (B, 3, H, W), not negative, with their hue moved by ``turns`` (B, 1, 1), in units of the whole circle."""
    value, largest = x.max(1)
    chroma = value - x.amin(1)
    red, green, blue = x.unbind(1)
    pairs = torch.stack([green - blue, blue - red, red - green], 1)
    sector = pairs.gather(1, largest[:, None])[:, 0] / chroma.clamp_min(torch.finfo(x.dtype).tiny) + 2 * largest
    hue = sector + 6 * turns
    channels = [(start + hue).remainder(6) for start in (5, 3, 1)]
    return torch.stack([value - chroma * torch.minimum(k, 4 - k).clamp(0, 1) for k in channels], 1)


def jitter(x: Tensor, factors: Tensor, turns: Tensor | None) -> Tensor:
    """Brightness, contrast, and of colours saturation and hue; ``factors`` (3, B, 1, 1, 1), ``turns`` (B, 1, 1)."""
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
    """Images (B, C, H, W) blurred along rows and columns, ``sigma`` (B,) the deviations; edges mirrored."""
    b, c, h, w = x.shape
    reach = KERNEL // 2
    offsets = torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype)
    kernel = (-0.5 * (offsets / sigma[:, None]) ** 2).exp()
    kernel = (kernel / kernel.sum(1, keepdim=True)).repeat_interleave(c, 0)[:, None]
    padded = functional.pad(x.reshape(1, b * c, h, w), (reach,) * 4, mode="reflect")
    blurred = functional.conv2d(padded, kernel[:, :, None, :], groups=b * c)
    return functional.conv2d(blurred, kernel[:, :, :, None], groups=b * c).reshape(b, c, h, w)


class Client(base.Client[Config]):
    """Changes every training batch before it is normalised."""

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """Black must be 0: a factor on a colour, and the fill of a rotation, mean nothing after a shift."""
        mean = job.task.data.get("mean", (0.0,))
        if any(mean) and (self.config.level == "moderate" or self.config.rotation):
            which = "level moderate" if self.config.level == "moderate" else "rotation"
            raise ConfigError(
                f"method augmentation: {which} needs images whose black is 0, and data.mean moves it: leave out "
                "data.mean and data.std and normalise after the augmentation, with fedrdn.mode=fixed"
            )

    def augment(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        """Images, and masks with them."""
        x, y = self._move(batch, ctx)
        if self.config.level == "moderate":
            x = self._colour(x, ctx)
        if self.config.blur:
            x = self._blur(x, ctx)
        return base.Batch(x, y)

    def _move(self, batch: base.Batch, ctx: base.Context) -> tuple[Tensor, Tensor]:
        config, count = self.config, len(batch.x)
        own = 0.0 if config.level == "none" else FLIP
        flip = own if config.flip is None else config.flip
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
            matrices = turned(uniform(-config.rotation, config.rotation, (count,), rng)) @ matrices
        x = sample(batch.x, matrices, config.interpolation)
        if batch.y.dim() == 1:
            return x, batch.y
        return x, sample(batch.y[:, None].to(x), matrices, "nearest")[:, 0].to(batch.y.dtype)

    def _colour(self, x: Tensor, ctx: base.Context) -> Tensor:
        rng, count = ctx.rng("colour"), len(x)
        factors = uniform(1 - JITTER, 1 + JITTER, (3, count, 1, 1, 1), rng).to(x)
        turns = uniform(-HUE, HUE, (count, 1, 1), rng).to(x)
        fade = (torch.rand((count, 1, 1, 1), generator=rng) < GREY).to(x.device)
        if ctx.run.images_are_slices or x.shape[1] != len(LUMA):
            return jitter(x, factors, None)
        x = jitter(x, factors, turns)
        return torch.where(fade, grey(x), x)

    def _blur(self, x: Tensor, ctx: base.Context) -> Tensor:
        rng, count = ctx.rng("blur"), len(x)
        chosen = (torch.rand((count, 1, 1, 1), generator=rng) < self.config.blur).to(x.device)
        sigma = uniform(*SIGMA, (count,), rng).to(x)
        return torch.where(chosen, gaussian_blur(x, sigma), x)
