"""Mixup: train on blends of two images with the same blend of their targets.

Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018. On every batch::

    x̃ = λ x_i + (1−λ) x_j,   ỹ = λ y_i + (1−λ) y_j,   λ ~ Beta(α, α),   j a random partner from the same batch

y are one-hot labels.

Deviation: in segmentation y are one-hot masks, blended pixel by pixel (the paper has no segmentation).

Choices: α = 0.2, from the range that the paper recommends for large images (its CIFAR setting is 1; FedFA does not
report its value). Images are blended after normalisation, that is after every method's ``inputs``.

When: a cheap first augmentation; compare with ``manifold_mixup`` and ``fedmix``, which mixes between sites.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedshift.methods import base
from fedshift.methods.shared.features import beta, blend, soft
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options of Mixup.

    ``alpha``: shape of the Beta distribution; 0 mixes nothing. ``draw``: one λ per batch, as in the
    paper's code, or one per image.
    """

    alpha: float = Field(default=0.2, ge=0)
    draw: Literal["batch", "sample"] = "batch"


def mix(batch: base.Batch, partner: Tensor, share: Tensor, *, n_classes: int) -> base.Batch:
    """Blend each sample with its ``partner`` (B,); ``share`` (B,) or (1,) is λ, the weight of the sample itself."""
    y = soft(batch.y, n_classes)
    return base.Batch(blend(batch.x, batch.x[partner], share), blend(y, y[partner], share))


class Client(base.Client[Config]):
    """Mixes every training batch."""

    needs = (base.Rule("a loss that takes shares of classes"),)
    traits = (
        base.Rule("mixes images and their targets"),
        base.Rule(  # with a λ for each image, an image and its partner's may both be mainly that image
            "may show an image twice in a batch",
            when=lambda case: case.config.draw == "sample" and case.config.alpha > 0,
            remedy="mixup.draw=batch",
        ),
    )

    def batch(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        if self.config.alpha == 0:
            return batch
        rng, size = ctx.rng("mix"), len(batch.x)
        share = beta(self.config.alpha, (1 if self.config.draw == "batch" else size,), rng)
        partner = torch.randperm(size, generator=rng).to(batch.x.device)
        return mix(batch, partner, share, n_classes=ctx.run.n_classes)
