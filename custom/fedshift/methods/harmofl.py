"""HarmoFL's amplitude normalisation: all sites' images get one shared amplitude spectrum and keep their own phase.

Jiang et al., "HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical Images",
AAAI 2022. The mean amplitude A is computed once, over the n_k training images of each site k, per channel. Every image
is then normalised with it, in training and in evaluation::

    A_k = 1/n_k Σ_i |F(x_i)|,    A = 1/K Σ_k A_k
    x ← F⁻¹( A · exp(i · arg F(x)) )

F is the discrete Fourier transform over rows and columns, and in 3D over slices too. The paper's other half, weight
perturbation, is in ``fedharmo``.

Deviations from the paper:

- The paper updates a site's amplitude batch by batch and does not specify when it is shared. Here it is the mean over
  all un-augmented training images and shared once; the authors' code, too, freezes the amplitude after the first round.
- Only half of the spectrum is stored, because the other half is its mirror image for real images. A coefficient of 0
  has phase 0.

Variants: ``variant: released`` follows the authors' code, which replaces the DC term only:
x ← x − mean(x) + s A(0)/N, N the number of pixels, s the sign of the image's mean. Their A comes from the first batch;
here it comes from all training images in this variant too.

When: sites differ in brightness, contrast or smoothness. It applies in training and evaluation, also at new sites.
Information in an image's own amplitudes is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.methods import base
from fedshift.methods.shared.features import over_space, spatial_dims
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict
from fedshift.tasks.stages import StagedNetwork

LARGEST = 1e10
"""Bound on an amplitude: number of pixels times largest intensity."""


class Config(Strict):
    """Options of HarmoFL.

    ``variant``: ``released`` replaces only the DC term (the image's mean), which is the effect of the authors' code.
    """

    variant: Literal["paper", "released"] = "paper"


def amplitude(x: Tensor) -> Tensor:
    """|F(x)| for non-negative column frequencies: (B, C, …, W) -> (B, C, …, W // 2 + 1)."""
    spectrum: Tensor = torch.fft.rfftn(x, dim=spatial_dims(x)).abs()
    return spectrum


def with_amplitude(x: Tensor, shared: Tensor) -> Tensor:
    """Images (B, C, …, W) with the amplitudes ``shared`` (C, …, W // 2 + 1) and their own phases."""
    dims = spatial_dims(x)
    phase = torch.fft.rfftn(x, dim=dims).angle()
    spectrum = torch.polar(shared.to(phase).expand_as(phase), phase)
    image: Tensor = torch.fft.irfftn(spectrum, s=x.shape[2:], dim=dims)
    return image


def with_mean(x: Tensor, shared: Tensor) -> Tensor:
    """Images (B, C, *spatial) whose DC terms have the amplitudes ``shared`` (C, 1, 1)."""
    mean = x.mean(spatial_dims(x), keepdim=True)
    target = over_space(shared.to(x).flatten(), x) / x[0, 0].numel()
    return x - mean + torch.where(mean < 0, -target, target)


class Client(base.Client[Config]):
    """Sends its mean spectrum once and normalises every image with the shared one."""

    in_ranks = frozenset({"inputs"})
    clashes = (base.Rule("normalises images", "would undo that, or be undone"),)

    def perturbations(self) -> Mapping[str, base.Client[Any]]:
        return {"normalised images": self}

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        channels = cast(StagedNetwork, net).in_channels
        if self.config.variant == "released":
            shape: tuple[int | str, ...] = (channels, 1, 1)
            reveals = "average brightness of the site's training images (of its only image, if it has one)"
        else:
            shape = (channels, "half spatial")
            reveals = (
                "average amplitude spectrum of the site's training images: brightness, and amount of structure at "
                "every scale and direction without its position (of its only image, if it has one)"
            )
        return {
            "amplitude": base.ArraySpec(
                shape,
                when="once",
                low=0,
                high=LARGEST,
                reveals=reveals,
                kind="statistics",
                alike="norm",
                averaged="values",
            )
        }

    def statistics(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        dc = self.config.variant == "released"
        total: Tensor | float = 0.0
        for x in data.images_alone():
            part = amplitude(x).double().sum(0)
            total = total + (part.flatten(1)[:, :1, None] if dc else part)
        return {"amplitude": cast(Tensor, total / data.n_images).float().numpy()}

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        self._shared = torch.from_numpy(arrays["amplitude"])

    def inputs(self, x: Tensor, ctx: base.Context, *, training: bool) -> Tensor:
        return (with_mean if self.config.variant == "released" else with_amplitude)(x, self._shared)


class Server(base.Server[Config]):
    """Averages the spectra once; every site has the same weight."""

    name: ClassVar[str] = "harmofl"

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        spec = Client(self.config).up(net)["amplitude"]
        return {"amplitude": base.ArraySpec(spec.shape, reveals="the mean of all sites' `amplitude`")}

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        if ctx.round == 0:
            total = sum(update.arrays[self.name]["amplitude"].astype(np.float64) for update in updates)
            self.state = {"amplitude": np.asarray(total / len(updates), np.float32)}

    def broadcast(self, ctx: base.ServerContext) -> Arrays:
        return self.state
