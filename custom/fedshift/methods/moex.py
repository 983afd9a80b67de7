"""MoEx: swap the moments of features between samples, and let the targets say so a little.

Li et al., "On Feature Normalization and Data Augmentation" (Moment Exchange), CVPR 2021. On a batch, with probability
p, every sample A gets a partner B, and at one stage with features h::

    h_A ← σ_B (h_A − μ_A) / σ_A + μ_B
    loss = λ CE(y_A) + (1−λ) CE(y_B), here as CE with the soft target λ y_A + (1−λ) y_B

``norm`` says over what moments are taken: ``pono`` over channels, at each position (the authors' choice); ``in`` over
space, for each channel; ``ln`` over both. Variances are unbiased with ε added. Gradients go through the moments.

Choices: λ = 0.9 and p = 1 as in the authors' ImageNet example (their CIFAR one: 0.5 and 0.25). ``layer`` is the
network's first stage, the nearest to the authors' stem. Soft targets are the same for cross-entropy; with a Dice loss
they take the place of the two terms. On masks (an extension) targets are blended pixel by pixel, which suits
``pono``, whose moments are those of the same position.
"""

from __future__ import annotations

from math import prod
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedshift.methods import base
from fedshift.methods.shared.mixing import blend, soft, stages_of
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict
from fedshift.tasks.precision import precise

DIMS = {"pono": (1,), "in": (2, 3), "ln": (1, 2, 3)}


class Config(Strict):
    """Options of MoEx."""

    p: float = Field(default=1.0, ge=0, le=1)
    lam: float = Field(default=0.9, ge=0, le=1)
    norm: Literal["pono", "in", "ln"] = "pono"
    layer: int = Field(default=1, ge=1)
    eps: float = Field(default=1e-5, gt=0)


def exchange(x: Tensor, partner: Tensor, *, norm: str, eps: float) -> Tensor:
    """Features (B, C, H, W) with the moments of the samples that ``partner`` (B,) names."""
    dims = DIMS[norm]
    several = prod(x.shape[d] for d in dims) > 1
    variance, mean = torch.var_mean(x, dims, correction=int(several), keepdim=True)
    std = (variance + eps).sqrt()
    return std[partner] * (x - mean) / std + mean[partner]


class Client(base.Client[Config]):
    """Draws the partners with the batch; the layer swaps moments with them in every pass of the step."""

    mixes_samples = True

    def check(self, job: JobSpec, net: nn.Module) -> None:
        """The stage must exist."""
        stages_of(net, (self.config.layer,), "moex")

    def attach(self, net: nn.Module, ctx: base.Context) -> list[RemovableHandle]:
        """The layer."""

        def layer(features: Tensor) -> Tensor:
            partner = ctx.scratch.get("partner")
            # Another batch's size: a pass that some method makes on samples of its own.
            if not net.training or partner is None or len(partner) != len(features):
                return features
            return exchange(precise(features), partner, norm=self.config.norm, eps=self.config.eps).to(features.dtype)

        return [stage.hook(layer) for stage in stages_of(net, (self.config.layer,), "moex").values()]

    def augment(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        """A new batch: until it is drawn for, passes of other methods swap nothing."""
        ctx.scratch["partner"] = None
        return batch

    def batch(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        """Soft targets, if this batch's moments are to be swapped."""
        rng = ctx.rng("exchange")
        if float(torch.rand((), generator=rng)) >= self.config.p:
            return batch
        partner = torch.randperm(len(batch.x), generator=rng).to(batch.x.device)
        ctx.scratch["partner"] = partner
        y = soft(batch.y, ctx.run.n_classes)
        return base.Batch(batch.x, blend(y, y[partner], torch.tensor([self.config.lam])))
