"""FedProx: hold local training near the received model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020. The local objective is::

    f_k(w) + μ/2 ‖w − w_g‖²          over trainable parameters, w_g the weights at the start of the round

Choices: personal layers (FedBN) are held near the site's own values at the start of the round, because the received
values are not the site's model. Buffers are not parameters and are not held.

Variants: ``variant: released`` follows FedFA's and FedBN's code. The gradient of its term has constant length, however
far w is from w_g.

When: many local steps, sites whose optima differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedshift.methods import base
from fedshift.methods.shared import search
from fedshift.schema.strict import Strict

SEARCH = {"mu": search.log(0.001, 1)}


class Config(Strict):
    """Options of FedProx.

    ``mu``: μ; 0 is ``fedavg``. ``variant``: ``released`` adds μ/2 ‖w − w_g‖ (the norm, not its square), and no term in
    the first step of a round, as the code of FedFA and FedBN does.
    """

    variant: Literal["paper", "released"] = "paper"
    mu: float = Field(default=0.01, ge=0)


def distance(weights: Sequence[Tensor], anchor: Sequence[Tensor], *, squared: bool) -> Tensor:
    """‖w − w_g‖², or ‖w − w_g‖ with a gradient of 0 at 0, over all tensors together."""
    difference = torch.cat([(w - a).flatten() for w, a in zip(weights, anchor, strict=True)])
    return difference.square().sum() if squared else torch.linalg.vector_norm(difference)


class Client(base.Client[Config]):
    """Adds the proximal term to the loss."""

    least_part = 1
    in_ranks = frozenset({"begin", "loss"})
    idle = (
        base.Rule(
            "mu variant",
            "schedule.local_steps is 1, and before the first step no weight has moved",
            # FedSAM takes a gradient elsewhere within its step, and fine-tuning takes further steps.
            lambda case: (
                case.job.task.schedule.local_steps == 1
                and not any("step" in other.owns or other.fine_tune() for other in case.others.values())
            ),
        ),
        base.Rule(
            "mu variant",
            "no weight moves before the end of a round",
            lambda case: any(other.waits for other in case.others.values()),
        ),
    )

    def begin(self, data: base.TrainingSamples, ctx: base.Context) -> None:
        """Drop the anchor of an earlier training run."""
        ctx.scratch.pop("anchor", None)

    def loss(self, batch: base.Batch, logits: Tensor, loss: Tensor, ctx: base.Context) -> Tensor:
        if "anchor" not in ctx.scratch:  # first step: every method's `begin` has run, no weight has changed yet
            ctx.scratch["anchor"] = [p.detach().clone() for p in ctx.run.net.parameters()]
        released = self.config.variant == "released"
        if released and ctx.run.step == 0:
            return loss
        far = distance(list(ctx.run.net.parameters()), ctx.scratch["anchor"], squared=not released)
        return loss + self.config.mu / 2 * far

    def checkpoint(self, ctx: base.Context) -> dict[str, Tensor]:
        return {str(number): anchor for number, anchor in enumerate(ctx.scratch["anchor"])}

    def restore(self, kept: Mapping[str, Tensor], ctx: base.Context) -> None:
        ctx.scratch["anchor"] = [kept[str(i)].to(p.device) for i, p in enumerate(ctx.run.net.parameters())]
