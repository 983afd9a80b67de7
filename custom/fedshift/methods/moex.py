"""MoEx: exchange the moments of features between samples, and blend their targets accordingly.

Li et al., "On Feature Normalization and Data Augmentation" (Moment Exchange), CVPR 2021. On a batch, with probability
p, every sample A gets a partner B, and at one stage with features h::

    h_A ← σ_B (h_A − μ_A) / σ_A + μ_B
    loss = λ CE(y_A) + (1−λ) CE(y_B), here as CE with the soft target λ y_A + (1−λ) y_B

Variances are unbiased, plus ε. Gradients flow through the moments.

Choices: λ = 0.9 and p = 1 as in the authors' ImageNet example (their CIFAR example: 0.5 and 0.25); moments over
channels (``pono``) as theirs. ``layer`` defaults to the network's first stage, the nearest to the authors' stem.

Deviations: soft targets replace the two terms of the loss, which is the same for cross-entropy but not for a Dice loss.
In segmentation (not in the paper) targets are blended pixel by pixel, which fits ``pono``, whose moments belong to the
same position.

When: to compare with FedFA's tables; ``in`` swaps the same statistics as MixStyle but changes the targets accordingly.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedshift.methods import base
from fedshift.methods.shared.features import blend, soft, spatial_dims, stages_of
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict
from fedshift.tasks.precision import precise

SEARCH = {"layer": None}


class Config(Strict):
    """Options of MoEx.

    ``p``: probability per batch. ``lam``: weight of a sample's own target. ``norm``: ``pono`` takes moments over
    channels at each position, ``in`` over space for each channel, ``ln`` over both. ``layer``: the stage. ``eps``:
    added to variances.
    """

    p: float = Field(default=1.0, ge=0, le=1)
    lam: float = Field(default=0.9, ge=0, le=1)
    norm: Literal["pono", "in", "ln"] = "pono"
    layer: int = Field(default=1, ge=1)
    eps: float = Field(default=1e-5, gt=0)


def exchange(x: Tensor, partner: Tensor, *, norm: str, eps: float) -> Tensor:
    """Features (B, C, *spatial) with the moments of the samples with indices ``partner`` (B,)."""
    space = spatial_dims(x)
    dims = {"pono": (1,), "in": space, "ln": (1, *space)}[norm]
    several = prod(x.shape[d] for d in dims) > 1
    variance, mean = torch.var_mean(x, dims, correction=int(several), keepdim=True)
    std = (variance + eps).sqrt()
    return std[partner] * (x - mean) / std + mean[partner]


class Client(base.Client[Config]):
    """Draws the partners for each batch; the layer exchanges moments in every pass of the step."""

    needs = (base.Rule("a loss that takes shares of classes"),)
    traits = (
        base.Rule("mixes images and their targets"),
        base.Rule(  # with λ = ½, both targets of a pair may stand for the same class
            "may show an image twice in a batch",
            when=lambda case: case.config.lam == 0.5 and case.config.p > 0,
            remedy="moex.lam=0.9",
        ),
    )

    def check(self, job: JobSpec, net: nn.Module) -> None:
        stages_of(net, (self.config.layer,), "moex")

    def perturbations(self) -> Mapping[str, base.Client[Any]]:
        always = self.config.model_copy(update={"p": 1.0})
        return {"exchanged statistics of features": Client(always)} if self.config.p else {}

    def attach(self, net: nn.Module, ctx: base.Context) -> list[RemovableHandle]:
        def layer(features: Tensor) -> Tensor:
            partner = ctx.scratch.get("partner")
            # A different batch size: another method's pass over samples of its own.
            if not net.training or partner is None or len(partner) != len(features):
                return features
            return exchange(precise(features), partner, norm=self.config.norm, eps=self.config.eps).to(features.dtype)

        return [stage.hook(layer) for stage in stages_of(net, (self.config.layer,), "moex").values()]

    def augment(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        """Other methods' passes before ``batch`` exchange nothing."""
        ctx.scratch["partner"] = None
        return batch

    def batch(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        rng = ctx.rng("exchange")
        if float(torch.rand((), generator=rng)) >= self.config.p:
            return batch
        partner = torch.randperm(len(batch.x), generator=rng).to(batch.x.device)
        ctx.scratch["partner"] = partner
        y = soft(batch.y, ctx.run.n_classes)
        return base.Batch(batch.x, blend(y, y[partner], torch.tensor([self.config.lam])))
