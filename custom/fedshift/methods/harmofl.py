"""HarmoFL's amplitude normalisation: all sites' images get one shared amplitude spectrum and keep their own phase.

Jiang et al., "HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical Images",
AAAI 2022. Once, over the n_k training images of site k, per channel; then in training and evaluation::

    A_k = 1/n_k Σ_i |F(x_i)|,    A = 1/K Σ_k A_k
    x ← F⁻¹( A · exp(i · arg F(x)) )

F is the discrete Fourier transform over rows and columns. The paper's other half, weight perturbation, is in
``fedharmo``.

Deviations: the paper moves a site's amplitude batch by batch and says little of when it is shared; here it is the mean
over all un-augmented training images and shared once (as in the code, whose amplitude is frozen after the first
round). Only half the spectrum is kept, since real images have it twice. A coefficient that is 0 has phase 0.

``variant: released`` does what the authors' code does, which replaces the DC term alone:
x ← x − mean(x) + s A(0)/(HW) with s the sign of the image's mean. Their A is that of the first batch; here it is that
of all training images in this variant too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.methods import base
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict
from fedshift.tasks.stages import StagedNetwork

LARGEST = 1e10
"""Of a spectrum: the number of pixels times the largest intensity."""
NORMALISERS = ("fedharmo", "fedrdn", "harmofl")


class Config(Strict):
    """Options of HarmoFL's amplitude normalisation."""

    variant: Literal["paper", "released"] = "paper"


def amplitude(x: Tensor) -> Tensor:
    """|F(x)| for frequencies from 0 along the columns: (B, C, H, W) -> (B, C, H, W // 2 + 1)."""
    spectrum: Tensor = torch.fft.rfft2(x).abs()
    return spectrum


def with_amplitude(x: Tensor, shared: Tensor) -> Tensor:
    """Images (B, C, H, W) with the amplitudes ``shared`` (C, H, W // 2 + 1) and their own phases."""
    phase = torch.fft.rfft2(x).angle()
    image: Tensor = torch.fft.irfft2(torch.polar(shared.to(phase).expand_as(phase), phase), s=x.shape[-2:])
    return image


def with_mean(x: Tensor, shared: Tensor) -> Tensor:
    """Images (B, C, H, W) whose DC terms have the amplitudes ``shared`` (C, 1, 1)."""
    mean = x.mean((2, 3), keepdim=True)
    target = shared.to(x) / (x.shape[-2] * x.shape[-1])
    return x - mean + torch.where(mean < 0, -target, target)


class Client(base.Client[Config]):
    """Measures its spectrum once; normalises every image with the shared one."""

    name: ClassVar[str] = "harmofl"

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """Two normalisations would undo each other."""
        other = next((n for n in NORMALISERS if n in job.methods and n != self.name), None)
        if other is not None:
            raise ConfigError(
                f"method {self.name}: cannot be combined with {other}, because each would undo the other's "
                "normalisation of the images: name one of them"
            )

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        """The spectrum, or in the released variant its DC term."""
        channels = cast(StagedNetwork, net).in_channels
        if self.config.variant == "released":
            shape: tuple[int | str, ...] = (channels, 1, 1)
            reveals = "average brightness of the site's training images (of its only image, if it has one)"
        else:
            shape = (channels, "rows", "half columns")
            reveals = (
                "average amplitude spectrum of the site's training images: how bright they are and how much structure "
                "they have at every scale and direction, not where (of its only image, if it has one)"
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
        """A_k, summed in float64."""
        dc = self.config.variant == "released"
        total: Tensor | float = 0.0
        for x, _ in data.chunks():
            part = amplitude(x).double().sum(0)
            total = total + (part[:, :1, :1] if dc else part)
        return {"amplitude": cast(Tensor, total / data.n_train).float().numpy()}

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        """A."""
        self._shared = torch.from_numpy(arrays["amplitude"])

    def inputs(self, x: Tensor, ctx: base.Context, *, training: bool) -> Tensor:
        """The same in training and in evaluation."""
        return (with_mean if self.config.variant == "released" else with_amplitude)(x, self._shared)


class Server(base.Server[Config]):
    """Averages the spectra once, each site counting the same."""

    name: ClassVar[str] = "harmofl"

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        """A."""
        spec = Client(self.config).up(net)["amplitude"]
        return {"amplitude": base.ArraySpec(spec.shape, reveals="the mean of all sites' `amplitude`")}

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        """Round 0: the mean over sites."""
        if ctx.round == 0:
            total = sum(update.arrays[self.name]["amplitude"].astype(np.float64) for update in updates)
            self.state = {"amplitude": np.asarray(total / len(updates), np.float32)}

    def broadcast(self, ctx: base.ServerContext) -> Arrays:
        """The same every round, so that a site needs to remember nothing it received."""
        return self.state
