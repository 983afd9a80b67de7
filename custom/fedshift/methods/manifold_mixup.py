"""Manifold Mixup: blend the hidden features of two samples at a random depth, and their targets.

Verma et al., "Manifold Mixup: Better Representations by Interpolating Hidden States", ICML 2019. On every batch::

    k ~ U(places)                           0 is the input, k ≥ 1 the network's stage k
    h̃_k = λ h_k(x_i) + (1−λ) h_k(x_j),   ỹ = λ y_i + (1−λ) y_j,   λ ~ Beta(α, α), one per batch

Choices: α = 2, with the input and stages 1 and 2 as places, as in the authors' code for CIFAR (FedFA does not report
its setting).

Deviations: masks are blended pixel by pixel (the paper has no segmentation). A U-Net's stages are its pooled branches
and its bottleneck, as for FedFA's layers. Mixing there does not change the skip connections of the same depth and
above, which carry the sample's own features to the decoder. Mixing at the input affects everything.

When: blends of images look unlike any real image; to compare with FedFA's tables.
"""

from __future__ import annotations

from functools import partial

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedshift.methods import base
from fedshift.methods.shared.features import beta, blend, soft, stages_of
from fedshift.schema.errors import ConfigError
from fedshift.schema.job import JobSpec
from fedshift.schema.strict import Strict
from fedshift.tasks.stages import Stage

INPUT = 0
FIRST_STAGES = 2


class Config(Strict):
    """Options of Manifold Mixup.

    ``alpha``: of the Beta distribution; 0 mixes nothing. ``layers``: places by number, 0 the input, from 1 the
    network's stages; null for the input and the first two.
    """

    alpha: float = Field(default=2.0, ge=0)
    layers: tuple[int, ...] | None = None

    def model_post_init(self, _context: object) -> None:
        if self.layers is not None and not self.layers:
            raise ConfigError(
                "invalid-value", "method manifold_mixup: layers is empty: list 0 for the input, or stages from 1"
            )


def places(net: nn.Module, config: Config) -> dict[int, Stage | None]:
    """Places where a batch may be mixed, by number; the input (0) has no stage."""
    if config.layers is None:
        first = list(stages_of(net, None, "manifold_mixup").items())[:FIRST_STAGES]
        return {INPUT: None, **dict(first)}
    chosen = sorted(set(config.layers) - {INPUT})
    stages = stages_of(net, chosen, "manifold_mixup") if chosen else {}
    return {**({INPUT: None} if INPUT in config.layers else {}), **stages}


class Client(base.Client[Config]):
    """Draws the place for each batch; the layer at that place mixes the features."""

    needs = (base.Rule("a loss that takes shares of classes"),)
    traits = (base.Rule("mixes images and their targets"),)

    def check(self, job: JobSpec, net: nn.Module) -> None:
        places(net, self.config)

    def attach(self, net: nn.Module, ctx: base.Context) -> list[RemovableHandle]:
        """One mixing layer at each stage among the places."""
        stages = places(net, self.config)
        self._places = list(stages)

        def layer(number: int, features: Tensor) -> Tensor:
            drawn = ctx.scratch.get("mix")
            # A different batch size: another method's pass over samples of its own.
            if not net.training or drawn is None or drawn[0] != number or len(drawn[1]) != len(features):
                return features
            return blend(features, features[drawn[1]], drawn[2])

        return [stage.hook(partial(layer, number)) for number, stage in stages.items() if stage is not None]

    def augment(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        """Other methods' passes before ``batch`` mix nothing."""
        ctx.scratch["mix"] = None
        return batch

    def batch(self, batch: base.Batch, ctx: base.Context) -> base.Batch:
        """Blend the targets, and the images if the place is the input; the draw holds for every pass of the step."""
        if self.config.alpha == 0:
            return batch
        rng = ctx.rng("mix")
        place = self._places[int(torch.randint(len(self._places), (), generator=rng))]
        share = beta(self.config.alpha, (1,), rng)
        partner = torch.randperm(len(batch.x), generator=rng).to(batch.x.device)
        ctx.scratch["mix"] = place, partner, share
        y = soft(batch.y, ctx.run.n_classes)
        x = blend(batch.x, batch.x[partner], share) if place == INPUT else batch.x
        return base.Batch(x, blend(y, y[partner], share))
