"""MixStyle: interpolate the style (channel statistics) of features between two samples.

Zhou et al., "Domain Generalization with MixStyle", ICLR 2021. At each chosen stage, with probability p, for the
features x (B, C, *spatial) of a batch and x̃, the same features with the samples permuted::

    γ = λ σ(x) + (1−λ) σ(x̃),   β = λ μ(x) + (1−λ) μ(x̃),   λ ~ Beta(α, α), one per sample
    MixStyle(x) = γ (x − μ(x)) / σ(x) + β

μ and σ are taken over space per sample and channel (unbiased variance plus ε) and are detached from the graph.
Targets are not changed.

Variant: ``mix: crossdomain`` is for batches whose halves come from different sites, as no federation's do.

Choices: ``layers`` defaults to the first three stages without the last one, unless it is the only one: the authors
recommend several lower layers and advise against the layer nearest to the prediction. The variance of a single pixel is
taken as 0. The halves of an odd batch differ by one sample; the authors' code drops a sample.

When: sites or new sites differ in style. In a federation a batch contains only the styles of one site.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedshift.methods import base
from fedshift.methods.shared.features import beta, over_space, spatial_dims, stages_of
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict
from fedshift.tasks.precision import precise
from fedshift.tasks.stages import Stage

EARLY = 3


class Config(Strict):
    """Options of MixStyle.

    ``p``: probability per batch and stage. ``alpha``: of the Beta distribution. ``mix``: partners from the batch, or
    from its other half. ``layers``: stages, from 1; null for the first three, never the last. ``eps``: added to
    variances.
    """

    p: float = Field(default=0.5, ge=0, le=1)
    alpha: float = Field(default=0.1, gt=0)
    mix: Literal["random", "crossdomain"] = "random"
    layers: tuple[int, ...] | None = None
    eps: float = Field(default=1e-6, gt=0)


def mix_style(x: Tensor, share: Tensor, partner: Tensor, *, eps: float) -> Tensor:
    """Features (B, C, *spatial) in the blended style; ``share`` (B,) is λ, ``partner`` (B,) the other samples."""
    with torch.no_grad():
        variance, mean = torch.var_mean(x, spatial_dims(x), correction=int(x[0, 0].numel() > 1), keepdim=True)
        std = (variance + eps).sqrt()
        share = over_space(share.to(x)[:, None], x)
        scale = (share * std + (1 - share) * std[partner]) / std
        shift = share * mean + (1 - share) * mean[partner] - mean * scale
    return torch.addcmul(shift, x, scale)


def partners(size: int, mix: str, rng: torch.Generator) -> Tensor:
    """Index of the style partner for each of ``size`` samples."""
    if mix == "random":
        return torch.randperm(size, generator=rng)
    first, second = torch.arange(size).tensor_split(2)
    return torch.cat([half[torch.randperm(len(half), generator=rng)] for half in (second, first)])


class Client(base.Client[Config]):
    """Inserts MixStyle at the chosen stages."""

    least_part = 2

    def stages(self, net: nn.Module) -> dict[int, Stage]:
        """The chosen stages of a network, by number from 1."""
        if self.config.layers is not None:
            return stages_of(net, self.config.layers, "mixstyle")
        stages = stages_of(net, None, "mixstyle")
        early = [number for number in stages if number <= EARLY and number < len(stages)] or [1]
        return {number: stages[number] for number in early}

    def check(self, job: JobSpec, net: nn.Module) -> None:
        self.stages(net)

    def perturbations(self) -> Mapping[str, base.Client[Any]]:
        always = self.config.model_copy(update={"p": 1.0})
        return {"exchanged statistics of features": Client(always)} if self.config.p else {}

    def attach(self, net: nn.Module, ctx: base.Context) -> list[RemovableHandle]:
        config = self.config

        def layer(number: int, features: Tensor) -> Tensor:
            if not net.training:
                return features
            rng = ctx.rng(f"layer{number}")
            if float(torch.rand((), generator=rng)) >= config.p:
                return features
            share = beta(config.alpha, (len(features),), rng)
            partner = partners(len(features), config.mix, rng).to(features.device)
            return mix_style(precise(features), share, partner, eps=config.eps).to(features.dtype)

        return [stage.hook(partial(layer, number)) for number, stage in self.stages(net).items()]
